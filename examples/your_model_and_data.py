"""Your own network on your own arrays: ten clients keep their samples to themselves and learn together.

The handwritten digits of scikit-learn stand in for your data. Run it with `python examples/your_model_and_data.py`.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedmate

x, y = load_digits(return_X_y=True)  # your samples, an array [samples, ...], and their classes 0, 1, 2, ...
x = x / 16  # as your network likes to read them

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))  # your network; its last layer is called "2"

records = fedmate.compare(
    ["fedmate", "fedavg"],
    data=fedmate.Pool(x[:1300], y[:1300], test_x=x[1300:], test_y=y[1300:]),
    model=network,
    classifier="2",
    set={"rounds": 10, "training.batch_size": 20, "training.learning_rate": 0.1, "partition.clients": 10},
)
for method, record in records.items():
    own, balanced = record.accuracy(test="own"), record.accuracy(test="balanced")
    print(f"{method:8} {own:.1f} % on what its clients see, {balanced:.1f} % on all classes alike; see {record.folder}")

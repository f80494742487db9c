"""Your own data by name: arrays in a file that also says whose each sample is, and images in a folder per class.

The handwritten digits of scikit-learn stand in for your data. Run it with `python examples/your_dataset.py`; the folder
of images needs Pillow (`pip install 'fedmate[images]'`). The same on the command line:

    fedmate run --dataset npz --set dataset.path=wards.npz --set partition.name=natural --method fedmate
    fedmate run --dataset folder --set dataset.path=images --set dataset.grey=true --method fedmate
"""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fedmate

work = Path(tempfile.mkdtemp())
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8) * 15.9).astype(np.uint8)  # your images: bytes [samples, height, width(, 3)]
wards = np.array(["north", "south", "east", "west"])[np.arange(1400) % 4]  # whose each training sample is

# Arrays, with `train_client` to tell whose they are: the partition `natural` keeps to that.
np.savez(
    work / "wards.npz",
    train_x=images[:1400],
    train_y=labels[:1400],
    train_client=wards,
    test_x=images[1400:],
    test_y=labels[1400:],
)
settings = {"rounds": 3, "training.learning_rate": 0.1, "model.name": "digits_cnn"}
record = fedmate.run(
    method="fedmate",
    dataset="npz",
    set={**settings, "dataset.path": str(work / "wards.npz"), "partition.name": "natural"},
)
print(f"four wards: {record.accuracy(test='own'):.1f} % on what they see; see {record.folder}")

# Images, a folder for each class; a fifth of them is the test split unless there are folders `train` and `test`.
for i, (image, label) in enumerate(zip(images[:900], labels[:900], strict=True)):
    place = work / "images" / f"digit {label}"
    place.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(place / f"{i}.png")
record = fedmate.run(
    method="fedmate",
    dataset="folder",
    set={**settings, "dataset.path": str(work / "images"), "dataset.grey": True, "partition.clients": 5},
)
print(f"five clients: {record.accuracy(test='own'):.1f} % on what they see; see {record.folder}")

"""Loop or vmap on a CPU: where `backend = "auto"` draws the line.

Claim: the loop's advantage grows with the work of a step, and `VMAP_FLOPS_PER_STEP` lies where the two cross.
Hardware: 2 CPU cores, torch 2.13.0. CPU seconds, not wall time, best of 3 rounds of FedAvg, 10 clients.

    .venv/bin/python benchmarks/loop_or_vmap.py
"""

from __future__ import annotations

import time

import torch

from fedmate.backends import Backend
from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.backends.vectorised import Vectorised
from fedmate.core import Federation, Model, Setup, Training, client_data, make_key
from fedmate.experiment.build import flops_per_step
from fedmate.methods.fedavg import FedAvg
from fedmate.models import MODELS

CASES = (
    ("digits_cnn", (1, 8, 8), 10),
    ("digits_cnn", (1, 8, 8), 50),
    ("digits_cnn", (1, 16, 16), 50),
    ("emnist_cnn", (1, 28, 28), 10),
    ("emnist_cnn", (1, 28, 28), 50),
    ("cifar_cnn", (3, 32, 32), 10),
    ("cifar_cnn", (3, 32, 32), 50),
)
CLIENTS, CLASSES = 10, 10


def seconds(backend: Backend, method: FedAvg) -> float:
    """Return the CPU seconds of a round, the best of three."""
    server = method.init_server(method.setup.model.init_params(), CLIENTS, make_key(0))
    taken = []
    for number in range(3):
        start = time.process_time()
        server = backend.run_round(server, Round(number, tuple(range(CLIENTS)), evaluate=False)).server
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    """Print a row per network and batch size."""
    print("| network | input | batch | MFLOP a step | loop, CPU ms a round | vmap | loop / vmap |")
    print("|---|---|---|---|---|---|---|")
    for name, shape, batch in CASES:
        torch.manual_seed(0)
        samples = [client_data(torch.randn(100, *shape), torch.randint(CLASSES, (100,))) for _ in range(CLIENTS)]
        federation = Federation(tuple(samples), samples[0], CLASSES)
        model = Model(MODELS[name]().build(shape, CLASSES), classifier="classifier")
        method = FedAvg(setup=Setup(model, CLASSES, 3, Training(batch_size=batch, epochs=1)))
        loop = seconds(Sequential(method, federation, make_key(0), workers=1), method)
        vmap = seconds(Vectorised(method, federation, make_key(0)), method)
        work = flops_per_step(method, federation) / 1e6
        size = "x".join(map(str, shape))
        print(f"| {name} | {size} | {batch} | {work:.1f} | {1e3 * loop:.0f} | {1e3 * vmap:.0f} | {loop / vmap:.2f} |")


if __name__ == "__main__":
    main()

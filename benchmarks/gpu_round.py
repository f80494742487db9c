"""A round of the paper's CIFAR-10 federation on a GPU, all clients at once against one after the other.

Claim: the vectorised back end is several times faster than the loop on one GPU, and both give the same numbers.
Hardware: one NVIDIA H200, torch 2.11. 20 clients x 600 images (random: speed does not depend on what they show), batch
50, 5 epochs, after a warm-up round, best of 3 (sequential: one). Agreement: digits, float64, 3 rounds, GPU against CPU.

    python benchmarks/gpu_round.py
"""

from __future__ import annotations

import time

import torch

from fedmate.backends import BACKENDS
from fedmate.backends.base import Round
from fedmate.core import Federation, Model, Setup, Training, client_data, flatten, make_key
from fedmate.experiment.build import build
from fedmate.experiment.config import parse_set
from fedmate.experiment.request import Request, compose
from fedmate.methods import METHODS
from fedmate.models import MODELS

CLIENTS, SAMPLES, CLASSES = 20, 600, 10


def milliseconds(method_name: str, backend_name: str, evaluate: bool) -> float:
    """Return the time of a round."""
    torch.manual_seed(0)
    clients = [
        client_data(torch.randn(SAMPLES, 3, 32, 32).cuda(), torch.randint(CLASSES, (SAMPLES,)).cuda())
        for _ in range(CLIENTS)
    ]
    test = client_data(torch.randn(10_000, 3, 32, 32).cuda(), torch.randint(CLASSES, (10_000,)).cuda())
    model = Model(MODELS["cifar_cnn"]().build((3, 32, 32), CLASSES).cuda(), classifier="classifier")
    method = METHODS[method_name](setup=Setup(model, CLASSES, 200, Training()))
    backend = BACKENDS[backend_name](method, Federation(tuple(clients), test, CLASSES), make_key(0, "cuda"))
    server = method.init_server(model.init_params(), CLIENTS, make_key(0, "cuda"))
    taken = []
    for number in range(4 if backend_name == "vectorised" else 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        server = backend.run_round(server, Round(number, tuple(range(CLIENTS)), evaluate)).server
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return 1e3 * min(taken[1:])


def gap(method_name: str) -> float:
    """Return how far the server's parameters lie apart after three rounds on a CPU and on a GPU, in float64."""
    ends = []
    for device in ("cpu", "cuda"):
        settings = parse_set(["dtype=float64", f"device={device}", "rounds=3"])
        built = build(compose(Request(None, [method_name], "digits", settings))[0])
        method, key = built.method, make_key(0, device)
        server = method.init_server(method.setup.model.init_params(), CLIENTS, key)
        for number in range(3):
            server = built.backend.run_round(server, Round(number, tuple(range(CLIENTS)), evaluate=False)).server
        ends.append({name: leaf.cpu() for name, leaf in flatten(server).items() if leaf.is_floating_point()})
    return max((float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0]), default=0.0)


def main() -> None:
    """Print both tables."""
    print(torch.__version__, torch.cuda.get_device_name())
    print("| method | vectorised, ms a round | the same, evaluated | sequential |\n|---|---|---|---|")
    for name in ("fedavg", "fedrep", "fedmate"):
        times = [milliseconds(name, "vectorised", evaluate) for evaluate in (False, True)]
        print(
            f"| {name} | {times[0]:.0f} | {times[1]:.0f} | {milliseconds(name, 'sequential', False):.0f} |", flush=True
        )
    print("| method | largest gap CPU to GPU |\n|---|---|")
    for name in METHODS.names():
        print(f"| {name} | {gap(name):.1e} |", flush=True)


if __name__ == "__main__":
    main()

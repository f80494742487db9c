"""How far CPU and GPU lie apart in float64: the server's parameters after three rounds on digits, for every method.

python benchmarks/gpu_round.py
"""

from __future__ import annotations

import torch

from fedmate.backends.base import Round
from fedmate.core import flatten, make_key
from fedmate.experiment.build import build
from fedmate.experiment.config import parse_set
from fedmate.experiment.prepare import Request, compose
from fedmate.methods import METHODS


def gap(method_name: str) -> float:
    """Return how far the server's parameters lie apart after three rounds on a CPU and on a GPU, in float64."""
    ends = []
    for device in ("cpu", "cuda"):
        settings = parse_set(["dtype=float64", f"device={device}", "rounds=3"])
        built = build(compose(Request(None, [method_name], "digits", settings))[0])
        method, key = built.method, make_key(0, device)
        clients = tuple(range(len(built.federation.clients)))
        server = method.init_server(method.setup.model.init_params(), len(clients), key)
        for number in range(3):
            server = built.backend.run_round(server, Round(number, clients, evaluate=False)).server
        ends.append({name: leaf.cpu() for name, leaf in flatten(server).items() if leaf.is_floating_point()})
    return max((float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0]), default=0.0)


def main() -> None:
    """Print a row per method."""
    print(torch.__version__, torch.cuda.get_device_name())
    for name in METHODS.names():
        print(f"| {name} | {gap(name):.1e} |", flush=True)


if __name__ == "__main__":
    main()

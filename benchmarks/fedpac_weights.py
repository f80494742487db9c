"""How long FedPAC's server takes to weigh the classifiers of a round: a quadratic program for each client.

Claim: none; it reports. Hardware: one core of an Intel Xeon, torch 2.13.0. n = 3, the quickest counts.

    .venv/bin/python benchmarks/fedpac_weights.py 20 100 200
"""

from __future__ import annotations

import sys
import time

import torch

from fedmate.components.classifier_collaboration import combining_weights
from fedmate.core import make_key, normal, uniform

CLASSES, WIDTH, REPEAT = 10, 128, 3


def main(numbers: list[int]) -> None:
    """Print CPU seconds for each number of clients."""
    torch.set_num_threads(1)
    for clients in numbers:
        key = make_key(clients)
        shares = normal(key, (clients, CLASSES, WIDTH)) / WIDTH
        variances = 1e-3 * (1 + uniform(key, (clients,)))
        seconds = []
        for _ in range(REPEAT):
            began = time.process_time()
            combining_weights(shares, variances, torch.ones(clients, dtype=torch.bool))
            seconds.append(time.process_time() - began)
        print(f"{clients:5d} clients: {min(seconds):.3f} s")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [20, 100, 200])

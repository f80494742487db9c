"""Learning rates for digits, chosen on validation samples: the entries for digits in `src/fedmate/tuned.toml`.

`fedmate tune` cannot do this: digits has no test split of its own, so what no client holds is the test split.

Every client gives up 8 of its 40 samples; together they are the validation split, and the test split is never looked
at. Seeds 100 to 102, other than those reported. Figures: accuracy of the headline view on the balanced test, mean over
clients and seeds, in percent.

    python benchmarks/tune_digits.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

import torch

from fedmate.backends.base import Round
from fedmate.core import ClientData, Federation, client_data, fold, make_key, permutation
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import parse_set
from fedmate.experiment.evaluate import evaluate_view, label_distribution
from fedmate.experiment.prepare import Request, compose

SEEDS = (100, 101, 102)
RATES = (0.02, 0.05, 0.1, 0.2)
HELD_OUT = 8


def with_validation(built: Built) -> Built:
    """Return the experiment with the clients' held-out samples in place of the test split."""
    kept, held = [], []
    for i, data in enumerate(built.federation.clients):
        order = permutation(fold(make_key(built.experiment.general.seed), "validation", i), len(data.y)).to(
            data.y.device
        )
        kept.append(client_data(data.x[order[:-HELD_OUT]], data.y[order[:-HELD_OUT]]))
        held.append((data.x[order[-HELD_OUT:]], data.y[order[-HELD_OUT:]]))
    validation: ClientData = client_data(*(torch.cat(parts) for parts in zip(*held, strict=True)))
    federation = Federation(tuple(kept), validation, built.federation.num_classes)
    backend = type(built.backend)(built.method, federation, built.backend.key)
    return built._replace(federation=federation, backend=backend)


def accuracy(method: str, settings: list[str], seed: int) -> float:
    """Train on what is kept and return the figure on what is held out."""
    request = Request(None, [method], "digits", parse_set([*settings, f"seed={seed}"]))
    built = with_validation(build(compose(request)[0]))
    rounds, clients = built.experiment.general.rounds, len(built.federation.clients)
    key = fold(make_key(seed, built.experiment.general.device), "server")
    server = built.method.init_server(built.method.setup.model.init_params(), clients, key)
    for t in range(rounds):
        result = built.backend.run_round(server, Round(t, tuple(range(clients)), evaluate=t + 1 == rounds))
        server = result.server
    view = result.views[built.method.primary_view]
    assert view is not None
    labels = label_distribution(built.method.setup, built.federation.clients)
    figure: float = evaluate_view(view, labels)["balanced"]["mean"]
    return figure


def candidates(method: str) -> Iterator[list[str]]:
    """Yield the settings to try: the shared rate, and the classifier's where there is one."""
    for rate in RATES:
        if method in ("fedrep", "fedmate"):
            for own in RATES:
                yield [f"training.learning_rate={rate}", f"method.classifier_learning_rate={own}"]
        else:
            yield [f"training.learning_rate={rate}"]


def main() -> None:
    """Print a row per method and setting."""
    argparse.ArgumentParser(description="Try learning rates for digits on validation samples.").parse_args()
    for method in ("local", "fedavg", "fedper", "fedrep", "fedmate"):
        for settings in candidates(method):
            figures = [accuracy(method, settings, seed) for seed in SEEDS]
            print(f"{method:8} {' '.join(settings):75} {statistics.mean(figures):6.2f}", flush=True)


if __name__ == "__main__":
    main()

"""A search of seconds: handwritten digits as if they were MNIST, a small network, three clients, a round or two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedmate.experiment.config import parse_set
from fedmate.experiment.prepare import Request
from fedmate.experiment.run import Observer
from fedmate.experiment.user_inputs import UserInputs
from fedmate.progress import Silence
from fedmate.studies import run as study_run
from fedmate.studies.records import Records
from fedmate.studies.run import Watcher
from fedmate.tune.search import Asked, Search, Trial, run_trials

SETTINGS = (
    *("rounds=1", "validation_per_class=5", "backend=sequential"),
    *("partition.clients=3", "partition.examples=20"),
    *("model.name=mlp", "model.width=16", "model.depth=1"),
    "training.epochs=2",
)


@contextmanager
def no_collection() -> Iterator[None]:
    """Leave memory alone between runs: these are so small that looking through it takes as long as they do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study_run, "gc", SimpleNamespace(collect=lambda: 0))
        yield


def write_data(folder: Path, test_labels: int = 0) -> Path:
    """Write a data set `mnist`; `test_labels` moves the labels of its test split, and nothing else."""
    images, labels = load_digits(return_X_y=True)
    x = np.pad(np.kron(images.reshape(-1, 8, 8), np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    x, y = (x * 15).astype(np.uint8)[:700], labels.astype(np.int64)[:700]
    folder.mkdir(exist_ok=True)
    test_y = (y[500:] + test_labels) % 10
    np.savez(folder / "mnist.npz", train_x=x[:500], train_y=y[:500], test_x=x[500:], test_y=test_y)
    return folder


def request_of(method: str, folder: Path, settings: Sequence[str] = ()) -> Request:
    return Request(None, [method], "mnist", parse_set([*SETTINGS, *settings]), UserInputs(folder=folder))


class Listener(Watcher):
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.begun, self.sentences = list[str](), list[str]()

    def started(self, cell: str) -> Observer:
        self.begun.append(cell)
        return Silence()

    def ended(self, cell: str, seconds: float) -> None:
        pass

    def failed(self, cell: str, sentence: str) -> None:
        pass

    def warned(self, sentence: str) -> None:
        self.sentences.append(sentence)


def searched(request: Request, asked: Asked, store: Path) -> tuple[Search, list[Trial], Listener]:
    """Make a search, and return what it came to and what was run for it."""
    search, listener = Search.of(request, asked), Listener()
    return search, list(run_trials(search, Records(store, "tuning"), request.inputs, listener)), listener

"""Held-out clients: the choice, their figures in the record, and training that does not depend on them."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import nest
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, begin, compose
from fedmate.experiment.record import Record
from fedmate.experiment.run import run as run_built
from fedmate.progress import RunProgress
from fedmate.report.tables import show, unseen_clients

CLASSES, FEATURES = 3, 4
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "eval_every": 2,
    "holdout_clients": 0.4,
    "device": "cpu",
    "partition.name": "iid",
    "partition.clients": 5,
    "partition.examples": 8,
    "training.epochs": 1,
    "training.batch_size": 4,
}


def given() -> UserInputs:
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 90)
    data = Pool(rng.normal(size=(90, FEATURES)) + np.eye(CLASSES, FEATURES)[y], y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = OrderedDict(body=nn.Linear(FEATURES, 5), bend=nn.Tanh(), head=nn.Linear(5, CLASSES))
        return UserInputs(data, nn.Sequential(layers), "head")


def made(method: str = "fedavg", **changes: Any) -> Built:
    """Build the experiment with other values; a section's key is written with two underscores."""
    values = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    request = Request(methods=[method], settings=nest("set", values.items()), inputs=given())
    return build(compose(request)[0], request.inputs)


def carry_out(built: Built, folder: Path) -> Record:
    begin(folder, built)
    run_built(built, folder, [RunProgress(None)])
    return Record(folder)


@pytest.mark.parametrize(
    ("share", "clients", "away"),
    [(0.0, 5, 0), (0.4, 5, 2), (0.29, 10, 2), (1 - 1e-12, 5, 4)],
)
def test_a_share_of_the_clients_is_held_out(share: float, clients: int, away: int) -> None:
    federation = made(holdout_clients=share, partition__clients=clients).federation
    assert (len(federation.held_out_clients), len(federation.clients)) == (away, clients - away)


def test_a_share_too_small_is_refused_with_one_that_is_not() -> None:
    with pytest.raises(UserError) as caught:
        made(holdout_clients=0.05, partition__clients=3)
    start = "`holdout_clients` is 0.05, which of 3 clients is none; set it to at least "
    assert str(caught.value).startswith(start)
    enough = float(str(caught.value).removeprefix(start).split(",")[0])
    assert len(made(holdout_clients=enough, partition__clients=3).federation.held_out_clients) == 1


def test_clients_csv_lists_them_after_the_others(tmp_path: Path) -> None:
    built = made()
    record = carry_out(built, tmp_path / "run")
    table, last = record.clients, record.metrics[-1]
    assert [(row["client"], row["newcomer"]) for row in table] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]
    for i, row in enumerate(table):
        data = (*built.federation.clients, *built.federation.held_out_clients)[i]
        assert [row[f"samples_{k}"] for k in range(CLASSES)] == np.bincount(data.y, minlength=CLASSES).tolist()
        for view in ("pre", "post", "global"):
            expected = last["accuracy"][view]["own"]["clients"][i] if i < 3 else None
            assert row[f"{view}_own"] == expected
        for view in ("before", "after"):
            expected = last["newcomers"][view]["balanced"]["clients"][i - 3] if i >= 3 else None
            assert row[f"{view}_balanced"] == expected
    shown = unseen_clients([record.summary])
    assert shown is not None
    file = io.StringIO()
    show(shown, Console(file=file, width=100))
    accuracy = record.summary["newcomers"]["accuracy"]
    figures = [accuracy[view][test]["mean"] for test in ("balanced", "own") for view in ("before", "after")]
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["fedavg", *(f"{value:.2f}" for value in figures)] in lines

"""The round loop and its record: who takes part, what is evaluated, what it costs, what goes wrong."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmate.core.options import options_of
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.data.mnist import Digits
from fedmate.experiment.build import Built, build
from fedmate.experiment.callback import Callback, RoundSummary, Run
from fedmate.experiment.config import parse_set
from fedmate.experiment.prepare import Request, begin, compose
from fedmate.experiment.record import Record
from fedmate.experiment.run import run, sample_participants
from fedmate.methods import METHODS

SMALL = (
    "rounds=3",
    "eval_every=2",
    "partition.clients=4",
    "partition.examples=20",
    "training.epochs=1",
    "training.learning_rate=0.1",
)

EXTRACTOR = 4 * ((16 * 1 * 9 + 16) + (32 * 16 * 9 + 32) + (128 * 64 + 64))
CLASSIFIER = 4 * (64 * 10 + 10)
"""Bytes of `digits_cnn` in float32."""


@dataclass(frozen=True, kw_only=True)
class FewDigits(Dataset):
    """The first digits only: evaluation is what takes time here."""

    def load(self, folder: Path) -> Arrays:
        everything = Digits().load(Path())
        return everything._replace(train=Samples(everything.train.x[:400], everything.train.y[:400]))


@pytest.fixture(autouse=True)
def _few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._rows, "few", FewDigits)


class Diary(Callback):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, float | None]] = []

    def run_started(self, run: Run) -> None:
        assert run.done == 0

    def round_ended(self, summary: RoundSummary) -> None:
        self.rounds.append((summary.round, summary.primary))


def make(*assignments: str, method: str = "fedavg") -> Built:
    # The view that tunes a copy of the classifier takes most of the time and changes nothing else.
    shorter = ["method.tuning_epochs=0"] if "tuning_epochs" in options_of(METHODS[method]) else []
    (experiment,) = compose(Request(None, [method], "few", parse_set([*SMALL, *shorter, *assignments])))
    return build(experiment)


def carry_out(folder: Path, *assignments: str, method: str = "fedavg") -> dict[str, Any]:
    return start(make(*assignments, method=method), folder, Diary())


def start(made: Built, folder: Path, diary: Diary) -> dict[str, Any]:
    """Begin a run and run all of it."""
    folder.parent.mkdir(exist_ok=True)
    begin(folder, made)
    return run(made, folder, [diary])


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# The record.


@pytest.mark.parametrize(
    ("rounds", "every", "evaluated"),
    [(5, 2, [2, 4, 5]), (2, 10, [2])],
)
def test_the_last_round_is_always_evaluated(tmp_path: Path, rounds: int, every: int, evaluated: list[int]) -> None:
    diary = Diary()
    summary = start(make(f"rounds={rounds}", f"eval_every={every}", method="local"), tmp_path / "run", diary)
    metrics = Record(tmp_path / "run").metrics
    assert [row["round"] for row in metrics] == evaluated
    assert [done for done, _ in diary.rounds] == list(range(1, rounds + 1))
    latest = {row["round"]: row["accuracy"]["post"]["balanced"]["mean"] for row in metrics}
    assert [headline for _, headline in diary.rounds] == [
        latest[max(known)] if (known := [r for r in evaluated if r <= done]) else None for done, _ in diary.rounds
    ]
    assert summary["headline"]["mean"] == latest[rounds]


# Cost.


@pytest.mark.parametrize(
    ("method", "assignments", "shared"),
    [
        ("local", [], {}),
        ("fedavg", ["dtype=float64"], {"extractor": 2 * EXTRACTOR, "classifier": 2 * CLASSIFIER}),
    ],
)
def test_communication_is_counted_by_part(
    tmp_path: Path, method: str, assignments: list[str], shared: dict[str, int]
) -> None:
    summary = carry_out(tmp_path / "run", "participation=0.5", "rounds=3", "eval_every=1", *assignments, method=method)
    down, up, messages = shared, {**shared, "bookkeeping": 8} if shared else {}, 3 * 2
    assert summary["bytes_down_items"] == {item: messages * size for item, size in down.items()}
    assert summary["bytes_up_items"] == {item: messages * size for item, size in up.items()}
    assert (summary["bytes_down"], summary["bytes_up"]) == (messages * sum(down.values()), messages * sum(up.values()))
    rows = read_csv(tmp_path / "run" / "rounds.csv")
    assert len(rows) == messages
    for row in rows:
        assert {key[5:]: int(row[key]) for key in row if key.startswith("down_")} == down
        assert {key[3:]: int(row[key]) for key in row if key.startswith("up_")} == up
    for evaluated in Record(tmp_path / "run").metrics:
        so_far = 2 * evaluated["round"]
        assert evaluated["bytes"]["down"] == {item: so_far * size for item, size in down.items()}
        assert evaluated["bytes"]["up"] == {item: so_far * size for item, size in up.items()}


# Chance.


def test_some_clients_take_part_and_post_is_theirs_alone(tmp_path: Path) -> None:
    carry_out(tmp_path / "run", "partition.clients=7", "participation=0.3", "eval_every=1", "rounds=4")
    rows = read_csv(tmp_path / "run" / "rounds.csv")
    for evaluated in Record(tmp_path / "run").metrics:
        took_part = {int(row["client"]) for row in rows if row["round"] == str(evaluated["round"])}
        assert took_part == set(sample_participants(0, evaluated["round"] - 1, 7, 0.3))
        assert len(took_part) == 2
        for test in ("balanced", "own"):
            post = evaluated["accuracy"]["post"][test]["clients"]
            assert {i for i, value in enumerate(post) if value is not None} == took_part
            assert sum(v for v in post if v is not None) / 2 == pytest.approx(
                evaluated["accuracy"]["post"][test]["mean"]
            )
            assert None not in evaluated["accuracy"]["pre"][test]["clients"]
    last = {int(row["client"]) for row in rows if row["round"] == "4"}
    clients = read_csv(tmp_path / "run" / "clients.csv")
    assert {int(row["client"]) for row in clients if row["post_balanced"]} == last
    assert {int(row["client"]) for row in clients if row["pre_balanced"]} == set(range(7))


@settings(max_examples=60)
@given(
    seed=st.integers(-(2**70), 2**70),
    t=st.integers(0, 10**6),
    clients=st.integers(1, 200),
    percent=st.integers(1, 100),
)
def test_participants_are_a_share_of_the_clients(seed: int, t: int, clients: int, percent: int) -> None:
    chosen = sample_participants(seed, t, clients, percent / 100)
    assert len(chosen) == max(1, clients * percent // 100)
    assert list(chosen) == sorted(set(chosen))
    assert 0 <= chosen[0] <= chosen[-1] < clients
    assert chosen == sample_participants(seed, t, clients, percent / 100)

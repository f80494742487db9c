"""Who holds what: the split of an experiment, its record, and the data it becomes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmate.data import DATASETS, Arrays, Dataset, Normalisation, Samples, content_digest
from fedmate.errors import UserError
from fedmate.experiment.config import parse_set
from fedmate.experiment.inputs import NO_INPUTS, ClientSplit, UserInputs, held_out, make_federation, split_samples
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.sections import Experiment

CLASSES, EACH, TESTED = 5, 120, 4


def samples(labels: list[int], first: int) -> Samples:
    """Images that show their own number, counted from `first`."""
    y = np.array(labels, dtype=np.int64)
    x = (first + np.arange(len(y))).reshape(-1, 1, 1, 1) * np.ones((1, 1, 2, 2))
    return Samples(x.astype(np.float32), y)


@dataclass(frozen=True, kw_only=True)
class Toy(Dataset):
    """Five classes of 120 samples, the last class of 60; a test split and clients of its own."""

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        return {"partition": {"examples": 15}}

    def load(self, folder: Path) -> Arrays:
        train = samples([k for i in range(EACH) for k in range(CLASSES) if k < CLASSES - 1 or i % 2], 0)
        test = samples([k for k in range(CLASSES) for _ in range(TESTED)], 10_000)
        owners = np.arange(len(train.y), dtype=np.int64) % 7
        return Arrays(train, test, tuple("abcde"), Normalisation((2.0,), (4.0,)), owners)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return ((0, 1), (2,), (3,))


@dataclass(frozen=True, kw_only=True)
class Whole(Toy):
    """The same without a test split."""

    def load(self, folder: Path) -> Arrays:
        return super().load(folder)._replace(test=None)


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in (("toy", Toy), ("whole", Whole)):
        monkeypatch.setitem(DATASETS._rows, name, row)


def experiment_of(*assignments: str, dataset: str | None = "toy", given: UserInputs = NO_INPUTS) -> Experiment:
    settings = parse_set(["device=cpu", *([] if given.data else ["partition.name=iid"]), *assignments])
    (experiment,) = compose(Request(dataset=dataset, settings=settings, inputs=given))
    return experiment


def test_a_file_that_a_data_set_of_ones_own_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "load", lambda self, folder: np.load(folder / "ticks.npy"))
    with pytest.raises(UserError) as caught:
        split_samples(experiment_of(), UserInputs(folder=tmp_path))
    assert f"`toy`, but `{tmp_path / 'ticks.npy'}` does not exist; put it there" in str(caught.value)


def split(*assignments: str, dataset: str = "toy") -> ClientSplit:
    return split_samples(experiment_of(*assignments, dataset=dataset), NO_INPUTS)


TRAIN = Toy().load(Path()).train


def test_clients_hold_rows_of_the_training_part_and_the_test_split_is_the_data_sets() -> None:
    made = split()
    assert [len(rows) for rows in made.clients] == [15] * 20
    held = np.concatenate(made.clients)
    assert len({*held.tolist()}) == 300
    assert all((np.diff(rows) > 0).all() for rows in made.clients)
    assert (made.held_out, made.validation) == ([], None)
    assert made.test.y.tolist() == [k for k in range(CLASSES) for _ in range(TESTED)]
    expected = np.stack([np.bincount(TRAIN.y[rows], minlength=CLASSES) for rows in made.clients])
    np.testing.assert_array_equal(made.class_counts(), expected)


def test_a_data_set_without_a_test_split_is_tested_on_what_nobody_holds() -> None:
    made = split(dataset="whole")
    held = {*np.concatenate(made.clients).tolist()}
    assert made.test.x[:, 0, 0, 0].tolist() == [row for row in range(len(TRAIN.y)) if row not in held]
    np.testing.assert_array_equal(made.test.y, TRAIN.y[made.test.x[:, 0, 0, 0].astype(int)])


def test_validation_samples_are_held_by_nobody_and_even_over_classes() -> None:
    made = split("evaluate_on=validation", "validation_per_class=12")
    assert made.validation is not None
    assert not {*made.validation.tolist()} & {*np.concatenate(made.clients).tolist()}
    assert np.bincount(TRAIN.y[made.validation]).tolist() == [12] * CLASSES
    np.testing.assert_array_equal(made.test.y, TRAIN.y[made.validation])


def test_too_few_validation_samples_say_how_many_there_are() -> None:
    counts = split().class_counts().sum(0)
    left = EACH // 2 - int(counts[-1])
    wish = "evaluate_on=validation"
    with pytest.raises(UserError, match=rf"leave {left} training samples of class `e`; set it to at most {left}\.$"):
        split(wish, f"validation_per_class={left + 1}")
    assert len(split(wish, f"validation_per_class={left}").test.y) == left * CLASSES


def test_some_clients_stay_out_of_training() -> None:
    plain, made = split(), split("holdout_clients=0.29")
    away = sorted(held_out(experiment_of("holdout_clients=0.29"), 20))
    assert len(away) == 5
    stay = [i for i in range(20) if i not in away]
    for rows, i in zip([*made.clients, *made.held_out], [*stay, *away], strict=True):
        np.testing.assert_array_equal(rows, plain.clients[i])
    np.testing.assert_array_equal(made.class_counts()[15:], plain.class_counts()[away])


def test_the_account_is_json_with_everybodys_rows() -> None:
    made = split("holdout_clients=0.2", "evaluate_on=validation", "validation_per_class=3")
    assert made.validation is not None
    record = json.loads(made.to_json())
    assert list(record)[:6] == ["sha256", "data_sha256", "classes", "names", "clients", "newcomers"]
    assert record["sha256"] == made.sha256
    assert record["data_sha256"] == made.data_sha256 == content_digest(made.arrays)
    assert record["classes"] == list("abcde")
    assert record["clients"] == [rows.tolist() for rows in made.clients]
    assert record["newcomers"] == [rows.tolist() for rows in made.held_out]
    assert record["validation"] == made.validation.tolist()
    # A line for each client, so that two accounts can be compared line by line.
    assert made.to_json().splitlines()[6].rstrip(",") == json.dumps(made.clients[0].tolist())


def test_the_digest_sees_every_part() -> None:
    made = split("holdout_clients=0.2")
    rows = [*made.clients[1:], np.append(made.clients[0][:-1], made.clients[0][-1] + 1)]
    others = [
        dataclasses.replace(made, data_sha256="other"),
        dataclasses.replace(made, clients=rows),
        dataclasses.replace(made, clients=[*made.clients, *made.held_out], held_out=[]),
        dataclasses.replace(made, clients=[np.concatenate(made.clients[:2]), *made.clients[2:]]),
        dataclasses.replace(made, validation=np.array([], dtype=np.int64)),
    ]
    assert len({made.sha256, *(other.sha256 for other in others)}) == 6


def test_clients_read_their_own_samples() -> None:
    experiment = experiment_of("holdout_clients=0.2", "partition.redundant_clients=0.5")
    made = split_samples(experiment, NO_INPUTS)
    federation = make_federation(experiment, made)
    assert (len(federation.clients), len(federation.held_out_clients), federation.num_classes) == (16, 4, CLASSES)
    everyone = (*federation.clients, *federation.held_out_clients)
    for data, rows in zip(everyone, (*made.clients, *made.held_out), strict=True):
        # An image shows its number, less 2 and by 4.
        assert torch.equal(data.x[:, 0, 0, 0], torch.from_numpy((rows - 2) / 4).float())
        assert data.y.tolist() == TRAIN.y[rows].tolist()
        assert bool(data.mask.all())
    assert torch.equal(federation.test.x[:, 0, 1, 1], (torch.arange(20) + 10_000 - 2).float() / 4)
    assert federation.test.y.tolist() == made.test.y.tolist()

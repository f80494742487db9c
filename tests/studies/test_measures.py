"""What is taken from a run besides its figures is the run's own, and its absence is said in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fedmate.studies.measures import arrays_of, counted_of
from fedmate.studies.store import Store
from fedmate.studies.workload import flops_of_update

import fedmate
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.build import build
from fedmate.experiment.prepare import stored_experiment
from fedmate.experiment.record import Record
from fedmate.experiment.run import initial_server
from fedmate.studies import measures

SETTINGS: dict[str, Any] = {"rounds": 2, "partition.clients": 4, "training.epochs": 1, "training.batch_size": 20}
SMALL: dict[str, Any] = {"partition.examples": 20}


def run(folder: Path, method: str, **more: Any) -> Record:
    settings = SETTINGS | {key.replace("__", "."): value for key, value in more.items()}
    return fedmate.run(method=method, set=settings, out=folder / method, progress=False)


def flops(record: Record) -> int:
    found = counted_of(build(stored_experiment(record.folder)), ["flops"])
    assert list(found) == ["flops_per_round"]
    number: int = found["flops_per_round"]
    return number


# -------------------- operations


def test_operations_are_those_of_every_participant(tmp_path: Path) -> None:
    """Clients of different sizes, some of whom stay away, and one that is no client yet."""
    dealt = {"partition__name": "dirichlet", "partition__examples": "none", "training__batch_size": 200}
    record = run(tmp_path, "fedrep", rounds=3, participation=0.67, holdout_clients=0.25, **dealt)
    built = build(stored_experiment(record.folder))
    sizes = [flops_of_update(built.method, initial_server(built), data) for data in built.federation.clients]
    present = [row["client"] for row in record.rounds]
    assert len({*sizes}) == 3
    assert len(present) == 6
    assert flops(record) == round(sum(sizes[client] for client in present) / 3)


def test_a_network_that_looks_at_numbers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> int:
        return int(torch.empty(1, device="meta").item())

    record = run(tmp_path, "local", **SMALL)
    monkeypatch.setattr(measures, "flops_of_update", look)
    with pytest.raises(UserError, match=r"`measures` has `flops`, but those of `local` cannot be counted .*; leave it"):
        flops(record)


# -------------------- prototypes


@pytest.mark.parametrize("method", ["fedfa", "fedmate", "fedpac", "fedproto"])
def test_prototypes_lie_where_their_client_is(method: str, tmp_path: Path) -> None:
    """Four clients of which two take part, and a fifth that is no client yet."""
    record = run(tmp_path, method, participation=0.5, partition__clients=5, holdout_clients=0.2, **SMALL)
    last = record.diagnostics(2)
    found = (arrays_of(record, ["prototypes"]) or {})["prototypes"]
    present = sorted(row["client"] for row in record.rounds if row["round"] == 2)
    assert found.shape == (4, 10, last["clients/prototypes"].shape[-1])
    assert torch.equal(found[present], last["clients/prototypes"])
    assert found.isfinite().all(-1).all(-1).tolist() == [i in present for i in range(4)]


def test_prototypes_of_who_diverged_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(tmp_path, "fedproto", **SMALL)
    last = record.diagnostics(2)
    last["clients/valid"] = torch.tensor([True, False, True, True])
    monkeypatch.setattr(Record, "diagnostics", lambda self, number: last)
    found = (arrays_of(record, ["prototypes"]) or {})["prototypes"]
    assert found.isnan().all(-1).all(-1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("method", ["local", "scaffold"])
def test_methods_without_prototypes_are_named(method: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        arrays_of(run(tmp_path, method, **SMALL), ["prototypes"])
    assert str(caught.value) == (
        f"`measures` has `prototypes`, but `{method}` records none; leave it out, or run methods that have some."
    )


def test_a_run_that_diverged_has_none_and_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        run(tmp_path, "fedproto", training__learning_rate=1e30, **SMALL)
    record, store = Record(tmp_path / "fedproto"), Store(tmp_path / "store")
    arrays = arrays_of(record, ["flops", "prototypes"])
    store.keep("cell", {}, arrays)
    assert store.arrays("cell") is not None
    assert (store.arrays("cell") or {})["prototypes"].shape == (0, 0, 0)
    assert flops(record) > 0


def test_measures_without_arrays_take_none(tmp_path: Path) -> None:
    record = run(tmp_path, "local", **SMALL)
    assert arrays_of(record, ["flops"]) is None
    assert arrays_of(record, []) is None

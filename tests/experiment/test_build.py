"""An experiment becomes the objects that run it, the same ones each time, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmate.backends.sequential import Sequential
from fedmate.backends.vectorised import Vectorised
from fedmate.core import Augmentation, Federation, client_data, flatten
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.errors import UserError
from fedmate.experiment.build import Built, _calibration_notes, build, flops_per_step
from fedmate.experiment.config import ConfigSource, parse_set, resolve
from fedmate.methods import METHODS


@dataclass(frozen=True, kw_only=True)
class Split(Dataset):
    """Has a test split of its own, without any sample of class 3."""

    @property
    def defaults(self) -> dict[str, dict[str, Any]]:
        return {"partition": {"name": "iid", "clients": 3}}

    def load(self, folder: Path) -> Arrays:
        def samples(labels: list[int]) -> Samples:
            y = np.array(labels, dtype=np.int64)
            return Samples((y[:, None, None, None] + np.zeros((len(y), 1, 8, 8))).astype(np.float32), y)

        return Arrays(samples([0, 1, 2, 3] * 6), samples([0, 1, 2, 2, 1]), ("a", "b", "c", "d"))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Keep small operations from waiting for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def built(*assignments: str) -> Built:
    return build(resolve([ConfigSource("test", {"partition": {"clients": 4}}), parse_set(assignments)]))


def refused(*assignments: str) -> str:
    with pytest.raises(UserError) as caught:
        built(*assignments)
    return str(caught.value)


def standardised_digits() -> torch.Tensor:
    arrays = DATASETS["digits"]().load(Path())
    source = arrays.normalisation.source(arrays.train.x, Augmentation(), torch.float32, "cpu")
    return source.read(torch.arange(1797))


def rows(x: torch.Tensor) -> list[bytes]:
    return [sample.numpy().tobytes() for sample in x.cpu()]


def test_auto_is_decided_and_written_down() -> None:
    general = built().experiment.general
    assert general.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert general.backend == "vectorised"


def test_auto_takes_the_loop_for_large_steps_on_a_cpu() -> None:
    """At 22 MFLOP a step mapping over clients pays, at 137 (features of width 8,192) it does not."""
    assert built("device=cpu").experiment.general.backend == "vectorised"
    assert built("device=cpu", "model.width=8192").experiment.general.backend == "sequential"


def test_the_work_of_a_step_is_counted() -> None:
    """Twice the multiplications of both convolutions and both linear layers, forward and twice that backward."""
    made = built()
    forward = 2 * (64 * 16 * 9 + 16 * 32 * 16 * 9 + 128 * 64 + 64 * 10)
    assert flops_per_step(made.method, made.federation) == 3 * 40 * forward


def test_what_is_named_is_left_alone() -> None:
    general = built("device=cpu", "backend=sequential", "chunk_size=3").experiment.general
    assert (general.device, general.backend, general.chunk_size) == ("cpu", "sequential", 3)


def test_a_model_that_cannot_be_mapped_runs_one_client_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vectorised, "refusal", classmethod(lambda *args: "vmap: no rule for it"))
    made = built("backend=vectorised")
    assert made.experiment.general.backend == "sequential"
    assert isinstance(made.backend, Sequential)
    assert any("`vectorised` cannot run this model (vmap: no rule for it)" in note for note in made.notes)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rounds=20", "eval_every=20"], ["after round 20: `pre` shows each client's own there."]),
        (["rounds=45", "eval_every=20"], ["after rounds 20, 40: `pre` shows each client's own there."]),
        (["rounds=60", "eval_every=30"], ["after round 60: `pre` shows each client's own there."]),
        (["rounds=80", "eval_every=20"], ["after rounds 20, 40, 60, 80: `pre` shows each client's own there."]),
        (["rounds=150", "eval_every=5"], ["after rounds 20, 40, 60, 80, 100, 120, ...: `pre` shows each"]),
        (["rounds=160", "eval_every=5"], ["after rounds 20, 40, 60, 80, 100, 120, ... and the last: `pre`"]),
        (["rounds=45", "eval_every=15"], []),
    ],
)
def test_rounds_after_which_clients_hold_their_own_extractors_are_named(settings: list[str], said: list[str]) -> None:
    """On digits the extractor stays at home once in twenty rounds."""
    notes = [note for note in built("method.name=fedmate", *settings).notes if "does not send extractor" in note]
    assert len(notes) == len(said)
    for note, sentence in zip(notes, said, strict=True):
        assert note.startswith(f"fedmate does not send extractor {sentence}")


@pytest.mark.parametrize("name", ["nonsense", "", "cuda:-1", "cuda:x", "mps", "meta", "cuda:999"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    sentence = refused(f"device={name}")
    assert f"`device` is `{name}`" in sentence
    assert "use `cpu`" in sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it is there")
def test_a_missing_gpu_is_refused() -> None:
    sentence = refused("device=cuda")
    assert "`device` is `cuda`" in sentence
    assert "0 CUDA devices" in sentence


def test_clients_hold_what_the_partition_dealt_and_the_test_split_is_the_rest() -> None:
    federation = built("partition.clients=5", "partition.examples=30").federation
    assert [len(data.y) for data in federation.clients] == [30] * 5
    assert all(bool(data.mask.all()) for data in (*federation.clients, federation.test))
    assert len(federation.test.y) == 1797 - 150
    assert federation.num_classes == 10
    # Every digit is at exactly one place (some images occur twice in the data set itself).
    everything = sorted(row for data in (*federation.clients, federation.test) for row in rows(data.x))
    assert everything == sorted(rows(standardised_digits()))


def test_samples_keep_their_labels() -> None:
    federation, arrays = built().federation, DATASETS["digits"]().load(Path())
    labels = {(row, int(y)) for row, y in zip(rows(standardised_digits()), arrays.train.y, strict=True)}
    for data in (*federation.clients, federation.test):
        assert {(row, int(y)) for row, y in zip(rows(data.x), data.y, strict=True)} <= labels


def test_the_same_seed_deals_and_starts_alike_whatever_the_precision() -> None:
    one, again, other, precise = built(), built(), built("seed=1"), built("dtype=float64")
    for i in range(4):
        assert torch.equal(one.federation.clients[i].x, again.federation.clients[i].x)
        assert torch.allclose(one.federation.clients[i].x, precise.federation.clients[i].x.float(), rtol=0, atol=1e-6)
    assert not torch.equal(one.federation.clients[0].x, other.federation.clients[0].x)
    starts = [flatten(b.method.setup.model.init_params()) for b in (one, again, other, precise)]
    assert all(torch.equal(leaf, starts[1][path]) for path, leaf in starts[0].items())
    assert all(torch.equal(leaf, starts[3][path].float()) for path, leaf in starts[0].items())
    assert not torch.equal(starts[0]["classifier/weight"], starts[2]["classifier/weight"])


def test_the_seed_takes_any_whole_number() -> None:
    first, second = built("seed=-1"), built(f"seed={2**64 + 5}")
    assert torch.equal(second.federation.clients[0].x, built("seed=5").federation.clients[0].x)
    assert not torch.equal(first.federation.clients[0].x, second.federation.clients[0].x)


def test_building_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(123)
    np.random.seed(123)
    expected = torch.get_rng_state(), np.random.rand()
    np.random.seed(123)
    built()
    assert torch.equal(torch.get_rng_state(), expected[0])
    assert np.random.rand() == expected[1]


def test_the_parts_fit_together() -> None:
    made = built("dtype=float64", "rounds=7", "method.name=fedper", "method.personal_layers=2", "model.width=5")
    setup = made.method.setup
    assert made.federation.clients[0].x.dtype == torch.float64
    params = setup.model.init_params()
    assert {leaf.dtype for leaf in flatten(params).values()} == {torch.float64}
    assert params["classifier"]["weight"].shape == (10, 5)
    assert (setup.rounds, setup.num_classes, setup.training) == (7, 10, made.experiment.training)
    assert vars(made.method)["personal_layers"] == 2
    assert isinstance(made.backend, Vectorised)
    assert vars(made.backend.method)["personal_layers"] == 2
    assert made.backend.federation is made.federation
    assert len(made.backend.clients) == 4


def test_small_clients_are_pointed_out() -> None:
    (note,) = built().notes
    assert "`training.batch_size` is 50" in note
    assert "all clients hold 40 samples" in note
    assert built("training.batch_size=40").notes == []
    dirichlet = ("partition.name=dirichlet", "partition.clients=12", "partition.examples=100")
    sizes = sorted(len(data.y) for data in built(*dirichlet).federation.clients)
    (note,) = built(*dirichlet, f"training.batch_size={sizes[-1]}").notes
    small = [size for size in sizes if size < sizes[-1]]
    assert f"{len(small)} clients hold {small[0]} to {small[-1]} samples" in note


def test_a_data_set_may_bring_its_own_test_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._rows, "split", Split)
    made = build(resolve([parse_set(["dataset.name=split", "training.batch_size=8"])]))
    assert made.federation.test.y.tolist() == [0, 1, 2, 2, 1]
    assert [len(data.y) for data in made.federation.clients] == [8, 8, 8]
    assert made.notes == ["the test split has no sample of class 3: left out of averages."]


@pytest.mark.parametrize(
    ("assignments", "fragments"),
    [
        (["partition.clients=1798"], ["`partition.clients` is 1798", "1797 samples", "at most"]),
        (["partition.clients=5000", "partition.name=iid"], ["`partition.clients` is 5000", "1797 samples"]),
        (
            ["partition.name=pathological", "partition.classes_per_client=11"],
            ["`partition.classes_per_client` is 11", "10 classes", "at most"],
        ),
        (["partition.examples=450"], ["`partition.examples`", "at most"]),
        (["partition.name=iid", "partition.clients=1797"], ["`partition.examples`", "test split", "lower"]),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(assignments: list[str], fragments: list[str]) -> None:
    sentence = refused(*assignments)
    assert [fragment for fragment in fragments if fragment not in sentence] == []
    assert "\n" not in sentence


def test_a_precision_that_a_cpu_does_not_have_is_pointed_out() -> None:
    assert built("training.batch_size=40", "precision=strict").notes == []
    (note,) = built("training.batch_size=40", "precision=bf16").notes
    assert "a CPU multiplies numbers as they are" in note


@pytest.mark.parametrize(("classes", "said"), [(1, True), (2, False)])
def test_clients_that_calibration_leaves_nothing_to_learn_are_counted(classes: int, said: bool) -> None:
    partition = {"name": "pathological", "classes_per_client": classes, "clients": 3}
    method = {"name": "fedavg", "calibration": 1.0}
    notes = build(resolve([ConfigSource("test", {"partition": partition, "method": method})])).notes
    assert [note for note in notes if "calibration" in note] == [
        "`method.calibration` is on, and all clients hold one class: there class shares explain every label, so that "
        "cross-entropy teaches nothing, and `own` accuracy is 100 % whatever the model is."
    ] * said
    method["absent_share"] = 0.05
    notes = build(resolve([ConfigSource("test", {"partition": partition, "method": method})])).notes
    assert [note for note in notes if "calibration" in note] == [
        "`method.calibration` is on, and all clients hold one class: there `own` accuracy is 100 % whatever the model "
        "is."
    ] * said
    plain = build(resolve([ConfigSource("test", {"partition": partition, "method": {"name": "fedavg"}})])).notes
    assert not any("calibration" in note for note in plain)


def test_what_is_said_about_calibration() -> None:
    """One client of a single class is one, and options that change nothing are named."""
    plain = METHODS["fedavg"](setup=built().method.setup)
    clients = [client_data(torch.zeros(len(y), 64), torch.tensor(y)) for y in ([0, 1], [0, 2], [2, 2], [1, 1])]

    def notes(count: int, **options: Any) -> list[str]:
        return _calibration_notes(replace(plain, **options), Federation(tuple(clients[:count]), clients[0], 10))

    (note,) = notes(3, calibration=1.0)
    assert "and 1 client holds one class: there class shares" in note
    (note,) = notes(4, calibration=0.5)
    assert "and 2 clients hold one class: there class shares" in note
    assert notes(2, calibration=1.0, own_prior=True) == [
        "`method.own_prior` is on beside `method.calibration`, which does the same: it changes nothing."
    ]
    assert notes(2, absent_share=0.1) == [
        "`method.absent_share` is given, but `method.calibration` is 0: it changes nothing."
    ]
    assert notes(2, absent_share=0.1, calibration=1.0) == notes(2, own_prior=True) == notes(4) == []
    assert notes(3, own_prior=True) == [
        "`method.own_prior` is on, and 1 client holds one class: there `own` accuracy of a model that all share is "
        "100 % whatever the model is."
    ]
    personal: dict[str, Any] = {"setup": plain.setup, "own_prior": True}
    (note,) = _calibration_notes(METHODS["fedrep"](**personal), Federation(tuple(clients[:2]), clients[0], 10))
    assert note.startswith("`method.own_prior` is on: it changes the view `global` only")
    assert notes(2, absent_share=0.6, calibration=1.0) == [
        "`method.absent_share` is 0.6, but there are clients of which a class has a share of 0.5: one that they lack "
        "counts for more."
    ]

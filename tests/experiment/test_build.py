"""An experiment becomes the objects that run it, the same ones each time, or is refused."""

from __future__ import annotations

import pytest
import torch

from fedmate.backends.sequential import Sequential
from fedmate.backends.vectorised import Vectorised
from fedmate.core import flatten
from fedmate.errors import UserError
from fedmate.experiment.build import Built, build, flops_per_step
from fedmate.experiment.config import ConfigSource, parse_set, resolve


def built(*assignments: str) -> Built:
    return build(resolve([ConfigSource("test", {"partition": {"clients": 4}}), parse_set(assignments)]))


def refused(*assignments: str) -> str:
    with pytest.raises(UserError) as caught:
        built(*assignments)
    return str(caught.value)


def test_auto_takes_the_loop_for_large_steps_on_a_cpu() -> None:
    """At 22 MFLOP a step mapping over clients pays, at 137 (features of width 8,192) it does not."""
    assert built("device=cpu").experiment.general.backend == "vectorised"
    assert built("device=cpu", "model.width=8192").experiment.general.backend == "sequential"


def test_the_work_of_a_step_is_counted() -> None:
    """Twice the multiplications of both convolutions and both linear layers, forward and twice that backward."""
    made = built()
    forward = 2 * (64 * 16 * 9 + 16 * 32 * 16 * 9 + 128 * 64 + 64 * 10)
    assert flops_per_step(made.method, made.federation) == 3 * 40 * forward


def test_a_model_that_cannot_be_mapped_runs_one_client_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Vectorised, "refusal", classmethod(lambda *args: "vmap: no rule for it"))
    made = built("backend=vectorised")
    assert made.experiment.general.backend == "sequential"
    assert isinstance(made.backend, Sequential)
    assert any("`vectorised` cannot run this model (vmap: no rule for it)" in note for note in made.warnings)


@pytest.mark.parametrize("name", ["nonsense", "cuda:999"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    sentence = refused(f"device={name}")
    assert f"`device` is `{name}`" in sentence
    assert "use `cpu`" in sentence


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


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        (
            ["training.batch_size=50"],
            ["is 50, but 4 of 4 clients hold fewer samples (the fewest are 40)"],
        ),
        (["training.learning_rate=0"], ["`training.learning_rate` is 0: with it clients learn nothing."]),
        (["rounds=150", "eval_every=5", "method.name=fedmate"], ["after round 20, 40, 60, 80, 100, 120, ...: `pre`"]),
        (["objective.own_prior=true", "objective.calibration=1"], ["`objective.own_prior` changes nothing"]),
        (["objective.calibration=1", "partition.classes_per_client=2"], []),
        (
            ["objective.calibration=1", "partition.classes_per_client=1"],
            ["4 of 4 clients hold a single class: their loss is constant and their `own` accuracy is 100 %"],
        ),
    ],
)
def test_what_surprises_later_is_a_warning_first(settings: list[str], fragments: list[str]) -> None:
    if any("classes_per_client" in setting for setting in settings):
        settings = ["partition.name=pathological", "partition.examples=none", *settings]
    size = [] if any("batch_size" in setting for setting in settings) else ["training.batch_size=10"]
    method = [] if any("method.name" in setting for setting in settings) else ["method.name=fedavg"]
    found = built(*size, *method, *settings).warnings
    assert len(found) == len(fragments)
    for sentence, fragment in zip(found, fragments, strict=True):
        assert fragment in sentence


def test_label_smoothing_reaches_the_task() -> None:
    assert built("objective.label_smoothing=0.1").method.setup.model.task.label_smoothing == 0.1

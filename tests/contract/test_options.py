"""No dead parameters: every option names a setting in which it changes the result, and does."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

from fedmate.core import Training, Tree, flatten
from fedmate.core.options import options_of
from fedmate.methods import METHODS

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab


class Change(NamedTuple):
    """A setting in which an option matters.

    Attributes:
        values: two values that must give different results.
        given: what the other options are meanwhile.
        evaluation: whether it changes only models that are made for evaluation.
    """

    values: tuple[Any, Any]
    given: dict[str, Any] = {}  # noqa: RUF012 - the default of a named tuple, never written to
    evaluation: bool = False


METHOD_OPTIONS: dict[tuple[str, str], Change] = {
    ("fedavg", "tuning_epochs"): Change((2, 1), evaluation=True),
    ("fedmate", "alternate"): Change((False, True)),
    ("fedmate", "beta"): Change(("softmax", "probability")),
    ("fedmate", "ccf"): Change((True, False)),
    ("fedmate", "cci"): Change((True, False)),
    ("fedmate", "centre_weight"): Change((0.8, 0.2)),
    ("fedmate", "cft"): Change(("all", "null")),
    ("fedmate", "classifier_epochs"): Change((1, 2)),
    ("fedmate", "classifier_learning_rate"): Change((0.1, 0.05)),
    ("fedmate", "classifier_start"): Change(("own", "global")),
    ("fedmate", "discriminator"): Change(("bce", "wgan_gp")),
    ("fedmate", "discriminator_learning_rate"): Change((0.01, 0.001)),
    ("fedmate", "fusion_reduction"): Change(("mean", "sum")),
    ("fedmate", "fusion_weight"): Change((0.6, 0.2)),
    ("fedmate", "integration_learning_rate"): Change((0.01, 0.1)),
    ("fedmate", "integration_steps"): Change((1, 2)),
    ("fedmate", "kappa"): Change(("shrink", "constant")),
    ("fedmate", "mask_unknown"): Change((False, True)),
    ("fedmate", "mps"): Change((True, False)),
    ("fedmate", "own_prototypes"): Change((False, True)),
    ("fedmate", "proto_augment"): Change((False, True)),
    ("fedmate", "reduction"): Change(("mean", "sum")),
    ("fedmate", "similarity"): Change(("cosine", "exp_cosine")),
    ("fedper", "personal_layers"): Change((1, 2)),
    ("fedrep", "classifier_epochs"): Change((1, 2)),
    ("fedrep", "classifier_learning_rate"): Change((0.1, 0.05)),
    ("fedrep", "tuning_epochs"): Change((2, 1), evaluation=True),
}
"""By method and option. A new option needs a row here."""

TRAINING_OPTIONS: dict[str, tuple[Any, Any]] = {
    "batch_size": (3, 2),
    "epochs": (2, 1),
    "learning_rate": (0.1, 0.05),
    "momentum": (0.5, 0.0),
    "weight_decay": (0.01, 0.0),
}
"""By option of `[training]`: two values that must give different results with every method."""


class Outcome(NamedTuple):
    """The models two rounds lead to: those clients train and hold, and those made for evaluation only."""

    trained: Tree
    evaluated: Tree


@cache
def outcome(lab: Lab) -> Outcome:
    """Run two rounds with everybody. Models are compared, not states: their structure is the same whatever is set."""
    method, trained, evaluated = lab.method, {}, {}
    server, clients = lab.server(), lab.clients()
    for t in range(2):
        with torch.no_grad():
            for i in lab.everyone:
                download, data, key = lab.received(server, t, i), lab.federation.clients[i], lab.client_key(t, i)
                held = method.personal_params(clients[i], download)
                trained[f"{t} {i} pre"] = held
                trained[f"{t} {i} post"] = method.local_update(clients[i], download, data, key).params
                evaluated[f"{t} {i} pre"] = method.personalise(held, data, key)
                evaluated |= {
                    f"{t} {i} {name}": params
                    for name, params in method.extra_views(clients[i], download, data, key).items()
                }
        server, clients = lab.advance(server, clients, t)
    return Outcome(trained, evaluated)


def differ(one: Tree, other: Tree) -> bool:
    """Tell whether two trees differ by more than rounding."""
    left, right = flatten(one), flatten(other)
    assert left.keys() == right.keys()
    return any(not torch.allclose(left[path], right[path], rtol=0, atol=1e-9) for path in left)


# -------------------- the tables are complete


def test_every_option_of_every_method_has_a_row() -> None:
    known = {(name, option) for name in METHODS.names() for option in options_of(METHODS[name])}
    assert set(METHOD_OPTIONS) == known


def test_every_option_of_training_has_a_row() -> None:
    assert set(TRAINING_OPTIONS) == set(options_of(Training)) == {f.name for f in dataclasses.fields(Training)}


def test_every_field_of_a_method_is_an_option_or_its_setup(method_name: str) -> None:
    cls = METHODS[method_name]
    assert {f.name for f in dataclasses.fields(cls)} == {"setup", *options_of(cls)}


def test_presets_name_options_and_give_valid_values(method_name: str, make_lab: MakeLab) -> None:
    for preset in METHODS[method_name].presets.values():
        assert preset.keys() <= {"method", "training"}
        own = preset.get("method", {})
        training = dataclasses.replace(BASE, **preset.get("training", {}))
        assert vars(make_lab(method_name, "plain", training, **own).method).items() >= own.items()


# -------------------- every option does something


@pytest.mark.parametrize(("method", "option"), METHOD_OPTIONS)
def test_a_method_option_changes_the_result(method: str, option: str, make_lab: MakeLab) -> None:
    change = METHOD_OPTIONS[method, option]
    one, other = (outcome(make_lab(method, "plain", **{**change.given, option: value})) for value in change.values)
    assert differ(one.trained, other.trained) == (not change.evaluation)
    if change.evaluation:
        assert differ(one.evaluated, other.evaluated)


@pytest.mark.parametrize("option", TRAINING_OPTIONS)
def test_a_training_option_changes_the_result(option: str, method_name: str, make_lab: MakeLab) -> None:
    one, other = (
        outcome(make_lab(method_name, "plain", dataclasses.replace(BASE, **{option: value})))
        for value in TRAINING_OPTIONS[option]
    )
    assert differ(one.trained, other.trained)


BASE = Training(**{option: values[0] for option, values in TRAINING_OPTIONS.items()})

"""No dead parameters: every option names a setting in which it changes the result, and does."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

from fedmate.core import LocalResult, ObjectiveOptions, Training, Tree, flatten, select, stack, unmapped
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
    ("ditto", "proximal_weight"): Change((1.0, 0.5)),
    ("fedavg", "tuning_epochs"): Change((2, 1), evaluation=True),
    ("fedavgm", "server_momentum"): Change((0.9, 0.5)),
    ("fedbabu", "tuning_epochs"): Change((2, 1), evaluation=True),
    ("fedbabu", "tuning_learning_rate"): Change((None, 0.05), evaluation=True),
    ("fedfa", "anchor_momentum"): Change((0.5, 0.1)),
    ("fedfa", "anchor_weight"): Change((0.1, 0.5)),
    ("fedfa", "calibration_learning_rate"): Change((1e-3, 1e-2)),
    ("fedfa", "divide_by"): Change(("own", "all")),
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
    ("fedmate", "fusion_until"): Change((1.0, 0.1)),
    ("fedmate", "fusion_weight"): Change((0.6, 0.2)),
    ("fedmate", "integration_learning_rate"): Change((0.01, 0.1)),
    ("fedmate", "integration_on"): Change(("global", "clients"), {"classifier_start": "global"}),
    ("fedmate", "integration_steps"): Change((1, 2)),
    ("fedmate", "kappa"): Change(("shrink", "constant")),
    ("fedmate", "mask_unknown"): Change((False, True)),
    ("fedmate", "mps"): Change((True, False)),
    ("fedmate", "normalised_centres"): Change((False, True)),
    ("fedmate", "own_prototypes"): Change((False, True)),
    ("fedmate", "proto_augment"): Change((False, True)),
    ("fedmate", "reduction"): Change(("mean", "sum")),
    ("fedmate", "similarity"): Change(("cosine", "exp_cosine")),
    ("fedmate_plus", "classifier_learning_rate"): Change((0.1, 0.05)),
    ("fedmate_plus", "classifier_start"): Change(("own", "global")),
    ("fedpac", "alignment_weight"): Change((1.0, 0.2)),
    ("fedpac", "classifier_epochs"): Change((1, 2)),
    ("fedpac", "classifier_learning_rate"): Change((0.1, 0.05)),
    ("fedpac", "threshold"): Change((1e-3, 0.3)),
    ("fedper", "personal_layers"): Change((1, 2)),
    ("fedproto", "prototype_weight"): Change((1.0, 0.1)),
    ("fedproto", "weighting"): Change(("size", "equal")),
    ("fedprox", "proximal_weight"): Change((0.1, 0.5)),
    ("fedrep", "classifier_epochs"): Change((1, 2)),
    ("fedrep", "classifier_learning_rate"): Change((0.1, 0.05)),
    ("fedrep", "tuning_epochs"): Change((2, 1), evaluation=True),
    ("fedrod", "balanced"): Change((True, False)),
    ("moon", "contrastive_weight"): Change((1.0, 5.0)),
    ("moon", "projection"): Change(("none", "official")),
    ("moon", "temperature"): Change((0.5, 0.1)),
    ("scaffold", "momentum"): Change((0.0, 0.5)),
    ("scaffold", "server_learning_rate"): Change((1.0, 0.5)),
}
"""By method and option. A new option of fedmate or its example needs a row here; others may have one."""

PARENTS = tuple(METHODS[name] for name in METHODS.names())
"""Methods, from which others may be derived."""

OURS = ("fedmate", "new_method")
"""The packages whose methods are complete here: fedmate and `examples/`."""

TRAINING_OPTIONS: dict[str, tuple[Any, Any]] = {
    "batch_size": (3, 2),
    "epochs": (2, 1.5),
    "steps": (0, 2),
    "optimiser": ("sgd", "adam"),
    "learning_rate": (0.1, 0.05),
    "momentum": (0.5, 0.0),
    "weight_decay": (0.01, 0.0),
    "gradient_clip": (0.0, 0.05),
    "schedule": ("constant", "cosine"),
}
"""By option of `[training]`: two values that must give different results with every method."""

TRAINING_DETAILS: dict[str, Change] = {
    "beta1": Change((0.9, 0.5), {"optimiser": "adam"}),
    "beta2": Change((0.999, 0.5), {"optimiser": "adam"}),
    "epsilon": Change((1e-8, 1e-2), {"optimiser": "adamw"}),
    "schedule_end": Change((0.0, 0.5), {"schedule": "cosine"}),
    "schedule_power": Change((0.9, 2.0), {"schedule": "poly"}),
    "schedule_step": Change((10, 1), {"schedule": "step"}),
    "schedule_factor": Change((0.5, 0.1), {"schedule": "step", "schedule_step": 1}),
}
"""By option of `[training]` that counts beside another one: as the setup reads it for every method, one shows it."""

OBJECTIVES: dict[str, tuple[ObjectiveOptions, ObjectiveOptions]] = {
    "calibration": (ObjectiveOptions(), ObjectiveOptions(calibration=1.0)),
    "class_balance": (ObjectiveOptions(), ObjectiveOptions(class_balance=0.9)),
    "absent_share": (ObjectiveOptions(calibration=1.0), ObjectiveOptions(calibration=1.0, absent_share=0.05)),
}
"""By option of `[objective]` that concerns training: two settings of which each gives another result."""

UNUSED: set[tuple[str, str]] = {("scaffold", "momentum"), ("scaffold", "optimiser")}
"""By method and option of `[training]`: what a method says it does not use, and must not. SCAFFOLD has its own."""


class Outcome(NamedTuple):
    """What two rounds lead to: the models clients train and hold, and those made for evaluation."""

    trained: Tree
    evaluated: Tree


@cache
def outcome(lab: Lab) -> Outcome:
    """Run two rounds with a few. Models are compared, not states, whose structure may depend on any option."""
    lab = dataclasses.replace(lab, federation=lab.federation._replace(clients=lab.federation.clients[:3]))
    method, trained, evaluated = lab.method, {}, {}
    server, clients = lab.server(), lab.clients()
    for t in range(2):
        factor = method.setup.training.rate_factor(t, method.setup.rounds)
        updates: list[LocalResult] = []
        with torch.no_grad(), unmapped():
            for i in lab.everyone:
                download, data, key = lab.received(server, t, i), lab.federation.clients[i], lab.client_key(t, i)
                held = method.personal_params(clients[i], download)
                trained[f"{t} {i} pre"] = held
                updates.append(method.scaled(factor).local_update(clients[i], download, data, key))
                trained[f"{t} {i} post"] = updates[-1].params
                evaluated[f"{t} {i} pre"] = method.personalise(held, clients[i], download, data, key)
                evaluated |= {
                    f"{t} {i} {name}": params
                    for name, params in method.extra_views(clients[i], download, data, key).items()
                }
        uploads = stack([select(update.upload, method.wire(t).up) for update in updates])
        server = lab.aggregate(server, uploads, lab.everyone, [True] * len(updates))
        clients = [update.client for update in updates]
    # What the server remembers of a round may show only after the next.
    trained |= {f"end {i}": method.personal_params(clients[i], lab.received(server, 2, i)) for i in lab.everyone}
    return Outcome(trained, evaluated)


def differ(one: Tree, other: Tree) -> bool:
    """Tell whether two trees differ by more than rounding."""
    left, right = flatten(one), flatten(other)
    if left.keys() != right.keys():
        # An option may add layers.
        return True
    return any(
        left[path].shape != right[path].shape or not torch.allclose(left[path], right[path], rtol=0, atol=1e-9)
        for path in left
    )


# -------------------- the tables are complete


def test_every_option_of_a_method_has_a_row(method_name: str) -> None:
    cls = METHODS[method_name]
    # What a method has from another one is tried there.
    inherited = {name for parent in cls.__mro__[1:] if parent in PARENTS for name in options_of(parent)}
    inherited -= set(vars(cls)["__annotations__"])
    missing = [name for name in options_of(cls) if (method_name, name) not in METHOD_OPTIONS and name not in inherited]
    if missing and cls.__module__.partition(".")[0] not in OURS:
        pytest.skip(f"no rows in METHOD_OPTIONS for {missing}: whether these do anything is not tried")
    assert not missing


def test_every_row_names_an_option() -> None:
    assert set(METHOD_OPTIONS) <= {(name, option) for name in METHODS.names() for option in options_of(METHODS[name])}


def test_every_option_of_training_has_a_row() -> None:
    assert (
        {*TRAINING_OPTIONS, *TRAINING_DETAILS}
        == set(options_of(Training))
        == {f.name for f in dataclasses.fields(Training)}
    )


def test_every_field_of_a_method_is_an_option_or_its_setup(method_name: str) -> None:
    cls = METHODS[method_name]
    assert {f.name for f in dataclasses.fields(cls)} == {"setup", *options_of(cls)}


def test_presets_name_options_and_give_valid_values(method_name: str, make_lab: MakeLab) -> None:
    for preset in METHODS[method_name].presets.values():
        assert preset.keys() <= {"method", "training", "objective", "server"}
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


@pytest.mark.parametrize("option", OBJECTIVES)
def test_an_option_of_the_objective_changes_the_result(option: str, method_name: str, make_lab: MakeLab) -> None:
    one, other = (outcome(make_lab(method_name, "plain", objective=value)) for value in OBJECTIVES[option])
    assert differ(one.trained, other.trained)


@pytest.mark.parametrize("option", TRAINING_OPTIONS)
def test_a_training_option_changes_the_result(option: str, method_name: str, make_lab: MakeLab) -> None:
    one, other = (
        outcome(make_lab(method_name, "plain", dataclasses.replace(BASE, **{option: value})))
        for value in TRAINING_OPTIONS[option]
    )
    assert differ(one.trained, other.trained) == ((method_name, option) not in UNUSED)


@pytest.mark.parametrize("option", TRAINING_DETAILS)
def test_a_detail_of_training_changes_the_result(option: str, make_lab: MakeLab) -> None:
    change = TRAINING_DETAILS[option]
    settings = [dataclasses.replace(BASE, **change.given, **{option: value}) for value in change.values]
    one, other = (outcome(make_lab("fedavg", "plain", training)) for training in settings)
    assert differ(one.trained, other.trained)
    assert not any(f"training.{option}" in warning for warning in settings[1].warnings())
    pointless = dataclasses.replace(BASE, **{option: change.values[1]})
    assert pointless.warnings() == [
        f"`training.{option}` has no effect while `training.{name}` is `{getattr(BASE, name)}`."
        for name in list(change.given)[:1]
    ]


BASE = Training(**{option: values[0] for option, values in TRAINING_OPTIONS.items()})

"""A request for experiments: the words of a command or a call, and the data and the network that a call brings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from fedmate.core.options import options_of
from fedmate.data.arrays import Pool, Sites, fingerprint
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import (
    DEFAULT_NAMES,
    TUNED,
    ConfigSource,
    Experiment,
    check_shape,
    elsewhere,
    lookup,
    resolve,
)
from fedmate.methods import METHODS


class UserInputs(NamedTuple):
    """What an experiment takes from its surroundings; all of it may be left out.

    Attributes:
        data: samples, pooled or by client.
        module: a network that ends in a layer with a name; training starts from its weights.
        classifier: that name.
        folder: where data sets lie; `data_folder` knows if it is left out.
        is_deployed: whether clients are nodes that Flower connects, which may have data of their own.
    """

    data: Pool | Sites | None = None
    module: nn.Module | None = None
    classifier: str | None = None
    folder: Path | None = None
    is_deployed: bool = False

    def layer(self) -> ConfigSource:
        """Return what the experiment has to say about them."""
        self._check_types()
        values: dict[str, dict[str, Any]] = {}
        if self.data is not None:
            values["dataset"] = {"name": "given", "digest": fingerprint(self.data)}
            if self.data.client_rows is not None:
                values["partition"] = {"name": "given", "clients": len(self.data.client_rows)}
        if self.module is not None:
            if self.classifier is None:
                # Layers come in the order they were made, which is mostly the order they are used in.
                layers = [name.rpartition(".")[0] for name, _ in self.module.named_parameters()]
                hint = f"; probably it is `{layers[-1]}`" if any(layers[-1:]) else ""
                raise UserError(f"`model` needs `classifier`, the name of its last layer{hint}.")
            values["model"] = {"name": "given", "layer": self.classifier, "digest": structure(self.module)}
        elif self.classifier is not None:
            raise UserError("`classifier` names the last layer of `model`, which is missing; give both.")
        return ConfigSource("the call", values)

    def check(self, experiment: Experiment) -> None:
        """Raise `UserError` unless these are the data and the network the experiment speaks of.

        What the experiment takes from Python and did not get is refused where it would be loaded.
        """
        self._check_types()
        if self.data is not None:
            _check_given("data", "dataset", experiment.dataset.name)
            if experiment.dataset.options["digest"] != fingerprint(self.data):
                raise UserError("`data` holds other samples than the run began with; give the same arrays.")
            if self.data.client_rows is not None:
                _check_given("data", "partition", experiment.partition.name)
                count = len(self.data.client_rows)
                for key, taken in (("clients", count), ("examples", None)):
                    if experiment.partition.options[key] != taken:
                        raise UserError(
                            f"`partition.{key}` is {experiment.partition.options[key]}, but `data` is {count} clients "
                            f"with samples of their own, which are taken as they are; leave `partition.{key}` out."
                        )
        if self.module is not None:
            _check_given("model", "model", experiment.model.name)
            if experiment.model.options["digest"] != structure(self.module):
                raise UserError("`model` has another structure than the network the run began with; give the same one.")
            layer = experiment.model.options["layer"]
            if self.classifier not in (None, layer):
                raise UserError(
                    f"`classifier` is `{self.classifier}`, but the run began with `{layer}`; give that one."
                )

    def _check_types(self) -> None:
        if not isinstance(self.data, Pool | Sites | None):
            raise UserError(
                f"`data` is a {type(self.data).__name__}; give `fedmate.Pool(x, y)`, or `fedmate.Sites(...)` for "
                "samples that lie with their clients."
            )
        if not isinstance(self.module, nn.Module | None):
            raise UserError(f"`model` is a {type(self.module).__name__}; give a `torch.nn.Module`, an instance of it.")


NO_INPUTS = UserInputs()


class Request(NamedTuple):
    """The experiments that a command or a call asks for.

    Attributes:
        base: an experiment's file, or its content.
        methods: which to compare; the experiment's own if there are none.
        dataset: the name of a data set.
        settings: single values that come last.
        inputs: data and a network from Python.
    """

    base: ConfigSource | None = None
    methods: Sequence[str] = ()
    dataset: str | None = None
    settings: ConfigSource = ConfigSource("`set`", {})
    inputs: UserInputs = NO_INPUTS

    @property
    def describes(self) -> bool:
        """Whether it says anything about the experiment that a file could hold."""
        return self.base is not None or bool(self.methods) or self.dataset is not None or bool(self.settings.values)


def structure(module: nn.Module) -> str:
    """Return a fingerprint of a network's layers; its weights do not matter, a run keeps those it began with."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    lazy = next((name for name, tensor in tensors if is_lazy(tensor)), None)
    if lazy is not None:
        raise UserError(
            f"`model` has `{lazy}` of a lazy layer, which has no shape yet; run one sample through it first."
        )
    shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in module.state_dict().items()]
    return hashlib.sha256("\n".join([repr(module), *shapes]).encode()).hexdigest()


def compose(request: Request) -> list[Experiment]:
    """Return an experiment for each of the methods, or one if none is named."""
    layers = [] if request.base is None else [request.base]
    if request.dataset is not None:
        if request.inputs.data is not None:
            raise UserError(f"`dataset` is `{request.dataset}`, but `data` is given, too; leave one of them out.")
        layers.append(ConfigSource("the argument `dataset`", {"dataset": {"name": request.dataset}}))
    layers.append(request.inputs.layer())
    settings, methods = request.settings, request.methods
    check_shape(settings)
    if not methods:
        return [resolve([*layers, settings])]
    _check_methods(methods, settings)
    own, experiments = settings.values.get("method", {}), []
    for name in methods:
        # A setting that this method lacks, but another of them has, is left out.
        lacking = {key for key in _lacking(name, own) if any(key not in _lacking(other, own) for other in methods)}
        kept = {key: value for key, value in own.items() if key not in lacking}
        chosen = ConfigSource("the argument `method`", {"method": {"name": name}})
        last = ConfigSource(settings.source, {**settings.values, "method": kept})
        experiments.append(resolve([*layers, chosen, last]))
    return experiments


def left_out(request: Request) -> list[str]:
    """Say which settings hold for some of the compared methods only, for the others do not have them."""
    sentences, own = [], request.settings.values.get("method", {})
    for key, value in own.items():
        lacking = [name for name in request.methods if key in _lacking(name, own)]
        if lacking:
            names = ", ".join(f"`{name}`" for name in lacking)
            kind = "preset" if key == "preset" else "option"
            have = "has" if len(lacking) == 1 else "have"
            spelled = str(value).lower() if isinstance(value, bool) else value
            sentences.append(f"`method.{key}={spelled}` does not hold for {names}, which {have} no such {kind}.")
    return sentences


def dropped(request: Request) -> list[str]:
    """Say what the file says of its method that those chosen instead would have, too, or a preset, but do not get."""
    if request.base is None:
        return []
    own, asked = request.base.values.get("method", {}), request.settings.values.get("method", {})
    name = own.get("name", DEFAULT_NAMES["method"])
    others = [other for other in request.methods or [asked.get("name", name)] if other != name]
    theirs = [options_of(METHODS[other]) for other in others]
    keys = [
        key
        for key, value in own.items()
        if key not in asked
        and any(key == "preset" or (key in fields and value != fields[key].default) for fields in theirs)
    ]
    if not keys:
        return []
    lost, names = (", ".join(f"`{word}`" for word in words) for words in ([f"method.{key}" for key in keys], others))
    holds = "holds" if len(keys) == 1 else "hold"
    return [f"{lost} in {request.base.source} {holds} for `{name}`, not for {names}; a setting (`set`) holds for all."]


def _check_given(argument: str, section: str, name: str) -> None:
    if name != "given":
        raise UserError(f"`{argument}` is given, but `{section}.name` is `{name}`; leave one of them out.")


def _check_methods(methods: Sequence[str], settings: ConfigSource) -> None:
    known = {key for name in methods for key in options_of(lookup("method", METHODS, name, "the argument `method`"))}
    repeated = next((name for name in methods if methods.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"`{{option}}` names `{repeated}` twice; name each method once.", "method")
    own = settings.values.get("method", {})
    if "name" in own:
        raise UserError("`{option}` and the setting `method.name` both name a method; use `{option}` alone.", "method")
    unknown = next((key for key in own if key not in known and key != "preset"), None)
    if unknown is not None and len(methods) > 1:
        raise UserError(
            f"`method.{unknown}` in {settings.source} is not an option of any of the methods; "
            f"{elsewhere(unknown, 'method') or nearest(unknown, known)}"
        )


def _lacking(method: str, settings: Mapping[str, object]) -> set[str]:
    """Return the settings that a method does not have."""
    cls = METHODS[method]
    # A method that was not tuned is refused: beside others that were, its figures would say nothing.
    known = {*options_of(cls), *(["preset"] if settings.get("preset") in [TUNED, *cls.presets] else [])}
    return settings.keys() - known

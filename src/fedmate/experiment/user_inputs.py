"""What an experiment takes from its surroundings: a user's arrays and network, and the place of data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from fedmate.data.arrays import Pool, Sites, fingerprint
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, Experiment

SOURCE = "the call"


class UserInputs(NamedTuple):
    """A user's own data and network, either of which may be left to the experiment.

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
        return ConfigSource(SOURCE, values)

    def check(self, experiment: Experiment) -> None:
        """Raise `UserError` unless these are the data and the network the experiment speaks of.

        What the experiment takes from Python and did not get is refused where it would be loaded.
        """
        self._check_types()
        if self.data is not None:
            _check_name("data", "dataset", experiment.dataset.name)
            if experiment.dataset.options["digest"] != fingerprint(self.data):
                raise UserError("`data` holds other samples than the run began with; give the same arrays.")
            if self.data.client_rows is not None:
                _check_name("data", "partition", experiment.partition.name)
                _check_sites(len(self.data.client_rows), experiment.partition.options)
        if self.module is not None:
            _check_name("model", "model", experiment.model.name)
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


def _check_name(argument: str, section: str, name: str) -> None:
    if name != "given":
        raise UserError(f"`{argument}` is given, but `{section}.name` is `{name}`; leave one of them out.")


def _check_sites(count: int, options: Mapping[str, Any]) -> None:
    """Refuse settings that would split samples of clients anew."""
    for key, taken in (("clients", count), ("examples", None)):
        if options[key] != taken:
            raise UserError(
                f"`partition.{key}` is {options[key]}, but `data` is {count} clients with samples of their own, which "
                f"are taken as they are; leave `partition.{key}` out."
            )


NO_INPUTS = UserInputs()


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

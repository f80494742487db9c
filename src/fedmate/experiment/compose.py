"""From the command's words to the experiments it asks for, one per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmate.core.options import options_of
from fedmate.errors import UserError
from fedmate.experiment.config import Experiment, Layer, check_shape, load_file, lookup, parse_set, resolve
from fedmate.methods import METHODS


def compose(
    file: Path | None, methods: Sequence[str], dataset: str | None, assignments: Sequence[str]
) -> list[Experiment]:
    """Return an experiment for each of `methods`, or one if none is named."""
    layers = [load_file(file)] if file is not None else []
    if dataset is not None:
        layers.append(Layer("--dataset", {"dataset": {"name": dataset}}))
    settings = parse_set(assignments)
    check_shape(settings)
    if not methods:
        return [resolve([*layers, settings])]
    _check_methods(methods, settings)
    return [
        resolve([*layers, Layer("--method", {"method": {"name": name}}), _for_method(settings, name, methods)])
        for name in methods
    ]


def _check_methods(methods: Sequence[str], settings: Layer) -> None:
    for name in methods:
        lookup("method", METHODS, name, "--method")
    repeated = next((name for name in methods if methods.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"`--method` names `{repeated}` twice; name each method once.")
    if "name" in settings.values.get("method", {}):
        raise UserError("`--set method.name` and `--method` both choose the method; use `--method` alone.")


def _for_method(settings: Layer, name: str, methods: Sequence[str]) -> Layer:
    """Drop a method's setting where `name` does not know it but another of the compared methods does."""
    own = settings.values.get("method", {})
    kept = {
        key: value
        for key, value in own.items()
        if _knows(name, key, value) or not any(_knows(other, key, value) for other in methods)
    }
    return Layer(settings.source, {**settings.values, "method": kept})


def _knows(method: str, key: str, value: object) -> bool:
    cls = METHODS[method]
    return value in list(cls.presets) if key == "preset" else key in options_of(cls)

"""From the words of a command or a call to the experiments they ask for, one per method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedmate.core.options import options_of
from fedmate.errors import UserError, nearest
from fedmate.experiment.config import DEFAULT_NAMES, Experiment, Layer, check_shape, elsewhere, lookup, resolve
from fedmate.experiment.given import NOTHING, Given
from fedmate.experiment.tuned import TUNED
from fedmate.methods import METHODS

NO_SETTINGS = Layer("--set", {})


class Request(NamedTuple):
    """What somebody asks for.

    Attributes:
        base: an experiment's file, or its content.
        methods: which to compare; the experiment's own if there are none.
        dataset: the name of a data set.
        settings: single values that come last.
        given: data and a network from Python.
    """

    base: Layer | None = None
    methods: Sequence[str] = ()
    dataset: str | None = None
    settings: Layer = NO_SETTINGS
    given: Given = NOTHING

    @property
    def describes(self) -> bool:
        """Whether it says anything about the experiment that a file could hold."""
        return self.base is not None or bool(self.methods) or self.dataset is not None or bool(self.settings.values)


def compose(request: Request) -> list[Experiment]:
    """Return an experiment for each of the methods, or one if none is named."""
    layers = [] if request.base is None else [request.base]
    if request.dataset is not None and request.given.data is not None:
        raise UserError(f"`dataset` is `{request.dataset}`, but `data` is given, too; leave one of them out.")
    if request.dataset is not None:
        layers.append(Layer("--dataset", {"dataset": {"name": request.dataset}}))
    layers.append(request.given.layer())
    settings, methods = request.settings, request.methods
    check_shape(settings)
    if not methods:
        return [resolve([*layers, settings])]
    _check_methods(methods, settings)
    return [
        resolve([*layers, Layer("--method", {"method": {"name": name}}), _for_method(settings, name, methods)])
        for name in methods
    ]


def left_out(request: Request) -> list[str]:
    """Say which settings hold for some of the compared methods only, for the others do not have them."""
    sentences = []
    for key, value in request.settings.values.get("method", {}).items():
        lacking = [name for name in request.methods if not _knows(name, key, value)]
        if lacking:
            names = ", ".join(f"`{name}`" for name in lacking)
            kind = "preset" if key == "preset" else "option"
            have = "has" if len(lacking) == 1 else "have"
            spelled = str(value).lower() if isinstance(value, bool) else value
            sentences.append(f"`method.{key}={spelled}` does not hold for {names}, which {have} no such {kind}.")
    return sentences


def dropped(request: Request) -> list[str]:
    """Say what the file says of its method that those chosen instead would have, too, or a preset, but do not get."""
    own = {} if request.base is None else request.base.values.get("method", {})
    name = own.get("name", DEFAULT_NAMES["method"])
    chosen = request.methods or [request.settings.values.get("method", {}).get("name", name)]
    others = [other for other in chosen if other != name]
    asked = request.settings.values.get("method", {})
    theirs = [options_of(METHODS[other]) for other in others]
    keys = [
        key
        for key, value in own.items()
        if key not in asked
        and any(key == "preset" or (key in fields and value != fields[key].default) for fields in theirs)
    ]
    lost = ", ".join(f"`method.{key}`" for key in keys)
    if request.base is None or not lost:
        return []
    names = ", ".join(f"`{other}`" for other in others)
    holds = "holds" if len(keys) == 1 else "hold"
    return [f"{lost} in {request.base.source} {holds} for `{name}`, not for {names}; `--set` is for all."]


def _check_methods(methods: Sequence[str], settings: Layer) -> None:
    for name in methods:
        lookup("method", METHODS, name, "--method")
    repeated = next((name for name in methods if methods.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"`--method` names `{repeated}` twice; name each method once.")
    own = settings.values.get("method", {})
    if "name" in own:
        raise UserError("`--set method.name` and `--method` both choose the method; use `--method` alone.")
    known = {key for name in methods for key in options_of(METHODS[name])}
    unknown = next((key for key in own if key not in known and key != "preset"), None)
    if unknown is not None and len(methods) > 1:
        raise UserError(
            f"`method.{unknown}` in {settings.source} is not an option of any of the methods; "
            f"{elsewhere(unknown, 'method') or nearest(unknown, known)}"
        )


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
    # A method that was not tuned is refused: beside others that were, its figures would say nothing.
    return value in [TUNED, *cls.presets] if key == "preset" else key in options_of(cls)

"""The run config of `flwr run`: an experiment of the app's folder, and changes to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmate.errors import UserError, nearest
from fedmate.experiment.config import ConfigSource, Experiment, load_file, parse_set
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.user_inputs import UserInputs

BACKEND = "flower"
SOURCE = "`set` of the run config"

KEYS: dict[str, tuple[type, ...]] = {
    "experiment": (str,),
    "set": (str,),
    "out": (str,),
    "min-clients": (int,),
    "patience": (int, float),
}
"""Of the run config, with their types."""

WORD = re.compile(r"""(?:[^\s"'\[\]]|"[^"]*"|'[^']*'|\[[^\]]*\])+""")
"""One assignment: without blanks, except in quotation marks and brackets."""


def request_of(run_config: Mapping[str, Any], folder: Path) -> Request:
    """Return the request for a run, or raise `UserError`.

    Args:
        run_config: Flower's, with the keys that the app declares.
        folder: the app's, where experiments lie.
    """
    for key, kinds in KEYS.items():
        if type(run_config.get(key)) not in kinds:
            wanted = "a string" if kinds == (str,) else "a number"
            raise UserError(f"`{key}` of the run config is {run_config.get(key)!r}; give {wanted}.")
    values = _assignments(run_config["set"])
    for key in ("min-clients", "patience"):
        # Zero leaves it to the experiment.
        if run_config[key]:
            values[key.replace("-", "_")] = run_config[key]
    base = _experiment(run_config["experiment"], folder)
    (chosen,) = compose(Request(base=base, settings=ConfigSource(SOURCE, values)))
    if chosen.general.backend not in ("auto", BACKEND):
        raise UserError(f"`backend` is `{chosen.general.backend}`, but `flwr run` runs on Flower; leave it out.")
    settings = ConfigSource(SOURCE, {**values, "backend": BACKEND})
    return Request(base=base, settings=settings, inputs=UserInputs(is_deployed=True))


def experiment_of(run_config: Mapping[str, Any], folder: Path) -> Experiment:
    """Return the experiment of a run config, or raise `UserError`."""
    (experiment,) = compose(request_of(run_config, folder))
    return experiment


def _assignments(text: str) -> dict[str, Any]:
    """Read assignments as those of `fedmate run --set`, with blanks between."""
    if WORD.sub("", text).strip():
        raise UserError(f"{SOURCE} is `{text}`, where a quotation mark or bracket stands alone; close it.")
    return dict(parse_set(WORD.findall(text), "set").values)


def _experiment(name: str, folder: Path) -> ConfigSource:
    """Read an experiment of the app, by the name of its file with or without its ending."""
    known = sorted(path.stem for path in folder.glob("*.toml") if path.name != "pyproject.toml")
    stem = name.removesuffix(".toml")
    if stem not in known:
        raise UserError(
            f"`experiment` of the run config is `{name}`, which the app does not have; {nearest(stem, known)}"
        )
    file = folder / f"{stem}.toml"
    return load_file(file)._replace(source=file.name)

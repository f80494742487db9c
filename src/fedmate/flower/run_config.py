"""The run config of `flwr run`: an experiment of the app's folder, and changes to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmate.errors import UserError, nearest
from fedmate.experiment.config import ConfigSource, load_file, parse_set
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, compose

BACKEND = "flower"
SOURCE = "`set` of the run config"

WORD = re.compile(r"""(?:[^\s"'\[\]]|"[^"]*"|'[^']*'|\[[^\]]*\])+""")
"""One assignment: without blanks, except in quotation marks and brackets."""


def request_of(run_config: Mapping[str, Any], folder: Path) -> Request:
    """Return the request for a run of an experiment in the app's folder, or raise `UserError`."""
    known = sorted(path.stem for path in folder.glob("*.toml") if path.name != "pyproject.toml")
    name = str(run_config["experiment"]).removesuffix(".toml")
    if name not in known:
        raise UserError(
            f"`experiment` of the run config is `{name}`, which the app does not have; {nearest(name, known)}"
        )
    base = load_file(folder / f"{name}.toml")._replace(source=f"{name}.toml")
    text = str(run_config["set"])
    if WORD.sub("", text).strip():
        raise UserError(f"{SOURCE} is `{text}`, where a quotation mark or bracket stands alone; close it.")
    values = dict(parse_set(WORD.findall(text), "set").values)
    # Zero leaves it to the experiment.
    values |= {key.replace("-", "_"): run_config[key] for key in ("min-clients", "patience") if run_config[key]}
    (chosen,) = compose(Request(base=base, settings=ConfigSource(SOURCE, values)))
    if chosen.general.backend not in ("auto", BACKEND):
        raise UserError(f"`backend` is `{chosen.general.backend}`, but `flwr run` runs on Flower; leave it out.")
    settings = ConfigSource(SOURCE, {**values, "backend": BACKEND})
    return Request(base=base, settings=settings, inputs=UserInputs(is_deployed=True))

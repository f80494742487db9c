"""The command's words become one experiment per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmate.experiment.config import Experiment, load_file, parse_set
from fedmate.experiment.prepare import Request, compose, dropped

PLAIN = {"absent_share": 0.0, "calibration": 0.0, "own_prior": False}
"""What is said of prior calibration where there is none."""


def asked(
    file: Path | None = None, methods: Sequence[str] = (), dataset: str | None = None, settings: Sequence[str] = ()
) -> Request:
    return Request(None if file is None else load_file(file), methods, dataset, parse_set(settings))


def one(
    file: Path | None = None, methods: Sequence[str] = (), dataset: str | None = None, settings: Sequence[str] = ()
) -> Experiment:
    (experiment,) = compose(asked(file, methods, dataset, settings))
    return experiment


def test_a_setting_reaches_the_methods_that_know_it() -> None:
    settings = ["method.classifier_epochs=4", "method.personal_layers=2", "method.tuning_epochs=6"]
    fedavg, fedper, fedrep, local = compose(asked(methods=["fedavg", "fedper", "fedrep", "local"], settings=settings))
    assert fedavg.method.options == {**PLAIN, "server_momentum": 0.0, "tuning_epochs": 6}
    assert fedper.method.options == {**PLAIN, "personal_layers": 2}
    assert fedrep.method.options["classifier_epochs"] == 4
    assert fedrep.method.options["tuning_epochs"] == 6
    assert local.method.options == {**PLAIN}


def test_it_is_said_what_other_methods_do_not_get_from_the_file(tmp_path: Path) -> None:
    """Of what they would have, and have otherwise."""
    file = tmp_path / "mine.toml"
    lines = ['name = "fedmate_plus"', "calibration = 1.0", "server_momentum = 0.3", "mps = false", "absent_share = 0.0"]
    file.write_text("\n".join(["[method]", *lines]), encoding="utf-8")
    assert dropped(asked(file, ["fedrep", "fedmate_plus", "fedpac"])) == [
        f"`method.calibration`, `method.server_momentum` in {file} hold for `fedmate_plus`, not for `fedrep`, "
        "`fedpac`; a setting (`set`) holds for all."
    ]
    (sentence,) = dropped(asked(file, ["fedpac"], settings=["method.calibration=0"]))
    assert sentence.startswith(f"`method.server_momentum` in {file} holds for")
    assert dropped(asked(file)) == dropped(asked(file, ["fedmate_plus"])) == dropped(asked(methods=["fedavg"])) == []
    unnamed = tmp_path / "unnamed.toml"
    unnamed.write_text("[method]\ncalibration = 1.0", encoding="utf-8")
    assert dropped(asked(unnamed, ["fedavg"]))[0].endswith(
        "holds for `fedrep`, not for `fedavg`; a setting (`set`) holds for all."
    )

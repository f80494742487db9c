"""The command's words become one experiment per method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedmate.experiment.config import load_file, parse_set
from fedmate.experiment.prepare import Request, compose, dropped
from fedmate.experiment.sections import Experiment


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
    assert fedavg.method.options == {"tuning_epochs": 6}
    assert fedper.method.options == {"personal_layers": 2}
    assert fedrep.method.options["classifier_epochs"] == 4
    assert fedrep.method.options["tuning_epochs"] == 6
    assert local.method.options == {}


def test_it_is_said_what_other_methods_do_not_get_from_the_file(tmp_path: Path) -> None:
    """Of what they would have, and have otherwise."""
    file = tmp_path / "mine.toml"
    lines = ['name = "fedmate_plus"', "classifier_epochs = 2", "classifier_learning_rate = 0.3", "mps = false"]
    file.write_text("\n".join(["[method]", *lines]), encoding="utf-8")
    assert dropped(asked(file, ["fedrep", "fedmate_plus", "fedpac"])) == [
        f"`method.classifier_epochs`, `method.classifier_learning_rate` in {file} hold for `fedmate_plus`, not for "
        "`fedrep`, `fedpac`; a setting (`set`) holds for all."
    ]
    (sentence,) = dropped(asked(file, ["fedpac"], settings=["method.classifier_epochs=1"]))
    assert sentence.startswith(f"`method.classifier_learning_rate` in {file} holds for")
    assert dropped(asked(file)) == dropped(asked(file, ["fedmate_plus"])) == dropped(asked(methods=["fedavg"])) == []
    unnamed = tmp_path / "unnamed.toml"
    unnamed.write_text("[method]\ntuning_epochs = 1", encoding="utf-8")
    assert dropped(asked(unnamed, ["fedavg"]))[0].endswith(
        "holds for `fedrep`, not for `fedavg`; a setting (`set`) holds for all."
    )

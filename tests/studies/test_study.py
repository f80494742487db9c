"""Studies are read from files, and say which runs they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.studies.small import STUDY, study_of

from fedmate.errors import UserError
from fedmate.methods import METHODS
from fedmate.studies.study import Choice


def test_runs_are_methods_x_settings_x_seeds(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    runs = study.runs(Choice(seeds=2))
    keys = ["s10/fedavg", "s10/global", "s10/local", "s70/fedavg", "s70/global", "s70/local"]
    assert [run.key for run in runs] == keys * 2
    assert [run.seed for run in runs] == [0] * 6 + [1] * 6
    first = runs[0].experiment
    assert (first.general.rounds, first.general.seed, first.partition.options["share"]) == (2, 0, 10)
    assert runs[6].label == "s10/fedavg, seed 1"
    assert study.runs(Choice(quick=True))[0].experiment.general.rounds == 1
    # Two methods of a study may be the same run, looked at in two views.
    assert runs[0].name == runs[1].name != runs[2].name
    assert (study.methods[0].view, study.methods[1].view) == (METHODS["fedavg"].primary_view, "global")


def test_tuned_methods_have_their_preset_and_others_are_left_out(tmp_path: Path) -> None:
    study = study_of(tmp_path, STUDY.replace("[settings.s70]", "[settings.s70]\ndataset.name = 'cifar10'"))
    choice = Choice(tuned=True)
    rates = {run.key: run.experiment.training.learning_rate for run in study.runs(choice)}
    assert rates["s70/local"] == 0.006
    left_out = {f"{setting.key}/{method.key}" for setting, method in study.untuned(choice)}
    assert left_out | rates.keys() == {run.key for run in study.runs(Choice())}
    assert not left_out & rates.keys()


STAND_IN = STUDY.replace(
    "[settings.s70]", "[settings.s70]\ndataset = {name = 'cinic10'}\nstand_ins = [{name = 'cifar10'}]"
)


def test_the_first_data_set_at_hand_stands_in(tmp_path: Path) -> None:
    study = study_of(tmp_path, STAND_IN)
    chosen, notes = study.with_data(Choice(), tmp_path)
    assert [setting.key for setting in chosen.settings] == ["s10"]
    assert chosen.left_out == ("s70",)
    assert notes[0].startswith("`s70` is left out: ")
    quick, notes = study.with_data(Choice(quick=True), tmp_path)
    assert [setting.data for setting in quick.settings] == ["digits", "digits"]
    assert quick.settings[1].label == "s70 (run with digits)"
    assert notes == ["`digits` stands in for `cinic10`, which is not at hand."]


BAD = {
    "titel = 'x'\n": "`titel` is no key of a study; did you mean `title`",
    "test = 'own_test'\n": "`test` is `own_test`; known are `balanced`, `local`, `own`",
    "reference = 'x'\n": "`reference` is `x`, which is no method",
    "[base]\nseed = 1\n": "a study has seeds from 0; use `--seeds`",
    "[settings.s10]\nstand_ins = ['digits']\n": "`stand_ins` in `[settings.s10]` are no data sets",
    "[methods.fedavg]\nview = 'globl'\nmethod.name = 'local'\n": "`view` in `[methods.fedavg]` is `globl`",
    "[methods.fedavg]\npublished = {s20 = 1}\n": "which is no setting; did you mean `s10`",
}
"""A beginning of a file that is wrong, and the key phrase of the error."""


@pytest.mark.parametrize(("text", "phrase"), BAD.items())
def test_mistakes_are_named(tmp_path: Path, text: str, phrase: str) -> None:
    rest = "" if "[settings" in text else "[settings.s10]\n"
    rest += "" if "[methods" in text else "[methods.fedavg]\nmethod.name = 'fedavg'\n"
    with pytest.raises(UserError) as caught:
        study_of(tmp_path, text + rest)
    assert phrase in str(caught.value)
    assert str(tmp_path / "small.toml") in str(caught.value)

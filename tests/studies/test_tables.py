"""Tables and plots of a study, compared with numbers that can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.studies.small import STUDY, Run, results_of, study_of

from fedmate.studies.plots import plots
from fedmate.studies.statistics import Results
from fedmate.studies.tables import accuracy, differences, save, tables


def run(pre: float, own: float, diverged_in: int | None = None) -> Run:
    accuracy = {"pre": (pre, own), "post": None, "global": (pre, own)}
    curve = [(1, {"pre": (pre / 2, own / 2)}), (2, {"pre": (pre, own)})]
    return Run(accuracy, curve, diverged_in)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return results_of(
        study_of(tmp_path),
        {
            "s10/fedavg": [run(50.0, 60.0), run(52.0, 61.0)],
            "s10/local": [run(40.0, 70.0), run(41.0, 73.0)],
            "s70/fedavg": [run(30.0, 30.0), run(1.0, 1.0, diverged_in=2)],
        },
    )


def test_accuracy_beside_published_figures(results: Results) -> None:
    sheet = accuracy(results)
    assert sheet.head == ["method", "view", "published", "accuracy", "difference", "accuracy"]
    assert sheet.groups == ["", "", *["s = 10"] * 3, "s70"]
    assert sheet.rows == [
        ["FedAvg", "`pre`", "49.39", "51.00 ± 1.41", "+1.61", "30.00 (1 of 2 diverged)"],
        ["global", "`global`", "", "51.00 ± 1.41", "", "30.00 (1 of 2 diverged)"],
        ["local", "`post`", "", "-", "", ""],
    ]
    assert sheet.bold == {(0, 3), (1, 3), (0, 5), (1, 5)}
    assert sheet.title == "Small"
    assert "published in: Table 7" in sheet.notes


def test_differences_from_the_reference(tmp_path: Path) -> None:
    study = study_of(tmp_path, STUDY.replace("[methods.local]", '[methods.local]\nview = "pre"'))
    found = results_of(study, {"s10/fedavg": [run(50.0, 60.0), run(52.0, 61.0)], "s10/local": [run(40.0, 70.0)] * 2})
    sheet, other = differences(found)
    assert sheet.rows == [
        ["local", "`pre`", "40.00 ± 0.00", "70.00 ± 0.00", "2"],
        ["FedAvg", "`pre`", "+11.00 ± 1.00", "-9.50 ± 0.50", "2"],
        ["global", "`global`", "+11.00 ± 1.00", "-9.50 ± 0.50", "2"],
    ]
    assert other.rows[1] == ["FedAvg", "`pre`", "", "", ""]
    assert not differences(results_of(study_of(tmp_path, STUDY.replace('reference = "local"', "")), {}))


def test_the_files_of_a_study(results: Results, tmp_path: Path) -> None:
    folder, names = save(results, tables(results), plots(results), tmp_path)
    assert folder == tmp_path / "tables" / "small"
    made = {path.name for path in folder.iterdir()}
    assert {path.rpartition(".")[0] for path in made} == {*names}
    for name in ("accuracy", "differences_s10", "front_s10", "views_s70"):
        assert {f"{name}.md", f"{name}.tex", f"{name}.csv"} <= made
    assert {"figures.csv", "curves.svg", "curves.pdf", "tradeoff_s10.png"} <= made
    assert "51.00 ± 1.41" in (folder / "accuracy.md").read_text()

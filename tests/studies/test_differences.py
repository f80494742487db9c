"""What a change is worth: each row less the reference, seed by seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.reproduce.small import Run, column, grid_of, outcome_of, row

from fedmate.errors import UserError
from fedmate.studies.differences import differences
from fedmate.studies.grid import Wanted
from fedmate.studies.outcome import Outcome
from fedmate.studies.presentation import check_shows
from fedmate.studies.reading import load_grid

S10, S70 = column("s10", name="s = 10"), column("s70", name="s = 70")
ROWS = (
    row("fedrep", name="FedRep"),
    row("fedmate", name="FedMate"),
    row("fedavg", name="FedAvg", view="global"),
)


def run(balanced: float, own: float, diverged_in: int | None = None, sha256: str = "ab") -> Run:
    """Other numbers in other views, so that a wrong view is seen."""
    accuracy = {"pre": (balanced, own), "post": (1.0, 2.0), "global": (balanced + 3, own - 5)}
    return Run(accuracy, diverged_in=diverged_in, sha256=sha256)


def outcome(wanted: Wanted | None = None, reference: str = "fedmate", **more: list[Run | None]) -> Outcome:
    runs: dict[str, list[Run | None]] = {
        "fedrep": [run(40.0, 71.0), run(43.0, 75.0)],
        "fedmate": [run(50.0, 70.0), run(54.0, 74.0)],
        "fedavg": [run(60.0, 65.0), run(58.0, 69.0)],
    }
    grid = replace(grid_of([S10, S70], ROWS), reference=reference, shows=("differences",))
    return outcome_of(grid, {f"s10/{key}": of_row for key, of_row in (runs | more).items()}, wanted)


def table(of: Outcome, place: int = 0) -> dict[str, list[str]]:
    return {name: cells for name, *cells in differences(of)[place].rows}


def test_each_seed_gives_a_difference() -> None:
    """-10 and -11 are -10.5 with a standard error of 0.5, though the rows themselves spread by 1.5 and 2."""
    assert table(outcome()) == {
        "FedMate": ["`pre`", "52.00 ± 2.00", "72.00 ± 2.00", "2"],
        "FedRep": ["`pre`", "-10.50 ± 0.50", "+1.00 ± 0.00", "2"],
        # In its own view: 63 and 61, 60 and 64.
        "FedAvg": ["`global`", "+10.00 ± 3.00", "-10.00 ± 0.00", "2"],
    }
    assert differences(outcome())[0].rows[0][0] == "FedMate"


def test_only_seeds_that_both_have_count() -> None:
    found = table(outcome(fedrep=[None, run(43.0, 75.0)], fedavg=[run(60.0, 65.0), run(1.0, 2.0, diverged_in=3)]))
    assert found["FedRep"] == ["`pre`", "-11.00", "+1.00", "1"]
    assert found["FedAvg"] == ["`global`", "+13.00", "-10.00", "1"]


def test_an_accuracy_of_nothing_is_one() -> None:
    assert table(outcome(fedrep=[run(0.0, 0.0), None]))["FedRep"] == ["`pre`", "-50.00", "-70.00", "1"]


def test_rows_that_were_dealt_other_samples_are_not_subtracted() -> None:
    other: list[Run | None] = [run(40.0, 71.0, sha256="cd"), run(43.0, 75.0)]
    assert table(outcome(fedrep=other))["FedRep"] == ["`pre`", "-11.00", "+1.00", "1"]
    assert table(outcome(fedrep=other[:1]))["FedRep"] == ["`pre`", "-", "-", ""]


def test_a_place_without_a_number_says_why() -> None:
    away: list[Run | None] = [run(1.0, 2.0, diverged_in=3)] * 2
    assert table(outcome(fedrep=[None, None]))["FedRep"] == ["`pre`", "", "", ""]
    assert table(outcome(fedrep=away))["FedRep"] == ["`pre`", "diverged", "diverged", ""]
    found = table(outcome(fedmate=away))
    assert found["FedMate"] == ["`pre`", "diverged", "diverged", ""]
    assert found["FedRep"] == ["`pre`", "-", "-", ""]
    assert table(outcome(fedmate=[Run({"post": (1.0, 2.0)})]))["FedMate"] == ["`pre`", "-", "-", ""]


def test_what_is_not_meant_is_not_there_and_it_is_said_where_there_is_no_reference() -> None:
    assert [sheet.name for sheet in differences(outcome())] == ["differences_s10", "differences_s70"]
    assert not [note for note in outcome().notes() if "reference" in note]
    meant = outcome(Wanted(patterns=["s10/fedmate", "s10/fedavg"]))
    assert list(table(meant)) == ["FedMate", "FedAvg"]

    lacking = "no differences: FedMate, the `reference`, is not among the cells"
    some = outcome(Wanted(patterns=["s10/fed*", "s70/fedavg"]))
    assert [sheet.name for sheet in differences(some)] == ["differences_s10"]
    assert f"{lacking} (s = 70)" in some.notes()
    none = outcome(Wanted(patterns=["s10/fedavg"]))
    assert differences(none) == []
    assert lacking in none.notes()


def test_equal_rows_differ_by_nothing_without_a_sign_of_its_own() -> None:
    assert table(outcome(fedrep=[run(49.999, 70.0), run(54.0, 74.0)]))["FedRep"][1] == "+0.00 ± 0.00"


GRID = """
shows = ["differences"]
{reference}
[columns.digits]
[rows.local]
method = {{name = "local"}}
[rows.fedavg]
method = {{name = "fedavg"}}
"""


def test_the_reference_is_a_row_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GRID.format(reference='reference = "fedavg"'))
    grid = load_grid(str(path))
    check_shows(grid)
    assert grid.reference == "fedavg"

    path.write_text(GRID.format(reference='reference = "fedawg"'))
    with pytest.raises(UserError, match=r"has `reference` 'fedawg', which is no row; did you mean `fedavg`\?"):
        load_grid(str(path))

    path.write_text(GRID.format(reference=""))
    with pytest.raises(UserError, match="does not say from which row; write `reference = KEY` above"):
        check_shows(load_grid(str(path)))

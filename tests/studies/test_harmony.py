"""Both tests at once: what stands in the table, who is on the front, and what is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reproduce.small import Run, column, grid_of, kept_of, outcome_of, row
from typer.testing import CliRunner

from fedmate.cli.app import app
from fedmate.report.sheets import Sheet
from fedmate.report.tradeoffs import Spot, Tradeoff
from fedmate.studies.grid import Wanted
from fedmate.studies.harmony import harmony, pareto_front
from fedmate.studies.outcome import Outcome
from fedmate.studies.presentation import DRAWN, SHOWS, check_shows
from fedmate.studies.reading import load_grid
from fedmate.studies.store import Store

S10 = column("s10", name="s = 10")
ROWS = (
    row("fedavg", name="FedAvg", view="global"),
    row("ft", name="FT-FedAvg", view="post", method={"name": "fedavg"}),
    row("fedper", name="FedPer", view="post"),
    row("fedmate", name="FedMate"),
)


def run(balanced: float, own: float, diverged_in: int | None = None) -> Run:
    """Nearly the same in all views, so that a wrong view is seen."""
    accuracy = {"pre": (balanced, own), "post": (balanced - 1, own + 2), "global": (balanced + 3, own - 5)}
    return Run(accuracy, diverged_in=diverged_in)


def outcome(wanted: Wanted | None = None, **more: list[Run | None]) -> Outcome:
    """Two seeds of everybody, unless told otherwise."""
    runs: dict[str, list[Run | None]] = {
        "fedavg": [run(60.0, 70.0), run(62.0, 70.0)],
        "ft": [run(60.0, 70.0), run(62.0, 70.0)],
        "fedper": [run(40.0, 71.0), run(41.0, 72.0)],
        "fedmate": [run(58.0, 80.0), run(59.0, 84.0)],
    }
    return outcome_of(grid_of([S10], ROWS), {f"s10/{key}": of_row for key, of_row in (runs | more).items()}, wanted)


def shown(of: Outcome, place: int = 0) -> tuple[Sheet, Tradeoff]:
    """Return the table and the picture of all rows, which come first, or of some of them."""
    sheet, picture = harmony(of)[2 * place : 2 * place + 2]
    assert isinstance(sheet, Sheet)
    assert isinstance(picture, Tradeoff)
    return sheet, picture


def table(sheet: Sheet) -> dict[str, list[str]]:
    return {name: cells for name, *cells in sheet.rows}


def spots(picture: Tradeoff) -> dict[str, Spot]:
    return {spot.name: spot for spot in picture.plane.spots}


# -------------------- the front


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(1, 2)], [0]),
        ([(1, 2), (2, 1)], [0, 1]),
        ([(1, 1), (2, 2)], [1]),
        ([(1, 2), (1, 1)], [0]),
        ([(1, 2), (2, 2)], [1]),
        ([(1, 2), (1, 2)], [0, 1]),
        ([(1, 2), (3, 0), (1, 2), (1, 1), (3, 0), (2, 0)], [0, 1, 2, 4]),
        ([(0, 5), (5, 0), (3, 3), (2, 2), (3, 2)], [0, 1, 2]),
        ([(-1, -2), (-2, -1), (-2, -2)], [0, 1]),
    ],
    ids=["none", "one", "two", "beaten", "same x", "same y", "twice", "copies", "many", "negative"],
)
def test_the_front(points: list[tuple[float, float]], front: list[int]) -> None:
    assert pareto_front(points) == front


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_who_is_not_on_the_front_is_beaten_by_somebody_who_is(points: list[tuple[int, int]]) -> None:
    front = pareto_front(points)
    leaders = [points[i] for i in front]
    for i, (x, y) in enumerate(points):
        beaten = any(a >= x and b >= y and (a > x or b > y) for a, b in leaders)
        assert beaten == (i not in front)
    # From left to right it never rises.
    assert [y for _, y in sorted(set(leaders))] == sorted((y for _, y in set(leaders)), reverse=True)


# -------------------- the table


def test_rows_have_both_tests_in_their_view_with_standard_errors() -> None:
    sheet, _ = shown(outcome())
    assert sheet.name == "front_s10"
    assert [*sheet.head] == ["method", "view", "balanced", "own", "seeds", "front"]
    # Of two seeds that are d apart: the deviation is d / sqrt(2), with n - 1, and the error d / 2.
    assert table(sheet) == {
        "FedAvg": ["`global`", "64.00 ± 1.00", "65.00 ± 0.00", "2", "yes"],
        "FT-FedAvg": ["`post`", "60.00 ± 1.00", "72.00 ± 0.00", "2", "yes"],
        "FedPer": ["`post`", "39.50 ± 0.50", "73.50 ± 0.50", "2", "no"],
        "FedMate": ["`pre`", "58.50 ± 0.50", "82.00 ± 2.00", "2", "yes"],
    }
    assert "on seeds 0, 1, which all rows have" in " ".join(sheet.notes)
    assert "± standard error of the mean over seeds" in " ".join(sheet.notes)
    assert "published in: Table 0" in sheet.notes


def test_rows_are_compared_as_they_are_shown() -> None:
    rows = [row("fedavg"), row("fedper")]
    runs: dict[str, list[Run | None]] = {"s10/fedavg": [run(50.001, 60.0)], "s10/fedper": [run(50.004, 59.999)]}
    sheet, picture = shown(outcome_of(grid_of([S10], rows), runs))
    assert [cells[2:] for cells in sheet.rows] == [["50.00", "60.00", "1", "yes"]] * 2
    assert {(spot.x, spot.y) for spot in picture.plane.spots} == {(50.0, 60.0)}


def test_rows_with_every_seed_are_compared_once_more_among_themselves() -> None:
    of = outcome(fedper=[run(40.0, 71.0), None])
    sheet, picture = shown(of, place=1)
    assert (sheet.name, picture.name) == ("front_seeds_s10", "harmony_seeds_s10")
    assert sheet.title == "A table; balanced and own accuracy of those with every seed, s = 10"
    assert picture.title == "A table; balanced and own accuracy of those with every seed"
    assert table(sheet) == {name: cells for name, cells in table(shown(outcome())[0]).items() if name != "FedPer"}
    assert {*spots(picture)} == {"FedAvg", "FT-FedAvg", "FedMate"}
    assert picture.bars == "± standard error over 2 seeds"
    # Where all have them, once is enough.
    assert [len(harmony(one)) for one in (of, outcome())] == [4, 2]


def test_rows_are_compared_on_common_seeds() -> None:
    sheet, picture = shown(outcome(fedper=[run(40.0, 71.0), None], fedmate=[run(58.0, 80.0), run(99.0, 99.0)]))
    assert table(sheet)["FedMate"] == ["`pre`", "58.00", "80.00", "1", "yes"]
    assert {cells[4] for cells in sheet.rows} == {"1"}
    assert "on seed 0, which all rows have;" in " ".join(sheet.notes)
    assert {spot.errors for spot in picture.plane.spots} == {None}


def test_who_diverged_with_a_seed_is_left_out_and_takes_it_from_nobody() -> None:
    sheet, picture = shown(outcome(fedmate=[run(58.0, 80.0, 3), run(59.0, 84.0)]))
    assert "FedMate" not in table(sheet)
    assert table(sheet)["FedAvg"][3] == "2"
    assert spots(picture)["FedAvg"].errors is not None
    assert "left out, diverged: FedMate" in sheet.notes
    assert "on seeds 0, 1, which all rows have but those that diverged;" in " ".join(sheet.notes)
    # With a seed that not all rows have it may do what it wants.
    sheet, _ = shown(outcome(fedmate=[run(58.0, 80.0), run(59.0, 84.0), run(1.0, 1.0, 3)]))
    assert table(sheet)["FedMate"][:4] == ["`pre`", "58.50 ± 0.50", "82.00 ± 2.00", "2"]


def test_without_common_seeds_each_row_has_its_own_and_it_is_said() -> None:
    sheet, picture = shown(outcome(fedper=[None, None, run(40.0, 71.0)]))
    assert table(sheet)["FedMate"][3] == "2"
    assert table(sheet)["FedPer"][3] == "1"
    assert "on the seeds that each row has, for none is common to all" in " ".join(sheet.notes)
    assert picture.bars == "± standard error over 2 seeds"
    assert spots(picture)["FedPer"].errors is None


def test_both_numbers_are_of_the_same_seeds() -> None:
    half = Run({"pre": (10.0, None)})
    sheet, _ = shown(outcome(fedmate=[run(58.0, 80.0), half]))
    assert table(sheet)["FedMate"] == ["`pre`", "58.00", "80.00", "1", "yes"]


# -------------------- who is not there


def test_rows_without_figures_are_named_and_not_drawn() -> None:
    no_view = Run({"pre": (60.0, 70.0), "post": (60.0, 70.0), "global": None})
    sheet, picture = shown(
        outcome(
            fedavg=[no_view, no_view],
            ft=[no_view, no_view],
            fedmate=[run(1.0, 1.0, 2), run(1.0, 1.0, 2)],
            fedper=[None, None],
        )
    )
    assert [*table(sheet)] == ["FT-FedAvg"], "the same runs, in a view that they have"
    assert [*spots(picture)] == ["FT-FedAvg"]
    assert [note for note in sheet.notes if note.startswith("left out")] == [
        "left out, without figures in the view `global`: FedAvg",
        "left out, not run: FedPer",
        "left out, diverged: FedMate",
    ]


def test_rows_that_nobody_meant_are_not_missed() -> None:
    grid = grid_of([S10, column("s70")], ROWS)
    runs: dict[str, list[Run | None]] = {key: [run(50.0, 60.0)] for key in ("s10/fedavg", "s10/ft", "s70/fedmate")}
    sheets = harmony(outcome_of(grid, runs, Wanted(patterns=("s10/fedavg", "s70/fedmate"))))[::2]
    assert [[*table(sheet)] for sheet in sheets if isinstance(sheet, Sheet)] == [["FedAvg"], ["FedMate"]]
    assert not [note for sheet in sheets if isinstance(sheet, Sheet) for note in sheet.notes if "left out" in note]


def test_a_column_without_figures_has_no_picture() -> None:
    (sheet,) = harmony(outcome_of(grid_of([S10], ROWS), {}))
    assert isinstance(sheet, Sheet)
    assert sheet.rows == []
    assert "left out, not run: FedAvg, FT-FedAvg, FedPer, FedMate" in sheet.notes


# -------------------- the picture


def test_the_picture_has_what_the_table_says() -> None:
    _, picture = shown(outcome())
    assert picture.name == "harmony_s10"
    assert picture.title == "A table; balanced and own accuracy"
    assert picture.plane.title == "s = 10"
    assert picture.labels == ("accuracy (%), balanced test", "accuracy (%), own test")
    assert (picture.front, picture.bars) == ("Pareto front", "± standard error over 2 seeds")
    found = spots(picture)
    assert {name: (spot.x, spot.y) for name, spot in found.items()} == {
        "FedAvg": (64.0, 65.0),
        "FT-FedAvg": (60.0, 72.0),
        "FedPer": (39.5, 73.5),
        "FedMate": (58.5, 82.0),
    }
    assert [spot.entry for spot in found.values()] == [
        "FedAvg (global)",
        "FT-FedAvg (post)",
        "FedPer (post)",
        "FedMate (pre)",
    ]
    assert [name for name, spot in found.items() if spot.on_front] == ["FedAvg", "FT-FedAvg", "FedMate"]
    assert found["FedMate"].errors == pytest.approx((0.5, 2.0))


def test_bars_are_standard_errors() -> None:
    """Of 1, 2 and 6: the deviation is sqrt(7), with n - 1."""
    rows = [row("fedavg")]
    runs: list[Run | None] = [run(1.0, 50.0), run(2.0, 50.0), run(6.0, 50.0)]
    _, picture = shown(outcome_of(grid_of([S10], rows), {"s10/fedavg": runs}))
    (spot,) = picture.plane.spots
    assert spot.errors == pytest.approx((math.sqrt(7 / 3), 0.0))
    assert spot.entry == "fedavg", "all have one view"


def test_each_column_has_its_own_and_rows_look_alike_whichever_are_meant() -> None:
    columns = (S10, column("s70", stands_in_for="cinic10"))
    runs: dict[str, list[Run | None]] = {
        f"{key}/{one.key}": [run(50.0 + i, 60.0 - i)] for key in ("s10", "s70") for i, one in enumerate(ROWS)
    }
    wanted = Wanted(patterns=("*/fedper", "*/fedmate"), quick=True, settings="paper")
    first, one, second, other = harmony(outcome_of(grid_of(columns, ROWS), runs, wanted))
    assert [first.name, one.name, second.name, other.name] == ["front_s10", "harmony_s10", "front_s70", "harmony_s70"]
    assert isinstance(one, Tradeoff)
    assert isinstance(other, Tradeoff)
    assert [spot.look for spot in one.plane.spots] == [spot.look for spot in other.plane.spots] == [2, 3]
    assert one.title.endswith("(--quick: cut short, no figures to compare by)"), "nothing stands in there"
    assert other.title.endswith("(--quick: cut short, no figures to compare by; digits stands in for cinic10)")
    assert other.plane.title == "s70\n(run with digits)"
    assert isinstance(second, Sheet)
    assert "s70 (run with digits)" in second.title


# -------------------- the command

GRID = """
title = "Both at once"
shows = ["harmony"]
[base]
rounds = 4
eval_every = 2
[quick]
rounds = 2
[columns.skewed]
partition.share = 10
[rows.fedavg]
name = "FedAvg"
view = "global"
method.name = "fedavg"
[rows.local]
name = "Local"
method.name = "local"
"""


def test_it_can_be_shown_and_is_drawn_by_the_command(tmp_path: Path) -> None:
    assert "harmony" in SHOWS.keys() & DRAWN
    path, out = tmp_path / "mine.toml", tmp_path / "out"
    path.write_text(GRID)
    grid = load_grid(str(path))
    check_shows(grid)
    for cell in grid.cells(Wanted(seeds=2)):
        start = 60.0 if cell.row.key == "fedavg" else 30.0
        Store(out).keep(cell.name, kept_of(cell, run(start + cell.seed, 100 - start)).content)
    result = CliRunner().invoke(app, ["reproduce", str(path), "--out", str(out), "--seeds", "2", "--show"])
    assert result.exit_code == 0, result.output
    assert "63.50 ± 0.50" in result.output
    made = sorted(one.name for one in (out / "mine").iterdir())
    assert made == sorted(
        [".fedmate-made", "figures.csv"]
        + [f"front_skewed{suffix}" for suffix in (".csv", ".md", ".tex")]
        + [f"harmony_skewed{suffix}" for suffix in (".pdf", ".png", ".svg")]
    )
    drawing = (out / "mine" / "harmony_skewed.svg").read_text()
    assert all(f">{word}<" in drawing for word in ("FedAvg", "Local", "Pareto front", "± standard error over 2 seeds"))


def test_another_view_of_the_same_runs_is_drawn_beneath_the_first() -> None:
    _, picture = shown(outcome())
    assert [spot.beneath for spot in picture.plane.spots] == [False, True, False, False]

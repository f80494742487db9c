"""Pictures show the figures of the cells, each row in its view, and say what they must not be taken for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.reproduce.small import Run, column, grid_of, outcome_of, row

from fedmate.report.figures import Circles, Clouds, Dots, Lines, Picture, Series
from fedmate.report.plots import MOST
from fedmate.report.sheets import Sheet
from fedmate.studies.grid import Wanted
from fedmate.studies.harmony import harmony
from fedmate.studies.outcome import Outcome
from fedmate.studies.pictures import classwise, curves, holdings, line, losses, prototypes
from fedmate.studies.presentation import SHOWS, Shown

ROWS = (row("fedavg", name="FedAvg"), row("local", name="Local", view="post"))
COLUMNS = (column("s10", name="s = 10"), column("s70", name="s = 70"))


def run(start: float = 0.0, diverged_in: int | None = None) -> Run:
    """Something of everything: three rounds in two views, two classes, two clients."""
    points = [(t, float(t), {"pre": (start + t, 50.0 + t), "post": (2 * start + t, None)}) for t in (1, 2, 3)]
    return Run(
        {"pre": (start + 3, 53.0), "post": (2 * start + 3, None)},
        curve=points,
        losses={"before": (start + 0.5, start + 0.25), "after": (start + 0.125, None)},
        classes={"pre": (start, 100.0), "post": (None, start + 1)},
        diverged_in=diverged_in,
        arrays={"prototypes": torch.tensor([[[0.0, start], [5.0, 0.0]], [[0.0, 0.5], [5.0, 0.5]]])},
    )


def outcome(**more: list[Run | None]) -> Outcome:
    """Two seeds of FedAvg and one of Local in both columns, unless told otherwise."""
    runs: dict[str, list[Run | None]] = {}
    for key in ("s10", "s70"):
        runs |= {f"{key}/fedavg": [run(10.0), run(14.0)], f"{key}/local": [run(20.0), None]}
    runs |= {key.replace("__", "/"): value for key, value in more.items()}
    return outcome_of(grid_of(COLUMNS, ROWS), runs)


def only(shown: Shown) -> Lines:
    (picture,) = shown
    assert isinstance(picture, Lines)
    return picture


def numbers(series: Series) -> list[tuple[float, float]]:
    return list(zip(series.x, series.y, strict=True))


# -------------------- by round


def test_curves_are_means_over_seeds_in_the_rows_view() -> None:
    picture = only(curves(outcome()))
    assert picture.name == "curves"
    assert [panel.title for panel in picture.panels] == ["s = 10", "s = 70"]
    assert picture.labels == ("round", "accuracy (%), balanced test")
    for panel in picture.panels:
        average, alone = panel.series
        assert (average.name, alone.name) == ("FedAvg (pre)", "Local (post)")
        assert numbers(average) == [(1, 13.0), (2, 14.0), (3, 15.0)]
        assert average.spread == pytest.approx([math.sqrt(8)] * 3)
        assert numbers(alone) == [(1, 41.0), (2, 42.0), (3, 43.0)], "twice 20 in this view"
        assert alone.spread == [], "of one seed nothing is known"


def test_curves_are_those_of_the_columns_test() -> None:
    columns = (column("s10"), column("s70", test="own"))
    of_both = outcome_of(grid_of(columns, ROWS[:1]), {"s10/fedavg": [run(10.0)], "s70/fedavg": [run(10.0)]})
    picture = only(curves(of_both))
    assert picture.labels[1] == "accuracy (%)"
    assert [panel.title for panel in picture.panels] == ["s10, balanced test", "s70, own test"]
    assert [panel.series[0].y for panel in picture.panels] == [[11.0, 12.0, 13.0], [51.0, 52.0, 53.0]]
    assert [panel.series[0].name for panel in picture.panels] == ["FedAvg", "FedAvg"], "all have one view"
    # Losses and classes are not a matter of the test.
    for other in (only(losses(of_both)), *classwise(of_both)):
        assert isinstance(other, Lines | Dots)
        assert [panel.title for panel in other.panels] == ["s10", "s70"]


def test_runs_that_diverged_are_drawn_only_if_there_are_no_others() -> None:
    mixed, alone = outcome(s10__fedavg=[run(10.0), run(90.0, 3)]), outcome(s10__fedavg=[run(90.0, 3), None])
    found = [only(curves(one)).panels[0].series[0] for one in (mixed, alone)]
    assert [series.y[0] for series in found] == [11.0, 91.0]
    assert [series.name for series in found] == ["FedAvg (pre)", "FedAvg (pre), diverged"]


def test_rounds_that_a_seed_lacks_are_left_out() -> None:
    short = run(14.0)._replace(curve=run(14.0).curve[1:])
    picture = only(curves(outcome(s10__fedavg=[run(10.0), short])))
    assert picture.panels[0].series[0].x == [2, 3]


def test_what_is_not_there_is_not_drawn() -> None:
    picture = only(curves(outcome(s10__fedavg=[None], s10__local=[None])))
    assert [panel.title for panel in picture.panels] == ["s = 70"]
    nothing = outcome_of(grid_of(COLUMNS, ROWS), {})
    assert [[*show(nothing)] for show in (curves, losses, classwise, line, holdings)] == [[]] * 5


def test_a_row_looks_alike_whichever_cells_are_meant() -> None:
    runs: dict[str, list[Run | None]] = {"s10/local": [run(20.0)]}
    some = outcome_of(grid_of(COLUMNS, ROWS), runs, Wanted(patterns=("s10/local",)))
    everything = only(curves(outcome())).panels[0].series[1]
    assert only(curves(some)).panels[0].series[0].look == everything.look == 1


def test_losses_before_and_after() -> None:
    picture = only(losses(outcome()))
    assert picture.logarithmic
    assert picture.labels == ("round", "cross-entropy (nats)")
    assert [name for name, _ in picture.keys] == ["before local training", "after local training"]
    before, after, *_ = picture.panels[0].series
    assert numbers(before) == [(1, 12.5), (2, 12.25)]
    assert numbers(after) == [(1, 12.125)], "the second is not known"
    assert (before.line, after.line) == tuple(look for _, look in picture.keys)
    assert before.look == after.look
    assert len(picture.panels[0].series) == 4


# -------------------- by class


def test_classes_have_the_accuracy_of_the_rows_view() -> None:
    (picture,) = classwise(outcome())
    assert isinstance(picture, Dots)
    assert (picture.name, [*picture.classes]) == ("classwise", ["0", "1"])
    assert len(picture.panels) == 2
    average, alone = picture.panels[0].series
    assert average.y == [12.0, 100.0]
    assert average.spread == pytest.approx([math.sqrt(8), 0.0])
    assert math.isnan(alone.y[0])
    assert alone.y[1] == 21.0


def test_columns_with_other_classes_have_a_picture_of_their_own() -> None:
    named = run(10.0)._replace(more={"class_names": ["cat", "dog"]})
    first, second = classwise(outcome(s10__fedavg=[named], s10__local=[None]))
    assert isinstance(first, Dots)
    assert isinstance(second, Dots)
    assert [first.name, second.name] == ["classwise_s10", "classwise_s70"]
    assert [[*first.classes], [*second.classes]] == [["cat", "dog"], ["0", "1"]]
    assert [len(first.panels), len(second.panels)] == [1, 1]


# -------------------- by a number


def weights(stands_in_for: str | None = None, quick: bool = False) -> Outcome:
    rows = [
        row(str(w), method={"name": "fedmate", "centre_weight": w}, paper={"s70": 50.0 - w} if w < 5 else {})
        for w in (0.2, 1.0, 5.0)
    ]
    runs: dict[str, list[Run | None]] = {"s70/0.2": [run(10.0), run(12.0)], "s70/5.0": [run(30.0)]}
    grid = replace(grid_of([column("s70", stands_in_for=stands_in_for)], rows), name="lambda_e")
    return outcome_of(grid, runs, Wanted(quick=quick))


def test_a_line_has_ours_and_the_papers() -> None:
    picture = only(line(weights()))
    assert (picture.ticks, picture.mark_best) == (["0.2", "1.0", "5.0"], True)
    assert picture.labels == ("lambda_e (method.centre_weight)", "accuracy (%), balanced test")
    ours, paper = picture.panels[0].series
    assert [ours.name, paper.name] == ["ours", "paper"]
    assert [*ours.x] == [0, 1, 2]
    assert ours.y[::2] == [14.0, 33.0]
    assert math.isnan(ours.y[1]), "not run"
    assert ours.spread[0] == pytest.approx(math.sqrt(2))
    assert numbers(paper) == [(0, 49.8), (1, 49.0)], "the last was not published"


@pytest.mark.parametrize(
    ("stands_in_for", "quick", "names"),
    [
        ("cinic10", False, ["ours, on digits", "paper, on cinic10"]),
        (None, True, ["ours (--quick)", "paper"]),
        ("cinic10", True, ["ours (--quick), on digits", "paper, on cinic10"]),
    ],
)
def test_lines_are_named_after_their_data(stands_in_for: str | None, quick: bool, names: list[str]) -> None:
    assert [series.name for series in only(line(weights(stands_in_for, quick))).panels[0].series] == names


def test_rows_that_differ_in_more_than_one_option_are_named_after_the_experiment() -> None:
    rows = [
        row("a", method={"name": "fedmate", "centre_weight": 1.0}),
        row("b", method={"name": "fedmate", "fusion_weight": 2.0}),
    ]
    assert only(line(outcome_of(grid_of(COLUMNS[:1], rows), {"s10/a": [run()]}))).labels[0] == "small"


# -------------------- prototypes


def test_prototypes_have_places_and_a_silhouette() -> None:
    sheet, picture, other = prototypes(outcome())
    assert isinstance(sheet, Sheet)
    assert isinstance(picture, Clouds)
    assert [picture.name, other.name] == ["prototypes_s10", "prototypes_s70"]
    first, second = picture.panels
    assert first.classes == [0, 1, 0, 1]
    assert len(first.places) == 4
    # Class 0 lies at (0, 10) and (0, 0.5), class 1 at (5, 0) and (5, 0.5).
    mine, near, far = 9.5, (math.hypot(5, 10) + math.hypot(5, 9.5)) / 2, (5 + math.hypot(5, 0.5)) / 2
    others = [(math.hypot(5, 10) + math.hypot(5, 0.5)) / 2, (math.hypot(5, 9.5) + 5) / 2]
    expected = np.mean([(near - mine) / near, (far - mine) / mine, *((other - 0.5) / other for other in others)])
    assert first.title == f"FedAvg\nsilhouette {expected:.3f}"
    assert second.title.startswith("Local\nsilhouette ")
    assert sheet.name == "silhouette"
    assert [*sheet.head] == ["method", "s = 10", "s = 70"]
    assert sheet.rows[0][1].partition(" ± ")[0] != "", "two seeds"
    assert " ± " in sheet.rows[0][1]
    assert " ± " not in sheet.rows[1][1]
    assert sheet.bold == {(0, 1), (0, 2)}
    assert "first seed" in picture.title


def test_classes_that_a_client_does_not_hold_are_left_out() -> None:
    lacking = run(10.0)._replace(holdings=((3, 0), (1, 3)))
    _, picture, _ = prototypes(outcome(s10__fedavg=[lacking]))
    assert isinstance(picture, Clouds)
    assert picture.panels[0].classes == [], "three are too few to be drawn"
    assert picture.panels[1].classes == [0, 1, 0, 1]


def test_rows_without_prototypes_have_no_panel() -> None:
    bare, empty = run()._replace(arrays=None), run(0.0)._replace(arrays={"prototypes": torch.zeros(0, 0, 0)})
    grid = grid_of(COLUMNS[:1], ROWS)
    sheet, picture = prototypes(outcome_of(grid, {"s10/fedavg": [bare], "s10/local": [empty]}))
    assert isinstance(sheet, Sheet)
    assert isinstance(picture, Clouds)
    assert picture.name == "prototypes"
    assert [panel.title for panel in picture.panels] == ["Local\nsilhouette unknown"]
    assert [cells[1] for cells in sheet.rows] == ["", ""]
    assert not sheet.bold
    (alone,) = prototypes(outcome_of(grid, {"s10/fedavg": [bare]}))
    assert isinstance(alone, Sheet)


def test_prototypes_of_a_run_that_diverged_are_said_to_be_that() -> None:
    diverged = run(0.0, 2)._replace(arrays={"prototypes": torch.zeros(0, 0, 0)})
    runs = {"s10/fedavg": [run()], "s10/local": [diverged]}
    sheet, picture = prototypes(outcome_of(grid_of(COLUMNS[:1], ROWS), runs))
    assert isinstance(sheet, Sheet)
    assert isinstance(picture, Clouds)
    assert picture.panels[1].title == "Local\ndiverged"
    assert sheet.rows[1] == ["Local", "diverged"]


# -------------------- who holds what


def test_holdings_of_each_column() -> None:
    named = run()._replace(more={"class_names": ["cat", "dog"]}, holdings=((3, 0), (1, 3)))
    pictures = holdings(outcome(s10__fedavg=[named, None]))
    assert [picture.name for picture in pictures] == ["holdings_s10", "holdings_s70"]
    first, second = (picture.holdings for picture in pictures if isinstance(picture, Circles))
    assert first.counts.tolist() == [[3, 0], [1, 3]]
    assert [[*first.clients], [*first.classes], [*second.classes]] == [["0", "1"], ["cat", "dog"], ["0", "1"]]
    assert (first.title, first.notes) == ("s = 10, seed 0", [])


def test_more_clients_than_can_be_shown_are_not() -> None:
    crowd = run()._replace(holdings=((1, 1),) * (MOST + 1))
    pictures = holdings(outcome(s10__fedavg=[crowd]))
    assert [picture.name for picture in pictures] == ["holdings_s70"]


# -------------------- what must be known


@pytest.mark.parametrize("show", [curves, losses, classwise, line, prototypes, holdings])
def test_titles_say_what_was_cut_short_and_what_stands_in(show: Callable[[Outcome], Shown]) -> None:
    columns = [column(key, stands_in_for="cinic10") for key in ("s10", "s30")]
    columns += [column("s70", stands_in_for="emnist")]
    runs: dict[str, list[Run | None]] = {f"{key}/fedavg": [run(10.0)] for key in ("s10", "s30", "s70")}
    plain, marked = (
        [picture for picture in show(outcome_of(grid_of(over, ROWS[:1]), runs, wanted)) if isinstance(picture, Picture)]
        for over, wanted in ((COLUMNS, Wanted()), (columns, Wanted(quick=True, settings="tuned")))
    )
    assert plain
    assert marked
    for picture in plain:
        assert picture.title.startswith("A table; ")
        assert not [word for word in ("quick", "stands in", "tuned") if word in picture.title]
    for picture in marked:
        assert picture.title.endswith(
            "(--quick: cut short, no figures to compare by; digits stands in for cinic10, emnist)"
        )
        assert ", tuned settings (" in picture.title
    parts = [panel.title for picture in marked if isinstance(picture, Lines | Dots) for panel in picture.panels]
    assert all(title.endswith("\n(run with digits)") for title in parts)
    for picture in marked:
        if isinstance(picture, Circles):
            one = "emnist" if picture.name == "holdings_s70" else "cinic10"
            assert picture.holdings.notes == [
                "--quick: cut short, no figures to compare by",
                f"digits stands in for {one}",
            ]


def test_titles_say_that_validation_samples_were_asked() -> None:
    asked = column("s30", values={"partition": {"share": 30}, "evaluate_on": "validation"})
    runs: dict[str, list[Run | None]] = {"s10/fedavg": [run(10.0)], "s30/fedavg": [run(10.0)]}
    pictures = harmony(outcome_of(grid_of([COLUMNS[0], asked], ROWS[:1]), runs))
    titles = [picture.title for picture in pictures if isinstance(picture, Picture)]
    ending = " (validation samples, not the test split)"
    assert [title.endswith(ending) for title in titles] == [False, True]


def test_every_picture_can_be_drawn() -> None:
    names = ("classwise", "curves", "holdings", "line", "losses", "prototypes")
    drawn = [picture for name in names for picture in SHOWS[name](outcome()) if isinstance(picture, Picture)]
    assert {type(picture) for picture in drawn} == {Lines, Dots, Clouds, Circles}
    assert all(picture.draw(".svg").startswith(b"<?xml") for picture in drawn)

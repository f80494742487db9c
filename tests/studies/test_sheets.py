"""Tables of accuracies, made of plain numbers."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest
from tests.reproduce.small import Accuracy, Run, column, grid_of, outcome_of, row

from fedmate.report.sheets import Sheet, to_csv, to_latex, to_markdown
from fedmate.studies.grid import Wanted
from fedmate.studies.long_form import FIGURES, figures
from fedmate.studies.outcome import Outcome
from fedmate.studies.sheets import accuracy, ranking, spread

PAPER = {"s10": 49.39, "s70": 64.33}
FT = row("ft", name="FT-FedAvg", view="post", method={"name": "fedavg"}, paper=PAPER)
FEDMATE = row("fedmate", name="FedMate", paper={"s10": 55.05})
GLOBAL = row("global", name="FedAvg, global", view="global", method={"name": "fedavg"})
LOCAL = row("local", name="Local", view="post")
S10, S70 = column("s10", name="CIFAR-10, s = 10"), column("s70", name="CIFAR-10, s = 70")

AVERAGED: Accuracy = {
    "pre": (67.5, 72.0),
    "post": (48.0, 80.0),
    "global": (67.5, 72.0),
    "classifier_tuned": (60.0, 81.0),
}
OWN: Accuracy = {"pre": (55.0, 82.0), "post": (47.0, 83.0), "global": (68.0, 70.0)}
ALONE: Accuracy = {"pre": (28.0, 85.0), "post": (28.0, 85.0), "global": None}
DIVERGED = Run({"pre": None, "post": None, "global": None}, diverged_in=3)


def shifted(accuracy: Accuracy, by: float) -> Accuracy:
    """Return figures of another seed."""
    return {view: pair and ((pair[0] or 0) + by, (pair[1] or 0) + by) for view, pair in accuracy.items()}


def small(wanted: Wanted | None = None, *, stands_in_for: str | None = None) -> Outcome:
    """Return two seeds of s10 and one of a part of s70."""
    grid = grid_of([column("s10", name=S10.name, stands_in_for=stands_in_for), S70], [FT, FEDMATE, GLOBAL, LOCAL])
    return outcome_of(
        grid,
        {
            "s10/ft": [Run(AVERAGED), Run(shifted(AVERAGED, 2.0))],
            "s10/fedmate": [Run(OWN), Run(shifted(OWN, 0.1))],
            "s10/global": [Run(AVERAGED), Run(shifted(AVERAGED, 2.0))],
            "s10/local": [Run(ALONE), None],
            "s70/fedmate": [DIVERGED, None],
            "s70/local": [Run({"pre": (40.0, 60.0), "post": (40.0, 60.0), "global": None}), None],
        },
        wanted,
    )


def cells(sheet: Sheet, name: str) -> dict[str, str]:
    """Return a row by the name in its first column."""
    (found,) = [one for one in sheet.rows if one[0] == name]
    return dict(zip(sheet.names(), found, strict=True))


# -------------------- beside the published figures


def test_ours_stand_beside_the_papers_in_the_rows_view() -> None:
    sheet = accuracy(small())[0]
    assert sheet.name == "accuracy"
    assert sheet.names()[:5] == ["method", "view", *(f"CIFAR-10, s = 10: {n}" for n in ("paper", "ours", "difference"))]
    assert [[*one][:5] for one in sheet.rows] == [
        ["FT-FedAvg", "`post`", "49.39", "49.00 ± 1.41", "-0.39"],
        ["FedMate", "`pre`", "55.05", "55.05 ± 0.07", "+0.00"],
        ["FedAvg, global", "`global`", "", "68.50 ± 1.41", ""],
        ["Local", "`post`", "", "28.00", ""],
    ]


def test_a_difference_is_that_of_the_numbers_shown() -> None:
    grid = grid_of([S10], [row("fedavg", paper={"s10": 50.004})])
    for ours, difference in ((49.9951, "+0.00"), (50.0049, "+0.00"), (50.006, "+0.01"), (48.5, "-1.50")):
        sheet = accuracy(outcome_of(grid, {"s10/fedavg": [Run({"pre": (ours, 0.0)})]}))[0]
        assert sheet.rows[0][-1] == difference


def test_cells_that_diverged_say_so_and_those_not_run_say_nothing() -> None:
    sheet = accuracy(small())[0]
    ours = [cells(sheet, one.name)["CIFAR-10, s = 70: ours"] for one in (FT, FEDMATE, GLOBAL, LOCAL)]
    assert ours == ["", "diverged", "", "40.00"]
    assert cells(sheet, "FT-FedAvg")["CIFAR-10, s = 70: paper"] == "64.33"
    assert cells(sheet, "FT-FedAvg")["CIFAR-10, s = 70: difference"] == ""


def test_figures_without_the_runs_that_diverged_say_so_and_a_view_that_is_none_is_none() -> None:
    grid = grid_of([S10], [row("fedavg")])
    outcome = outcome_of(grid, {"s10/fedavg": [DIVERGED, Run({"pre": (40.0, 60.0)})]})
    assert accuracy(outcome)[0].rows[0][2] == "40.00 (1 of 2 diverged)"
    views = next(one for one in accuracy(outcome) if one.name == "views_s10")
    assert list(views.rows[0])[1:4] == ["40.00 (1 of 2 diverged)", "-", "-"]


def test_the_largest_of_a_column_stands_out() -> None:
    sheet = accuracy(small())[0]
    assert {(sheet.rows[i][0], sheet.names()[j]) for i, j in sheet.bold} == {
        ("FedAvg, global", "CIFAR-10, s = 10: ours"),
        ("Local", "CIFAR-10, s = 70: ours"),
    }


def test_equally_large_ones_stand_out_together() -> None:
    grid = grid_of([S10], [row("fedavg"), row("fedrep"), row("fedper")])
    runs = [Run({"pre": (value, 0.0)}) for value in (50.001, 49.999, 49.9)]
    sheet = accuracy(
        outcome_of(grid, dict(zip(["s10/fedavg", "s10/fedrep", "s10/fedper"], ([r] for r in runs), strict=True)))
    )[0]
    assert sheet.bold == {(0, 2), (1, 2)}


def test_a_few_seeds_are_not_held_against_many() -> None:
    grid = grid_of([S10], [row("fedavg"), row("fedrep")])
    one, two = Run({"pre": (60.0, 0.0)}), [Run({"pre": (value, 0.0)}) for value in (49.0, 51.0)]
    sheet = accuracy(outcome_of(grid, {"s10/fedavg": [one], "s10/fedrep": two}))[0]
    assert [cells[2] for cells in sheet.rows] == ["60.00", "50.00 ± 1.41"]
    assert sheet.bold == {(1, 2)}


def test_the_columns_own_test_decides() -> None:
    grid = grid_of([column("s10", test="own")], [row("fedavg", paper={"s10": 60.0})])
    sheet = accuracy(outcome_of(grid, {"s10/fedavg": [Run({"pre": (50.0, 61.0)})]}))[0]
    assert sheet.rows == [["fedavg", "`pre`", "60.00", "61.00", "+1.00"]]
    assert "test: `own`" in sheet.notes


def test_different_tests_are_named_by_column() -> None:
    grid = grid_of([column("s10", name="A"), column("s20", name="B", test="own"), column("s30", name="C")], [FEDMATE])
    sheet = accuracy(outcome_of(grid, {}))[0]
    assert [note for note in sheet.notes if note.startswith("test")] == ["test: `balanced` in A; C", "test: `own` in B"]


def test_a_column_without_published_figures_has_ours_alone() -> None:
    sheet = accuracy(outcome_of(grid_of([S10], [LOCAL]), {"s10/local": [Run(ALONE)]}))[0]
    assert list(sheet.head) == ["method", "view", "ours"]
    assert sheet.rows == [["Local", "`post`", "28.00"]]
    assert sheet.bold == {(0, 2)}


def test_where_other_data_stand_in_there_is_no_difference() -> None:
    sheet = accuracy(small(stands_in_for="cinic10"))[0]
    assert sheet.names()[2:5] == [
        "CIFAR-10, s = 10 (run with digits): paper (cinic10)",
        "CIFAR-10, s = 10 (run with digits): ours",
        "CIFAR-10, s = 70: paper",
    ]
    assert cells(sheet, "FT-FedAvg")["CIFAR-10, s = 10 (run with digits): ours"] == "49.00 ± 1.41"
    assert "CIFAR-10, s = 10: digits stands in for cinic10" in sheet.notes
    assert (2, 3) in sheet.bold


def test_quick_runs_have_no_difference_either() -> None:
    for sheet in accuracy(small(Wanted(quick=True))):
        assert "difference" not in sheet.head
        assert sheet.title.endswith(" (--quick)")
        assert any(note.startswith("--quick") for note in sheet.notes)


# -------------------- every view


def test_every_view_and_test_is_shown_once_for_each_run() -> None:
    sheet = accuracy(small())[1]
    assert sheet.name == "views_s10"
    assert sheet.names() == [
        "method",
        *("`balanced`: `pre`", "`balanced`: `post`", "`balanced`: `global`"),
        *("`own`: `pre`", "`own`: `post`", "`own`: `global`"),
        *("`classifier_tuned`: `balanced`", "`classifier_tuned`: `own`"),
    ]
    assert [one[0] for one in sheet.rows] == ["FT-FedAvg / FedAvg, global", "FedMate", "Local"]
    means = (68.5, 49, 68.5, 73, 81, 73, 61, 82)
    assert list(sheet.rows[0])[1:] == [f"{mean:.2f} ± 1.41" for mean in means]
    assert list(sheet.rows[2]) == ["Local", "28.00", "28.00", "-", "85.00", "85.00", "-", "-", "-"]


def test_the_published_views_stand_out() -> None:
    sheet = accuracy(small())[1]
    assert sheet.bold == {(0, 2), (0, 3), (1, 1), (2, 2)}


def test_views_of_cells_that_diverged_or_were_not_run() -> None:
    sheet = accuracy(small())[2]
    assert sheet.name == "views_s70"
    assert [list(one) for one in sheet.rows] == [
        ["FT-FedAvg / FedAvg, global", *[""] * 6],
        ["FedMate", *["diverged"] * 6],
        ["Local", "40.00", "40.00", "-", "60.00", "60.00", "-"],
    ]


def test_rows_that_no_cell_was_meant_of_are_left_out() -> None:
    outcome = small(Wanted(patterns=("s10/fedmate", "s70/local")))
    by_name = {sheet.name: [one[0] for one in sheet.rows] for sheet in accuracy(outcome)}
    assert by_name == {"accuracy": ["FedMate", "Local"], "views_s10": ["FedMate"], "views_s70": ["Local"]}


# -------------------- who leads


def test_everybody_is_ranked_in_one_view_and_global_models_beside_them() -> None:
    sheet = ranking(small())[0]
    assert sheet.name == "ranking_s10"
    assert sheet.names()[:3] == ["`balanced`: place", "`balanced`: method", "`balanced`: accuracy"]
    # Local has one of the two seeds, so nobody is ranked on the other.
    assert [list(one) for one in sheet.rows] == [
        ["1", "FedMate (global)", "68.00 (1 seed)", "1", "Local", "85.00 (1 seed)"],
        ["2", "FT-FedAvg / FedAvg, global", "67.50 (1 seed)", "2", "FedMate", "82.00 (1 seed)"],
        ["3", "FedMate", "55.00 (1 seed)", "3", "FT-FedAvg / FedAvg, global", "72.00 (1 seed)"],
        ["4", "Local", "28.00 (1 seed)", "4", "FedMate (global)", "70.00 (1 seed)"],
    ]


def test_seeds_that_all_rows_have_give_standard_errors() -> None:
    sheet = ranking(small(Wanted(seeds=2, patterns=("s10/f*", "s10/global"))))[0]
    assert [list(one)[:3] for one in sheet.rows] == [
        ["1", "FT-FedAvg / FedAvg, global", "68.50 ± 1.00 (2 seeds)"],
        ["2", "FedMate (global)", "68.05 ± 0.05 (2 seeds)"],
        ["3", "FedMate", "55.05 ± 0.05 (2 seeds)"],
    ]


def test_rows_with_every_seed_are_ranked_once_more_among_themselves() -> None:
    found = ranking(small())
    assert [sheet.name for sheet in found] == ["ranking_s10", "ranking_seeds_s10", "ranking_s70"]
    assert found[1].title == "A table; ranking of those with every seed, CIFAR-10, s = 10"
    assert [list(one)[:3] for one in found[1].rows] == [
        ["1", "FT-FedAvg / FedAvg, global", "68.50 ± 1.00 (2 seeds)"],
        ["2", "FedMate (global)", "68.05 ± 0.05 (2 seeds)"],
        ["3", "FedMate", "55.05 ± 0.05 (2 seeds)"],
    ]
    # Where all have them, once is enough.
    assert len(ranking(small(Wanted(seeds=2, patterns=("s10/f*", "s10/global"))))) == 1


def test_who_diverged_is_last_and_who_was_not_run_is_not_there() -> None:
    assert [list(one) for one in ranking(small())[2].rows] == [
        ["1", "Local", "40.00 (1 seed)", "1", "Local", "60.00 (1 seed)"],
        ["", "FedMate", "diverged", "", "FedMate", "diverged"],
    ]


def test_equal_figures_share_a_place() -> None:
    keys = ["fedavg", "fedrep", "fedper", "local"]
    grid, values = grid_of([S10], [row(key) for key in keys]), [50.0, 60.001, 59.999, 40.0]
    runs = {f"s10/{key}": [Run({"pre": (value, value)})] for key, value in zip(keys, values, strict=True)}
    found = [(one[0], one[1]) for one in ranking(outcome_of(grid, runs))[0].rows]
    assert found == [("1", "fedrep"), ("1", "fedper"), ("3", "fedavg"), ("4", "local")]


# -------------------- for machines


def lines(outcome: Outcome) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(figures(outcome)))))


def test_machines_get_every_figure_on_a_line() -> None:
    found = lines(small())
    assert tuple(found[0]) == FIGURES
    of_fedmate = [one for one in found if (one["column"], one["row"]) == ("s10", "fedmate")]
    assert [(one["view"], one["test"]) for one in of_fedmate] == [
        (view, test) for view in ("pre", "post", "global") for test in ("balanced", "own")
    ]
    assert of_fedmate[0] == {
        "experiment": "small",
        "settings": "paper",
        "quick": "no",
        "column": "s10",
        "stands_in_for": "",
        "row": "fedmate",
        "method": "fedmate",
        "view": "pre",
        "test": "balanced",
        "published_view": "yes",
        "mean": "55.05",
        "std": "0.07",
        "seeds": "2",
        "paper": "55.05",
        "difference": "0.00",
        "diverged": "0",
        "partition_sha256": "ab" * 32,
    }
    assert {(one["published_view"], one["paper"], one["difference"]) for one in of_fedmate[1:]} == {("no", "", "")}


def test_machines_get_no_lines_for_cells_that_were_not_meant() -> None:
    found = lines(small(Wanted(patterns=("s10/fedmate", "s70/local"))))
    assert {(one["column"], one["row"]) for one in found} == {("s10", "fedmate"), ("s70", "local")}


def test_machines_hear_of_what_diverged_and_what_was_not_run() -> None:
    found = [one for one in lines(small()) if one["column"] == "s70"]
    known = [(one["row"], one["view"], one["test"], one["mean"], one["seeds"], one["diverged"]) for one in found]
    assert known[:4] == [
        *(("ft", "post", test, "", "0", "0") for test in ("balanced", "own")),
        *(("fedmate", "pre", test, "", "0", "1") for test in ("balanced", "own")),
    ]
    assert [one["paper"] for one in found[:2]] == ["64.33", ""]


@pytest.mark.parametrize(("quick", "stands_in_for"), [(True, None), (False, "cinic10"), (True, "cinic10")])
def test_machines_get_no_difference_where_nothing_may_be_compared(quick: bool, stands_in_for: str | None) -> None:
    found = [one for one in lines(small(Wanted(quick=quick), stands_in_for=stands_in_for)) if one["column"] == "s10"]
    assert {one["difference"] for one in found} == {""}
    assert {(one["quick"], one["stands_in_for"]) for one in found} == {("yes" if quick else "no", stands_in_for or "")}
    assert "49.39" in {one["paper"] for one in found}


def test_partitions_of_several_seeds_are_all_named() -> None:
    runs = [Run({"pre": (1.0, 2.0)}, sha256=sha256) for sha256 in ("aa", "bb", "aa")]
    (line, _) = lines(outcome_of(grid_of([S10], [row("fedavg")]), {"s10/fedavg": runs}))
    assert line["partition_sha256"] == "aa bb"


# -------------------- all of them


def test_every_sheet_says_what_it_is_from_and_what_to_beware_of() -> None:
    outcome = small(Wanted(quick=True))
    for sheet in [*accuracy(outcome), *ranking(outcome), figures(outcome)]:
        assert sheet.title.startswith("A table")
        assert sheet.title.endswith(" (--quick)")
        assert "published in: Table 0" in sheet.notes
        # Of those with every seed nothing is missing.
        beware = outcome.notes() if sheet.name != "ranking_seeds_s10" else outcome.notes()[:1]
        assert {*beware} <= {*sheet.notes}


def test_tuned_settings_are_told_from_the_papers() -> None:
    outcome = small()
    tuned = replace(outcome, wanted=outcome.wanted._replace(settings="tuned", quick=True))
    assert accuracy(outcome)[0].title == "A table"
    assert accuracy(tuned)[0].title == "A table, tuned settings (--quick)"
    assert ranking(tuned)[0].title == "A table; ranking, CIFAR-10, s = 10, tuned settings (--quick)"
    assert {one["settings"] for one in lines(tuned)} == {"tuned"}


def test_hostile_names_reach_every_form() -> None:
    name = "50 % | [red] {x}_\\ \n`y"
    grid = grid_of(
        [column("../a|b", name=name)], [row("fedavg", name=name, paper={"../a|b": 1.0})], title=name, source=name
    )
    outcome = outcome_of(grid, {"../a|b/fedavg": [Run({"pre": (1.0, 2.0), "x|y\n": (3.0, 4.0)})]})
    sheets = [*accuracy(outcome), *ranking(outcome), figures(outcome)]
    assert [sheet.name for sheet in sheets] == ["accuracy", "views_.._a_b", "ranking_.._a_b", "figures"]
    for sheet in sheets:
        assert r"50 \% \textbar{} {[}red{]} \{x\}\_\textbackslash{} \`{}y" in to_latex(sheet)
        assert r"50 % \| \[red] {x}\_\\ \`y" in to_markdown(sheet)
        assert len([*csv.reader(io.StringIO(to_csv(sheet), newline=""))]) == 1 + len(sheet.rows)


def test_the_same_outcome_gives_the_same_bytes() -> None:
    first, second = (
        [to_markdown(sheet) for sheet in [*accuracy(o), *ranking(o), figures(o)]] for o in (small(), small())
    )
    assert first == second


# -------------------- who holds what


def test_the_spread_of_clients_is_summed_up() -> None:
    uneven = Run({"pre": (1.0, 2.0)}, holdings=((6, 2, 0, 0), (1, 0, 9, 0)))
    even = Run({"pre": (1.0, 2.0)}, holdings=((5, 5), (5, 5)))
    (sheet,) = spread(outcome_of(grid_of([S10, S70], [FEDMATE]), {"s10/fedmate": [uneven], "s70/fedmate": [even]}))
    assert [list(one)[1:] for one in sheet.rows] == [
        ["2", "8 to 10", "2", "75.0 to 90.0", "1"],
        ["2", "10", "2", "50.0", "0"],
    ]

"""What crosses and how long it takes, from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.reproduce.small import Accuracy, Run, column, grid_of, outcome_of, row

from fedmate.report.sheets import Sheet
from fedmate.studies.effort import TARGET, cost, time_to_accuracy
from fedmate.studies.grid import Wanted
from fedmate.studies.outcome import Outcome

S70 = column("s70", name="CIFAR-10, s = 70")
HOLDINGS = [[3, 1]] * 20
ROUNDS, MESSAGES = 200, 200 * 20
E, H, P = 106_400, 1_290, 1_280
"""The numbers in the extractor, the classifier and the prototypes of the paper's network for CIFAR-10."""


def crossing(up: Mapping[str, float], down: Mapping[str, float] | None = None) -> Run:
    """Return a run in which so many numbers cross by item, for a client and round on average."""
    both = [{item: round(4 * MESSAGES * number) for item, number in way.items()} for way in (up, down or up)]
    return Run({"pre": (50.0, 60.0)}, up=both[0], down=both[1], holdings=HOLDINGS)


MODEL = {"extractor": E, "classifier": H, "buffers": 0, "bookkeeping": 1}
SCHEDULED = {"extractor": E * 198 / 200, "classifier": H, "prototypes": P, "bookkeeping": 5.5}


def costs(runs: dict[str, Run]) -> Sheet:
    """Return the table of some methods; `ft` is FedAvg in another view."""
    methods = {
        "ft": {"name": "fedavg"},
        "ALL": {"name": "fedmate", "cft": "all"},
        "NULL": {"name": "fedmate", "cft": "null"},
    }
    grid = grid_of([S70], [row(key, method=methods.get(key)) for key in runs], rounds=ROUNDS)
    (sheet,) = cost(outcome_of(grid, {f"s70/{key}": [run] for key, run in runs.items()}))
    return sheet


def cells(sheet: Sheet, name: str) -> dict[str, str]:
    """Return a row by the name in its first column."""
    (found,) = [one for one in sheet.rows if one[0] == name]
    return dict(zip(sheet.names(), found, strict=True))


def test_what_crosses_is_counted_for_a_client_and_round_and_for_the_run() -> None:
    sheet = costs(
        {"fedavg": crossing(MODEL), "fedpac": crossing({**MODEL, "statistics": 12_810}, {**MODEL, "prototypes": P})}
    )
    assert sheet.name == "cost"
    assert cells(sheet, "fedpac") == {
        "method": "fedpac",
        "paper": "model + prototype",
        "down: parts": "extractor 106,400, classifier 1,290, prototypes 1,280",
        "down: numbers": "108,970",
        "down: MB": f"{4 * MESSAGES * (E + H + P) / 1e6:.2f}",
        "up: parts": "extractor 106,400, classifier 1,290, statistics 12,810",
        "up: numbers": "120,500",
        "up: MB": f"{4 * MESSAGES * (E + H + 12_810) / 1e6:.2f}",
        "bookkeeping MB": f"{4 * MESSAGES * 2 / 1e6:.3f}",
        "of the model": f"{(2 * (E + H) + P + 12_810) / (2 * (E + H)):.4f}",
    }
    assert cells(sheet, "fedavg")["of the model"] == "1.0000"


def test_fedmate_costs_what_the_schedule_says() -> None:
    """The specification's figure: the extractor stays at home in 2 of 200 rounds, 1.0020 of the model."""
    sheet = costs({"ft": crossing(MODEL), "fedmate": crossing(SCHEDULED)})
    assert cells(sheet, "fedmate")["of the model"] == "1.0020"
    assert cells(sheet, "fedmate")["paper"] == "equivalent to model"
    assert cells(sheet, "fedmate")["up: numbers"] == "107,906"
    assert (
        "fedmate: the extractor travels down in 198, up in 198 of 200 rounds; of the model 1.002006 down, 1.002006 up"
        in sheet.notes
    )


def test_other_schedules_are_measured_by_the_one_that_always_sends() -> None:
    always = {"extractor": E, "classifier": H, "prototypes": P}
    sheet = costs({"NULL": crossing({"classifier": H, "prototypes": P}), "ALL": crossing(always)})
    assert cells(sheet, "ALL")["of the model"] == "1.0119"
    assert cells(sheet, "NULL")["of the model"] == f"{(H + P) / (E + H):.4f}" == "0.0239"
    assert {cells(sheet, name)["paper"] for name in ("ALL", "NULL")} == {""}
    assert any(note.startswith("NULL: the extractor travels down in 0, up in 0 of 200 rounds") for note in sheet.notes)


def test_without_a_run_that_sends_models_there_is_nothing_to_measure_by() -> None:
    sheet = costs({"fedmate": crossing(SCHEDULED), "local": crossing({})})
    assert cells(sheet, "fedmate")["of the model"] == ""
    assert cells(sheet, "local")["up: parts"] == "nothing"
    assert cells(sheet, "local")["up: numbers"] == "0"
    assert not any("travels" in note for note in sheet.notes)


def test_averages_have_a_decimal_where_they_need_one() -> None:
    sheet = costs({"fedavg": crossing({"extractor": 10.25, "classifier": 3})})
    assert cells(sheet, "fedavg")["up: parts"] == "extractor 10.2, classifier 3"


@pytest.mark.parametrize(
    ("base", "messages"),
    [
        ({"participation": 0.29}, 200 * 5),
        ({"participation": 0.01}, 200),
        ({"holdout_clients": 0.25}, 200 * 15),
        ({"dtype": "float64"}, 2 * MESSAGES),
        ({"rounds": 50}, 50 * 20),
    ],
)
def test_messages_are_those_of_participants_and_rounds(base: dict[str, object], messages: int) -> None:
    grid = grid_of([column("s70", values=base)], [row("fedavg")], rounds=ROUNDS)
    run = Run({}, up={"extractor": 4 * messages * 10}, down={}, holdings=HOLDINGS)
    (sheet,) = cost(outcome_of(grid, {"s70/fedavg": [run]}))
    assert cells(sheet, "fedavg")["up: numbers"] == "10"


def test_a_run_that_diverged_counts_its_rounds_and_one_that_did_not_is_preferred() -> None:
    grid = grid_of([S70], [row("fedavg"), row("fedrep")], rounds=ROUNDS)
    half = Run({}, up={"extractor": 4 * 100 * 20 * 10}, down={}, holdings=HOLDINGS, diverged_in=100)
    whole = Run({}, up={"extractor": 4 * MESSAGES * 10}, down={}, holdings=HOLDINGS)
    (sheet,) = cost(outcome_of(grid, {"s70/fedavg": [half, whole], "s70/fedrep": [half, None]}))
    assert cells(sheet, "fedavg")["up: MB"] == f"{4 * MESSAGES * 10 / 1e6:.2f}"
    assert cells(sheet, "fedrep")["up: numbers"] == "10"
    assert cells(sheet, "fedrep")["up: MB"] == f"{4 * 100 * 20 * 10 / 1e6:.2f}"


def test_what_was_not_run_is_empty_and_the_same_run_is_shown_once() -> None:
    rows = [row("fedavg"), row("ft", view="post", method={"name": "fedavg"}), row("fedrep")]
    run = Run({}, up={"extractor": 16_000}, down={"extractor": 16_000}, holdings=HOLDINGS)
    (sheet,) = cost(outcome_of(grid_of([S70], rows), {"s70/fedavg": [run]}))
    assert [one[0] for one in sheet.rows] == ["fedavg / ft", "fedrep"]
    assert list(sheet.rows[1]) == ["fedrep", *[""] * 9]


def test_columns_have_sheets_of_their_own() -> None:
    sheets = cost(outcome_of(grid_of([S70, column("s1/0")], [row("fedavg")]), {}, Wanted(quick=True)))
    assert [sheet.name for sheet in sheets] == ["cost_s70", "cost_s1_0"]
    assert all(sheet.title.endswith("(--quick)") and "published in: Table 0" in sheet.notes for sheet in sheets)


# -------------------- how long it takes


def curve(*accuracies: float | None) -> list[tuple[int, float, Accuracy]]:
    """Return a curve of rounds 5, 10, ..., of 2.5 seconds a round, with the accuracy after training on the own test."""
    return [(5 * i, 12.5 * i, {"pre": (99.0, 99.0), "post": (99.0, value)}) for i, value in enumerate(accuracies, 1)]


def reaching(*accuracies: float | None, flops: float | None = 1e12, diverged_in: int | None = None) -> Run:
    more = {} if flops is None else {"flops_per_round": flops}
    return Run({"post": (99.0, 99.0)}, curve=curve(*accuracies), more=more, diverged_in=diverged_in)


def timed(*runs: Run | None) -> Outcome:
    """Return seeds of a row that is looked at after training, on the own test."""
    grid = grid_of([column("s70", name="CINIC-10", test="own")], [row("fedrep", name="FedRep", view="post")], rounds=20)
    return outcome_of(grid, {"s70/fedrep": runs})


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([reaching(50.0, TARGET, 65.0, 80.0)], ["10", "25.0", "1.00e+13"]),
        ([reaching(50.0, TARGET - 0.01, None, 80.0)], ["20", "50.0", "2.00e+13"]),
        ([reaching(80.0, 90.0, flops=None)], ["5", "12.5", ""]),
        ([reaching(80.0), reaching(60.0, 80.0)], ["7.5 ± 3.5", "18.8 ± 8.8", "7.50e+12 ± 3.54e+12"]),
        (
            [reaching(80.0), reaching(60.0, 65.0), reaching(80.0)],
            ["5.0 ± 0.0 (2 of 3 seeds)", "12.5 ± 0.0", "5.00e+12 ± 0.00e+00"],
        ),
        ([reaching(50.0, 61.239, 60.0), reaching(20.0)], ["not reached (best 61.24)", "", ""]),
        ([reaching(50.0, diverged_in=7)], ["diverged (best 50.00)", "", ""]),
        ([reaching(diverged_in=2)], ["diverged", "", ""]),
        ([reaching(75.0, diverged_in=7)], ["5", "12.5", "5.00e+12"]),
        ([None], ["", "", ""]),
    ],
)
def test_the_first_look_with_the_target_counts(runs: list[Run | None], expected: list[str]) -> None:
    (sheet,) = time_to_accuracy(timed(*runs))
    assert [list(one) for one in sheet.rows] == [["FedRep", "`post`", *expected]]


def test_the_table_of_times_says_what_it_measures() -> None:
    (sheet,) = time_to_accuracy(timed(reaching(80.0)))
    assert sheet.name == "time"
    assert sheet.title == "A table; time to 70 %"
    assert sheet.names()[2:] == [f"CINIC-10, `own` test: {name}" for name in ("rounds", "seconds", "FLOPs")]
    assert sheet.notes[0] == "until 70 % are reached, mean over clients; looked at every round"
    assert any("17.7 minutes" in note for note in sheet.notes)
    assert "published in: Table 0" in sheet.notes


def test_the_table_of_times_says_how_often_was_looked() -> None:
    grid = grid_of([column("s70", values={"eval_every": 5}), column("s10")], [row("local")])
    (sheet,) = time_to_accuracy(outcome_of(grid, {"s70/local": [reaching(80.0)]}))
    assert sheet.notes[0].endswith("looked at every 5 rounds")
    (sheet,) = time_to_accuracy(outcome_of(grid, {"s70/local": [reaching(80.0)], "s10/local": [reaching(80.0)]}))
    assert sheet.notes[0].endswith("looked at every 1 or 5 rounds")


def test_a_view_that_a_curve_lacks_is_not_reached() -> None:
    grid = grid_of([column("s70")], [row("local", view="global")])
    (sheet,) = time_to_accuracy(outcome_of(grid, {"s70/local": [reaching(80.0)]}))
    assert sheet.rows[0][2] == "not reached"

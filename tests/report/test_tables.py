"""One table from several summaries."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from fedmate.report.tables import adapted, comparison, newcomers, samples_by_class


def figures(balanced: float | None, own: float | None) -> dict[str, Any]:
    return {"balanced": {"mean": balanced, "std": 1.0}, "own": {"mean": own, "std": 1.0}}


def summary(method: str, view: str, accuracy: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "method": method,
        "dataset": "digits",
        "clients": 20,
        "rounds": 50,
        "seed": 7,
        "accuracy": accuracy,
        "headline": {"view": view, "test": "balanced", "mean": 0.0},
        "bytes_up": 0,
        "bytes_down": 0,
        "seconds": 1.0,
        **changes,
    }


FEDAVG = summary(
    "fedavg",
    "pre",
    {"pre": figures(81.236, 60.5), "post": figures(70.0, 93.25), "global": figures(81.236, 11.0)},
    bytes_up=12_345_678,
    bytes_down=2_000_000,
    seconds=12.34,
)
LOCAL = summary("local", "post", {"pre": figures(40.5, 41.5), "post": figures(42.5, None), "global": None})


def rendered(summaries: list[dict[str, Any]], width: int = 140) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(comparison(summaries), highlight=False)
    return file.getvalue().splitlines()


def cells(lines: list[str], method: str) -> list[str]:
    (row,) = [line.split() for line in lines if line.split()[:1] == [method]]
    return row[1:]


def test_a_row_shows_accuracies_by_test_and_view_then_megabytes_and_seconds() -> None:
    lines = rendered([FEDAVG, LOCAL])
    assert cells(lines, "fedavg") == ["*81.24", "70.00", "81.24", "60.50", "93.25", "11.00", "12.3", "2.0", "12.3"]


def test_what_a_method_does_not_have_is_a_dash_and_the_headline_is_marked() -> None:
    assert cells(rendered([FEDAVG, LOCAL]), "local") == ["40.50", "*42.50", "-", "41.50", "-", "-", "0.0", "0.0", "1.0"]


def test_columns_are_named_in_that_order() -> None:
    lines = rendered([FEDAVG])
    (names,) = [line.split() for line in lines if line.split()[:1] == ["method"]]
    assert names == ["method", "pre", "post", "global", "pre", "post", "global", "up", "down", "s"]
    above = lines[[line.split()[:1] for line in lines].index(["method"]) - 1]
    assert above.split() == ["balanced", "own", "MB", "MB", "time"]


def test_rows_keep_the_order_of_the_runs() -> None:
    for runs in ([FEDAVG, LOCAL], [LOCAL, FEDAVG]):
        starts = [line.split()[0] for line in rendered(runs) if line.split()]
        assert [name for name in starts if name in ("fedavg", "local")] == [run["method"] for run in runs]


def test_the_title_says_what_was_compared() -> None:
    assert rendered([FEDAVG])[0].strip() == "digits, 20 clients, 50 rounds, seed 7"


def test_the_table_fits_into_a_terminal() -> None:
    lines = rendered([FEDAVG, LOCAL], width=80)
    assert max(len(line) for line in lines) <= 80
    assert cells(lines, "fedavg") == cells(rendered([FEDAVG, LOCAL]), "fedavg")


def test_views_that_only_some_methods_have_do_not_disturb() -> None:
    extra = {**FEDAVG, "accuracy": {**FEDAVG["accuracy"], "classifier_tuned": figures(99.0, 99.0)}}
    assert rendered([extra]) == rendered([FEDAVG])


def printed(table: RenderableType, width: int = 140) -> list[list[str]]:
    file = io.StringIO()
    Console(file=file, width=width).print(table, highlight=False)
    return [line.split() for line in file.getvalue().splitlines() if line.strip()]


ADAPTED: dict[str, dict[str, float | None]] = {
    "before": {"balanced": 10.0, "own": None},
    "after": {"balanced": 12.346, "own": 100.0},
    "global": {"balanced": 90.0, "own": 80.5},
}


def test_a_newcomer_has_a_row_for_each_model_and_the_words_are_explained() -> None:
    rows = printed(adapted(ADAPTED), width=80)
    assert rows[0][-2:] == ["balanced", "own"]
    assert rows[2:5] == [["before", "10.00", "-"], ["after", "12.35", "100.00"], ["global", "90.00", "80.50"]]
    assert [row[0] for row in rows[5:]] == ["before:", "after:", "global:", "balanced:", "own:"]


def test_a_model_that_is_not_there_is_not_explained() -> None:
    rows = printed(adapted({view: ADAPTED[view] for view in ("before", "after")}), width=80)
    assert [row[0] for row in rows[2:]] == ["before", "after", "before:", "after:", "balanced:", "own:"]


def test_the_caption_about_newcomers_is_short() -> None:
    met = {"clients": 2, "accuracy": {"before": figures(10.0, 20.0), "after": figures(30.0, 40.0)}}
    table = newcomers([summary("local", "pre", {}, newcomers=met)])
    assert table is not None
    rows = printed(table, width=80)
    (place,) = [i for i, row in enumerate(rows) if row == ["local", "10.00", "30.00", "20.00", "40.00"]]
    assert " ".join(word for row in rows[place + 1 :] for word in row) == (
        "accuracy in percent before and after one local update"
    )
    assert len(rows[place + 1 :]) <= 2


def test_samples_are_counted_by_class_whatever_it_is_called() -> None:
    rows = printed(samples_by_class({"train": {"[red]cat": 3, ":dog:": 0}, "test": {"[red]cat": 1, ":dog:": 20}}))
    assert ["[red]cat", "3", "1"] in rows
    assert [":dog:", "0", "20"] in rows
    assert rows[-1] == ["all", "3", "21"]

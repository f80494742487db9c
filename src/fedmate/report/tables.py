"""One table from several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

VIEWS = ("pre", "post", "global")
TESTS = ("balanced", "own")
MEANINGS = {
    "before": "the model as received; personal layers, if any, are not trained yet",
    "after": "the same model after one local update on the training samples",
    "global": "the aggregated model of the run",
    "balanced": "all classes weigh alike",
    "own": "classes weigh as in the training samples, as a model with a prior is told",
}
"""What the words in a newcomer's table mean."""


def comparison(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row per run: accuracy in percent by view and test, bytes, time."""
    first = summaries[0]
    title = f"{first['dataset']}, {first['clients']} clients, {_rounds(first)}, seed {first['seed']}"
    caption = (
        "accuracy in percent, mean over clients; * headline view; MB over all clients\n"
        "balanced: all classes weigh alike; own: as at the client, whose class shares\n"
        "models with `calibration` or `own_prior` are given there"
    )
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for test in TESTS:
        for view in VIEWS:
            # The test stands over its first column only, or the table would not fit into 80 characters.
            table.add_column(f"{test if view == VIEWS[0] else ''}\n{view}", justify="right", no_wrap=True)
    for name in ("MB\nup", "MB\ndown", "time\ns"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        cells = [_cell(summary, view, test) for test in TESTS for view in VIEWS]
        megabytes = [_short(summary[key] / 1e6) for key in ("bytes_up", "bytes_down")]
        table.add_row(summary["method"], *cells, *megabytes, _short(summary["seconds"]))
    return table


def _rounds(summary: Mapping[str, Any]) -> str:
    return f"{summary['rounds']} round{'s' * (summary['rounds'] != 1)}"


def newcomers(summaries: Sequence[dict[str, Any]]) -> Table | None:
    """Return a table of the clients that were not in training, or nothing if there were none."""
    met = [summary for summary in summaries if "newcomers" in summary]
    if not met:
        return None
    title = f"{met[0]['newcomers']['clients']} clients that were not in training"
    caption = "accuracy in percent before and after one local update"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for test in TESTS:
        for view in ("before", "after"):
            table.add_column(f"{test if view == 'before' else ''}\n{view}", justify="right", no_wrap=True)
    for summary in met:
        accuracy = summary["newcomers"]["accuracy"]
        cells = [_figure(accuracy[view], test) for test in TESTS for view in ("before", "after")]
        table.add_row(summary["method"], *cells)
    return table


def adapted(accuracy: Mapping[str, Mapping[str, float | None]]) -> Group:
    """Return a table of one newcomer's accuracies before and after it adapts, and what its words mean."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("accuracy in %", no_wrap=True)
    for test in TESTS:
        table.add_column(test, justify="right", no_wrap=True)
    for view, figures in accuracy.items():
        cells = (figures[test] for test in TESTS)
        table.add_row(view, *("-" if cell is None else f"{cell:.2f}" for cell in cells))
    # Below the table and not its caption, which would be as narrow as the table.
    meanings = [f"{word}: {meaning}" for word, meaning in MEANINGS.items() if word in accuracy or word in TESTS]
    return Group(table, Text("\n".join(meanings), style="table.caption"))


def samples_by_class(samples: Mapping[str, Mapping[str, int]]) -> Table:
    """Return a table of how many samples of each class were used, and for what."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("samples of class", "all")
    for part in ("train", "test"):
        table.add_column(part, str(sum(samples[part].values())), justify="right", no_wrap=True)
    for name in samples["train"]:
        table.add_row(Text(name), *(str(samples[part][name]) for part in ("train", "test")))
    return table


def _short(number: float) -> str:
    """Return a number with a decimal where it matters."""
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"


def _cell(summary: dict[str, Any], view: str, test: str) -> str:
    figure, headline = _figure(summary["accuracy"][view], test), summary["headline"]
    mark = "*" if figure != "-" and (headline["view"], headline["test"]) == (view, test) else ""
    return f"{mark}{figure}"


def _figure(figures: dict[str, Any] | None, test: str) -> str:
    return "-" if figures is None or figures[test]["mean"] is None else f"{figures[test]['mean']:.2f}"

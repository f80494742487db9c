"""One table from several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

VIEWS = ("pre", "post", "global")


def comparison(summaries: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a row per run: accuracy in percent by view and test, bytes, time."""
    first = summaries[0]
    title = f"{first['dataset']}, {first['clients']} clients, {first['rounds']} rounds, seed {first['seed']}"
    caption = "accuracy in percent, mean over clients; * headline view; MB over all clients"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for test in ("balanced", "own"):
        for view in VIEWS:
            # The test stands over its first column only, or the table would not fit into 80 characters.
            table.add_column(f"{test if view == VIEWS[0] else ''}\n{view}", justify="right", no_wrap=True)
    for name in ("MB\nup", "MB\ndown", "time\ns"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        cells = [_cell(summary, view, test) for test in ("balanced", "own") for view in VIEWS]
        megabytes = [_short(summary[key] / 1e6) for key in ("bytes_up", "bytes_down")]
        table.add_row(summary["method"], *cells, *megabytes, _short(summary["seconds"]))
    return table


def _short(number: float) -> str:
    """Return a number with a decimal where it matters."""
    return f"{number:.1f}" if number < 100 else f"{number:.0f}"


def _cell(summary: dict[str, Any], view: str, test: str) -> str:
    figures = summary["accuracy"][view]
    if figures is None or figures[test]["mean"] is None:
        return "-"
    headline = summary["headline"]
    mark = "*" if (headline["view"], headline["test"]) == (view, test) else ""
    return f"{mark}{figures[test]['mean']:.2f}"

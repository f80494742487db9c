"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import tables
from benchmarks.measure import Json, measure_case
from benchmarks.suites import SUITES, make_suite
from fedmate import storage
from fedmate.errors import UserError
from fedmate.experiment.build import decide_device
from fedmate.experiment.config import parse_set
from fedmate.report.drawing import check_plot
from fedmate.storage import check_new, write_for_user


def make_parser() -> argparse.ArgumentParser:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure how fast rounds are here.")
    add = parser.add_argument
    add("--suite", default="quick", metavar="S", help=f"{', '.join(SUITES)} or all (%(default)s)")
    add("--device", default="auto", metavar="D", help="`cpu`, `cuda`, `cuda:1`, ... (%(default)s)")
    add("--backend", action="append", metavar="B", help="a back end, `auto` or a baseline; repeatable")
    add("--method", action="append", metavar="M", help="a method instead of the suite's; repeatable")
    add("--precision", action="append", metavar="P", help="strict, tf32 or bf16; repeatable (tf32 on a GPU)")
    add("--set", action="append", metavar="KEY=VALUE", help="clients, samples, classes, network, ...; repeatable")
    add("--repeat", type=int, default=5, metavar="N", help="timed rounds per case (%(default)s)")
    add("--limit", type=float, default=600.0, metavar="S", help="seconds that a case may take (%(default)s)")
    add("--out", type=Path, metavar="FILE", help="new file for the results, as JSON")
    add("--plot", type=Path, metavar="FILE", help="new file for a plot of samples/s: `.svg`, `.png` or `.pdf`")
    add("--show", type=Path, action="append", metavar="FILE", help="show a file of `--out` instead; repeatable")
    add("--markdown", action="store_true", help="print the table as Markdown")
    return parser


def run(words: list[str]) -> None:
    """Do what the options say, or raise `UserError`."""
    asked = make_parser().parse_args(words)
    if asked.plot is not None:
        check_plot(asked.plot)
        check_new(asked.plot)
    if asked.out is not None:
        check_new(asked.out)
    results = tables.load(asked.show) if asked.show else measure(asked)
    present(results, asked.markdown)
    if asked.plot is not None:
        write_for_user(asked.plot, tables.plot_growth(results, asked.plot.suffix))


def measure(asked: argparse.Namespace) -> Json:
    """Measure cases; the file grows with them, so that results stay if the command is stopped."""
    device, settings = decide_device(asked.device), parse_set(asked.set or []).values
    cases = make_suite(asked.suite, device, asked.method or (), asked.backend or (), asked.precision or (), settings)
    results: Json = {"about": tables.describe(device, asked.repeat), "rows": []}
    for number, case in enumerate(cases, 1):
        row = measure_case(case, asked.repeat, asked.limit)
        results["rows"].append(row)
        found = f"{row['derived']['ms_per_round']:.4g} ms" if row["timing"] else row["error"]
        print(f"{number}/{len(cases)} {case.title}, {case.precision}: {found}", file=sys.stderr, flush=True)
        if asked.out is not None:
            storage.replace(asked.out, tables.to_json(results))
    return results


def present(results: Json, markdown: bool) -> None:
    """Print the table with what belongs to it."""
    lines = tables.table(results)
    print("\n".join(tables.summary(results)), end="\n\n")
    if markdown:
        print(tables.to_markdown(lines))
    else:
        words = len(lines[0]) - len(tables.MEASURES)
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for place, head in enumerate(lines[0]):
            shown.add_column(head, justify="left" if place < words else "right", no_wrap=True)
        for line in lines[1:]:
            shown.add_row(*line)
        # A line that wraps is better than a number that is cut.
        Console(width=400, markup=False).print(shown, highlight=False)
    print("\n".join(("", *tables.remarks(results), *tables.LEGEND)))


def main() -> None:
    """Run the command; a mistake of the user is one sentence and status 2."""
    try:
        run(sys.argv[1:])
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

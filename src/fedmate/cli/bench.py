"""`fedmate bench`: how fast rounds are on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmate.cli.app import make_console, one_line
from fedmate.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedmate.bench.case import Case
    from fedmate.bench.results import Results, Row

LIMIT = 600.0
MOST_ROUNDS, DAY = 10_000, 86_400
"""Seconds that a case may take."""

WIDEST = 400
"""Characters that a line of a table may have."""


def bench(
    suite: Annotated[
        str, typer.Option(metavar="S", help="quick, methods, clients, classes, models, rivals or all.")
    ] = "quick",
    device: Annotated[str, typer.Option(metavar="D", help="`cpu`, `cuda`, `cuda:1`, ...")] = "auto",
    backend: Annotated[
        list[str] | None,
        typer.Option(metavar="B", help="A back end, `auto` or a rival, instead of the suite's; repeatable."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="M", help="A method instead of the suite's; repeatable.")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(metavar="P", help="strict, tf32 or bf16; repeatable. [default: tf32 on a GPU]")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another clients, samples, classes, network, ...; repeatable."),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", help="Rounds of each case that count.")] = 5,
    limit: Annotated[float, typer.Option(metavar="S", help="Seconds that a case may take.")] = LIMIT,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="New file for everything, as JSON.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="New file for a picture of samples/s: `.svg`, `.png` or `.pdf`."),
    ] = None,
    show: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Measure nothing, show a file that `--out` wrote; repeatable."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as documents want it.")] = False,
) -> None:
    """Measure how fast rounds are here, beside others who do the same work."""
    from fedmate.bench.pictures import check_growth
    from fedmate.bench.results import Results, combine
    from fedmate.bench.suites import Choice, make_suite
    from fedmate.experiment.build import decide_device
    from fedmate.experiment.config import parse_set

    for name, number, most in (("--repeat", repeat, MOST_ROUNDS), ("--limit", limit, DAY)):
        if not 1 <= number <= most:
            raise UserError(f"`{name}` is {number}; set it between 1 and {most}.")
    _check_files(out, plot)
    if show:
        if out is not None:
            raise UserError("`--out` is given with `--show`, which measures nothing; leave one of them out.")
        try:
            _present(combine([Results.load(path) for path in show]), plot, markdown)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            reason = f"{type(error).__name__}: {one_line(str(error))}"
            raise UserError(
                f"`--show` got `{show[0]}`, whose content makes no sense ({reason}); give a file that `fedmate bench "
                "--out` wrote."
            ) from None
        return
    where = decide_device(device)
    choice = Choice(method or (), backend or (), precision or (), parse_set(set_ or []).values)
    cases = make_suite(suite, where, choice)
    if plot is not None:
        check_growth(cases)
    results = _measure(cases, (repeat, limit), where, out)
    measured = any(row.timing for row in results.rows)
    _present(results, plot if measured else None, markdown)
    if not measured:
        raise typer.Exit(1)


def _check_files(out: Path | None, plot: Path | None) -> None:
    """Raise `UserError` unless what is to be written can be, before anything takes time."""
    from fedmate.report.plots import check_picture
    from fedmate.storage import check_new

    if plot is not None:
        check_picture(plot)
        check_new(plot)
    if out is not None:
        check_new(out)


def _measure(cases: list[Case], effort: tuple[int, float], device: str, out: Path | None) -> Results:
    """Measure cases; the file grows with them, so that what was measured stays whatever happens."""
    from fedmate import storage
    from fedmate.bench.results import Results, describe
    from fedmate.bench.run import Bench
    from fedmate.storage import write_for_user

    console = make_console()
    results = Results(describe(device, effort[0]))
    if out is not None:
        write_for_user(out, results.to_json())
    with Bench(*effort) as bench, console.status("measuring what this machine can do") as status:
        results.roofline = bench.roofline(device)
        rows = bench.measure(cases)
        for number, case in enumerate(cases, 1):
            status.update(f"{number}/{len(cases)} {case.title}")
            results.rows.append(next(rows))
            if out is not None:
                storage.replace(out, results.to_json())
            if not console.is_terminal:
                _tell(console, f"{number}/{len(cases)}", results.rows[-1])
    return results


def _tell(console: Console, number: str, row: Row) -> None:
    """Print a line for a case that is done, where no table is drawn while cases run."""
    found = f"{row.timing.milliseconds:.4g} ms" if row.timing else one_line(row.error or "failed")
    console.out(f"{number} {row.case.title}, {row.case.precision}: {found}", highlight=False)


def _present(results: Results, plot: Path | None, markdown: bool) -> None:
    """Print the table and draw the picture."""
    from fedmate.bench import tables
    from fedmate.bench.pictures import draw_growth
    from fedmate.storage import write_for_user

    console = make_console()
    for line in tables.headline(results):
        console.out(one_line(line), highlight=False)
    if results.rows and markdown:
        console.out(f"\n{tables.to_markdown(results)}", highlight=False)
    elif results.rows:
        _print_table(results, console)
    for note in (*tables.remarks(results), *tables.NOTES):
        console.out(one_line(note), highlight=False)
    if plot is not None:
        write_for_user(plot, draw_growth(results, plot.suffix))
        console.out(f"Picture: {plot}", highlight=False)


def _print_table(results: Results, console: Console) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fedmate.bench import tables

    heads = tables.columns(results.rows)
    table = Table(title=Text(tables.shared(results.rows)), box=box.SIMPLE_HEAD, pad_edge=False)
    words = len(heads) - len(tables.MEASURES)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < words else "right", no_wrap=True)
    for cells in tables.cells(results):
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    # A line that wraps is better than a number that is cut.
    wide = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
    console.width = max(console.width, wide)
    console.print(table, highlight=False, crop=False)

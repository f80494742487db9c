"""`fedmate reproduce`: the paper's tables and figures."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate.cli.app import DataDir, make_console, one_line, status
from fedmate.errors import UserError

if TYPE_CHECKING:
    from fedmate.studies.grid import Grid, Wanted
    from fedmate.studies.store import Store
    from fedmate.studies.sweep import Work


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which; without it, the list. A file of your own will do.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many, from 0.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short runs, to see it work; digits stand in for missing data.")
    ] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN/ROW", help="These cells only, `*` for anything; give it several times for more."),
    ] = None,
    settings: Annotated[
        str, typer.Option(metavar="paper|tuned", help="The paper's protocol, or the presets `tuned`.")
    ] = "paper",
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Cells at once: worth it on a GPU.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Cells and what is made of them.")] = Path("reproduced"),
    merge: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Take over finished cells from another folder; repeatable.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show the cells that are finished.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Run a table or figure of the paper, and show what came of it beside what was published.

    Finished cells are never run again: the same command continues a sweep that was stopped.
    """
    from fedmate.studies.grid import SETTINGS, Wanted
    from fedmate.studies.presentation import check_shows
    from fedmate.studies.reading import load_grid
    from fedmate.studies.saving import check_out
    from fedmate.studies.stand_ins import with_records
    from fedmate.studies.store import Store, cells_in

    console = make_console()
    if settings not in SETTINGS:
        raise UserError(f"`--settings` is `{settings}`; use {' or '.join(f'`{one}`' for one in SETTINGS)}.")
    if name is None:
        _list(console)
        return
    grid, wanted, store = load_grid(name), Wanted(seeds, settings, quick, tuple(cells or ())), Store(out)
    grid.check_patterns(wanted.patterns)
    check_shows(grid)
    for folder in merge or []:
        cells_in(folder)
    if merge or not show:
        check_out(out, grid.name, wanted, is_shown=show)
    left_out = [sentence for folder in merge or [] for sentence in _merge(console, store, folder)]
    if show:
        _show(console, with_records(grid, wanted, store), wanted, store)
    else:
        # Before the night, and once more below the tables.
        _tell(left_out)
    is_done = show or _run(console, grid, wanted, store, jobs, data_dir)
    _tell(left_out)
    if not is_done:
        raise typer.Exit(1)


def _tell(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        typer.echo(sentence, err=True)


def _list(console: Console) -> None:
    from fedmate.studies.grid import Wanted
    from fedmate.studies.reading import load_grid, names

    for name in names():
        grid = load_grid(name)
        number = len({cell.name for cell in grid.cells(Wanted())})
        about = "; ".join(filter(None, (f"{number} cells a seed", grid.source)))
        console.out(f"{name:<17} {grid.title} ({about})", highlight=False)


def _merge(console: Console, store: Store, folder: Path) -> list[str]:
    """Take over cells, and return what is said of those that cannot be."""
    merged = store.merge(folder)
    text = f"{folder}: new here {len(merged.new)}, here already {len(merged.same)}"
    if merged.unlike:
        text += f"; left alone, for they are here with other figures: {', '.join(merged.unlike)}"
    console.out(f"{text}.", highlight=False)
    return [f"Left out: {one_line(sentence)}" for sentence in merged.refused]


def _run(console: Console, grid: Grid, wanted: Wanted, store: Store, jobs: int, data_dir: Path | None) -> bool:
    """Run what is not finished, show all that is, and tell whether nothing is left and all could be saved."""
    from fedmate.experiment.user_inputs import UserInputs
    from fedmate.studies.outcome import UNTUNED
    from fedmate.studies.stand_ins import with_data
    from fedmate.studies.sweep import Work

    chosen, notes = with_data(grid, wanted, data_dir)
    untuned = [f"{column.key}/{row.key}" for column, row in chosen.untuned(wanted)]
    if untuned:
        notes.append(f"{UNTUNED}: {', '.join(untuned)}")
    for note in notes:
        console.out(f"Note: {one_line(note)}", highlight=False)
    cells = chosen.cells(wanted)
    if not cells:
        raise UserError(f"`{grid.name}` has no cell to run here: see the notes on what was left out and why.")
    work = Work(cells, grid.measures, store, UserInputs(folder=data_dir))
    total = len(work.names())
    count = f"{total} cell{'s' * (total > 1)}"
    console.out(f"{grid.title}: {count}, {total - len(work.left())} of them finished.", highlight=False)
    for note in _warnings(work, grid):
        console.out(f"Note: {one_line(note)}", highlight=False)
    try:
        _sweep(console, work, jobs)
    except KeyboardInterrupt as error:
        done = total - len(work.left())
        typer.echo(f"Stopped. {done} of {total} cells are finished; the same command continues.", err=True)
        raise typer.Exit(status(error)) from None
    if not any(map(store.has, work.names())):
        console.out("No cell is finished, so there is nothing to show.", highlight=False)
        return False
    is_saved = _show(console, chosen, wanted, store)
    return is_saved and not work.left()


def _sweep(console: Console, work: Work, jobs: int) -> None:
    from fedmate.studies.sweep import sweep, sweep_in_processes
    from fedmate.studies.telling import Teller

    with Teller(console, len(work.left())) as teller:
        if jobs > 1 and len(work.left()) > 1:
            sweep_in_processes(work, teller, jobs)
        else:
            sweep(work, teller)
        others = work.of_others()
        if others:
            teller.warned(f"waiting for {len(others)} of the cells, which other processes are running")
            while work.of_others():
                time.sleep(1)
            # One that was stopped there is left to us.
            sweep(work._replace(cells=others), teller)


def _warnings(work: Work, grid: Grid) -> Iterator[str]:
    """Say what a user should know before the night, not after it."""
    from fedmate.studies.presentation import DRAWN

    outdated = work.outdated()
    if outdated:
        yield (
            f"finished cells of {', '.join(f'`{name}`' for name in outdated)} were run with another version of its "
            "file and are not run again; use another `--out` if the change matters."
        )
    if set(grid.shows) & DRAWN and importlib.util.find_spec("matplotlib") is None:
        yield "there will be no pictures without matplotlib; install it with `pip install 'fedmate[plots]'`."


def _show(console: Console, grid: Grid, wanted: Wanted, store: Store) -> bool:
    """Print the tables of the finished cells, save them with the pictures, and tell whether that could be done."""
    from fedmate.studies.outcome import Outcome
    from fedmate.studies.saving import save

    outcome = Outcome.of(grid, wanted, store)
    if not outcome.found:
        raise UserError(
            f"`{store.folder}` has no finished cell of what was asked of `{grid.name}`; run it without `--show`, or "
            "ask with the `--quick`, `--settings` and `--cells` that it was run with."
        )
    saved = save(outcome, store.folder)
    for table in saved.tables:
        width = max(console.width, console.measure(table).minimum)
        console.print(table, highlight=False, width=width, crop=False)
    for note in saved.notes:
        console.out(f"Note: {one_line(note)}", highlight=False)
    if saved.files:
        console.out(f"Saved: {saved.folder} ({', '.join(saved.files)})", highlight=False)
    return not saved.is_refused

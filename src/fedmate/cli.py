"""The command `fedmate`. It imports torch only when a command needs it, so that help is quick."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedmate import __version__
from fedmate.errors import DivergedError, FedmateError

if TYPE_CHECKING:
    from fedmate.experiment.build import Built
    from fedmate.experiment.config import Experiment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Personalised federated learning: FedMate and the methods it is compared with.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedmate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Carry the options of the command itself."""


@app.command()
def run(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="What to run; defaults to FedRep on digits.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="M", help="Method; give it several times to compare.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override `key` or `section.key`; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the record; it must not exist. [default: runs/...]")
    ] = None,
) -> None:
    """Run an experiment, or compare several methods on it, and keep the record."""
    from fedmate.experiment.build import build
    from fedmate.experiment.compose import compose
    from fedmate.experiment.record import check_free

    experiments = compose(experiment, method or [], dataset, set_ or [])
    folder = out or _default_folder(experiments)
    folders = [folder] if len(experiments) == 1 else [folder / e.method.name for e in experiments]
    check_free(folder)
    # Everything is built before anything is written: a mistake in the last method leaves no half comparison.
    _run_all([build(e) for e in experiments], folders)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[methods|datasets|partitions|models|backends]", help="Which table; all of them if left out."
        ),
    ] = None,
) -> None:
    """List what can be named in an experiment, with its options and their defaults."""
    from fedmate.catalogue import catalogue

    for line in catalogue(kind):
        typer.echo(line)


def _console() -> Console:
    """Return a console that does not squeeze tables when nobody looks at it."""
    return Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 140)


def _default_folder(experiments: list[Experiment]) -> Path:
    first = experiments[0]
    what = first.method.name if len(experiments) == 1 else "comparison"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{first.dataset.name}-{what}-{stamp}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def _run_all(built: list[Built], folders: list[Path]) -> None:
    """Run one experiment after the other and compare those that end; one that diverges does not stop the rest."""
    from fedmate.experiment.run import run
    from fedmate.progress import Bar, Lines, bars

    console = _console()
    for note in dict.fromkeys(note for b in built for note in b.notes):
        console.out(f"Note: {note}", highlight=False)
    live = bars(console) if console.is_terminal else None
    summaries: list[dict[str, Any]] = []
    failures: list[DivergedError] = []
    stopped_in: Path | None = None
    with live or nullcontext():
        for one, folder in zip(built, folders, strict=True):
            try:
                summaries.append(run(one, folder, Bar(live) if live else Lines(console)))
            except DivergedError as error:
                failures.append(DivergedError(f"{one.experiment.method.name}: {error} The record is in {folder}."))
            except KeyboardInterrupt:
                stopped_in = folder
                break
    _print_results(console, summaries, folders)
    if stopped_in is not None:
        typer.echo(f"Stopped. The record so far is in {stopped_in}.", err=True)
        raise typer.Exit(130)
    if failures:
        raise DivergedError(" ".join(map(str, failures)))


def _print_results(console: Console, summaries: list[dict[str, Any]], folders: list[Path]) -> None:
    from fedmate.report.tables import comparison

    if summaries:
        table = comparison(summaries)
        # A line that wraps is better than a number that is cut.
        width = max(console.width, console.measure(table).minimum)
        console.print(table, highlight=False, width=width, crop=False)
        console.out(f"Records: {', '.join(map(str, folders))}", highlight=False)


def main() -> None:
    """Run the command; a mistake of the user is one sentence and status 2, divergence status 3."""
    try:
        app()
    except OSError as error:
        typer.echo(f"Error: {_one_line(str(error))}; what was recorded until then is intact.", err=True)
        sys.exit(1)
    except FedmateError as error:
        typer.echo(f"Error: {_one_line(str(error))}", err=True)
        sys.exit(3 if isinstance(error, DivergedError) else 2)


def _one_line(sentence: str) -> str:
    """Escape line breaks and control characters that came with the user's own words."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

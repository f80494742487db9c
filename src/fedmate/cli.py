"""The command `fedmate`. It imports torch only when a command needs it, so that help is quick."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate import __version__
from fedmate.errors import DivergedError, FedmateError, UserError

if TYPE_CHECKING:
    from fedmate.experiment.jobs import Job

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
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the interrupted run or comparison in this folder.")
    ] = None,
) -> None:
    """Run an experiment, or compare several methods on it, and keep the record."""
    from fedmate.experiment.compose import Request
    from fedmate.experiment.config import load_file, parse_set
    from fedmate.experiment.jobs import resumed, started

    base = None if experiment is None else load_file(experiment)
    request = Request(base, method or [], dataset, parse_set(set_ or []))
    if resume is not None:
        if out is not None:
            raise UserError("`--out` begins a new run and `--resume` goes on with an old one; give one of them.")
        with resumed(request, resume) as jobs:
            _run_all(jobs, resume)
    else:
        with started(request, out) as jobs:
            _run_all(jobs, jobs[0].folder if len(jobs) == 1 else jobs[0].folder.parent)


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


def _run_all(jobs: list[Job], folder: Path) -> None:
    """Run what is not finished, and print one table of all."""
    from fedmate.experiment.jobs import run_jobs
    from fedmate.progress import Display

    console = _console()
    for job in jobs:
        if job.built is None:
            console.out(f"{job.folder} is finished already: nothing to do.", highlight=False)
    with Display(console) as display:
        display.notes(note for job in jobs for note in job.notes)
        try:
            diverged = run_jobs(jobs, display.observer)
        except (KeyboardInterrupt, OSError) as error:
            stopped: KeyboardInterrupt | OSError | None = error
        else:
            stopped = None
    _print_results(console, [job.folder for job in jobs])
    if stopped is not None:
        raise _say_how_to_continue(stopped, jobs, folder)
    if diverged:
        raise DivergedError(" ".join(diverged))


def _say_how_to_continue(stopped: KeyboardInterrupt | OSError, jobs: list[Job], folder: Path) -> typer.Exit:
    """Tell what is saved, as the disk has it now, and return the exit status."""
    from fedmate.experiment.checkpoint import Checkpoint
    from fedmate.experiment.record import Record

    job = next((job for job in jobs if not Record(job.folder).finished), jobs[-1])
    done, of = Checkpoint(job.folder).standing.round, Record(job.folder).config["rounds"]
    reason = "Stopped" if isinstance(stopped, KeyboardInterrupt) else f"Error: {_one_line(str(stopped))}"
    command = f"fedmate run --resume {shlex.quote(str(folder))}"
    typer.echo(f"{reason}. {job.folder} is saved after round {done} of {of}. Continue with: {command}", err=True)
    if isinstance(stopped, Terminated):
        return typer.Exit(143)
    return typer.Exit(130 if isinstance(stopped, KeyboardInterrupt) else 1)


def _print_results(console: Console, folders: list[Path]) -> None:
    from fedmate.experiment.record import Record
    from fedmate.report.tables import comparison, newcomers

    summaries = [record.summary for record in map(Record, folders) if record.finished]
    ended = [summary for summary in summaries if summary["diverged_in_round"] is None]
    if not ended:
        return
    for table in (comparison(ended), newcomers(ended)):
        if table is not None:
            # A line that wraps is better than a number that is cut.
            width = max(console.width, console.measure(table).minimum)
            console.print(table, highlight=False, width=width, crop=False)
    console.out(f"Records: {', '.join(map(str, folders))}", highlight=False)


class Terminated(KeyboardInterrupt):
    """The system asks the process to end, as a scheduler does when time is up: what Ctrl-C saves is saved then, too."""


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated


def main() -> None:
    """Run the command; a mistake of the user is one sentence and status 2, divergence status 3."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except OSError as error:
        typer.echo(f"Error: {_one_line(str(error))}; what was recorded until then is intact.", err=True)
        sys.exit(1)
    except KeyboardInterrupt as error:
        typer.echo("Stopped.", err=True)
        sys.exit(143 if isinstance(error, Terminated) else 130)
    except FedmateError as error:
        typer.echo(f"Error: {_one_line(str(error))}", err=True)
        sys.exit(3 if isinstance(error, DivergedError) else 2)


def _one_line(sentence: str) -> str:
    """Escape line breaks and control characters that came with the user's own words."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

"""`fedmate run`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate.cli.app import DataDir, Settings, SkipBad, make_console, one_line, read_settings, status
from fedmate.errors import DivergedError, StoppedError, UserError

if TYPE_CHECKING:
    from fedmate.experiment.prepare import PreparedRun


def run(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="What to run; defaults to FedRep on digits.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="M", help="Method; give it several times to compare.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set.")] = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the record; it must not exist. [default: runs/...]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the interrupted run or comparison in this folder.")
    ] = None,
) -> None:
    """Run an experiment, or compare methods, and keep the record."""
    from fedmate.experiment.config import load_file
    from fedmate.experiment.prepare import Request, new_runs, resumed_runs
    from fedmate.experiment.user_inputs import UserInputs

    base = None if experiment is None else load_file(experiment)
    settings, given = read_settings(set_, skip_bad), UserInputs(folder=data_dir)
    request = Request(base, method or [], dataset, settings, given)
    if resume is not None:
        if out is not None:
            raise UserError("`--out` begins a new run and `--resume` goes on with an old one; give one of them.")
        with resumed_runs(request, resume) as jobs:
            _run_all(jobs, resume, data_dir)
    else:
        with new_runs(request, out) as jobs:
            _run_all(jobs, jobs[0].folder if len(jobs) == 1 else jobs[0].folder.parent, data_dir)


def _run_all(jobs: list[PreparedRun], folder: Path, data_dir: Path | None) -> None:
    """Run what is not finished, and print one table of all."""
    from fedmate.experiment.prepare import run_all
    from fedmate.experiment.record import Record
    from fedmate.progress import Display

    console = make_console()
    for job in jobs:
        if job.built is None:
            diverged_in = Record(job.folder).summary.get("diverged_in_round")
            how = "" if diverged_in is None else f" (it diverged in round {diverged_in})"
            console.out(f"{job.folder} is finished already{how}: nothing to do.", highlight=False)
    with Display(console) as display:
        display.notes(note for job in jobs for note in job.warnings)
        try:
            diverged = run_all(jobs, display.observer)
        except (KeyboardInterrupt, OSError, StoppedError) as error:
            stopped: KeyboardInterrupt | OSError | StoppedError | None = error
        else:
            stopped = None
    gone = next((job.folder for job in jobs if not job.folder.exists()), None)
    if gone is not None:
        raise UserError(
            f"`{gone}` is gone: it was moved or deleted while it was being run; if you moved it, continue with "
            "`fedmate run --resume` and its new place."
        )
    _print_results(console, [job.folder for job in jobs])
    if stopped is not None:
        command = f"fedmate run --resume {shlex.quote(str(folder))}"
        if data_dir is not None:
            command += f" --data-dir {shlex.quote(str(data_dir))}"
        raise _say_how_to_continue(stopped, jobs, command)
    if diverged:
        raise DivergedError(" ".join(diverged))


def _say_how_to_continue(
    stopped: KeyboardInterrupt | OSError | StoppedError, jobs: list[PreparedRun], command: str
) -> typer.Exit:
    """Tell what is saved, as the disk has it now, and return the exit status."""
    from fedmate.experiment.checkpoint import Checkpoint
    from fedmate.experiment.record import Record

    job = next((job for job in jobs if not Record(job.folder).finished), jobs[-1])
    done, of = Checkpoint(job.folder).state.round, Record(job.folder).config["rounds"]
    reason = "Stopped" if isinstance(stopped, KeyboardInterrupt) else f"Error: {one_line(str(stopped))}"
    typer.echo(f"{reason}. {job.folder} is saved after round {done} of {of}. Continue with: {command}", err=True)
    return typer.Exit(status(stopped) if isinstance(stopped, KeyboardInterrupt) else 1)


def _print_results(console: Console, folders: list[Path]) -> None:
    from fedmate.experiment.record import Record
    from fedmate.report.tables import comparison, newcomers

    summaries = [record.summary for record in map(Record, folders) if record.finished]
    ended = [summary for summary in summaries if summary.get("diverged_in_round") is None]
    if not ended:
        return
    for table in (comparison(ended), newcomers(ended)):
        if table is not None:
            # A line that wraps is better than a number that is cut.
            width = max(console.width, console.measure(table).minimum)
            console.print(table, highlight=False, width=width, crop=False)
    console.out(f"Records: {', '.join(map(str, folders))}", highlight=False)

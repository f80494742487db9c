"""`fedmate run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate.cli.app import DataDir, Settings, SkipBad, make_console, one_line, read_settings, status
from fedmate.errors import DivergedError, StoppedError, UserError

if TYPE_CHECKING:
    from fedmate.experiment.record import Record


def run(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="The experiment. [default: FedRep on digits]")
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
    from fedmate.experiment.prepare import new_runs, resumed_runs, run_all
    from fedmate.experiment.record import Record
    from fedmate.experiment.request import Request, UserInputs
    from fedmate.progress import Display

    if resume is not None and out is not None:
        raise UserError("`--out` begins a new run and `--resume` continues an old one; give one of them.")
    base = None if experiment is None else load_file(experiment)
    request = Request(base, method or [], dataset, read_settings(set_, skip_bad), UserInputs(folder=data_dir))
    console, diverged = make_console(), list[str]()
    stopped: KeyboardInterrupt | OSError | StoppedError | None = None
    with new_runs(request, out) if resume is None else resumed_runs(request, resume) as jobs:
        for job in jobs:
            if job.built is None:
                diverged_in = Record(job.folder).summary.get("diverged_in_round")
                how = "" if diverged_in is None else f" (it diverged in round {diverged_in})"
                console.out(f"{job.folder} is finished already{how}: nothing to do.", highlight=False)
        with Display(console) as display:
            display.warn(warning for job in jobs for warning in job.warnings)
            try:
                diverged = run_all(jobs, display.observer)
            except (KeyboardInterrupt, OSError, StoppedError) as error:
                stopped = error
        folders = [job.folder for job in jobs]
        gone = next((folder for folder in folders if not folder.exists()), None)
        if gone is not None:
            raise UserError(
                f"`{gone}` was moved or deleted during the run; if you moved it, continue with `fedmate run --resume` "
                "and its new place."
            )
        records = [Record(folder) for folder in folders]
        _print_results(console, records)
        if stopped is not None:
            where = [] if data_dir is None else ["--data-dir", str(data_dir)]
            folder = resume or (folders[0] if len(folders) == 1 else folders[0].parent)
            _stop(stopped, records, shlex.join(["fedmate", "run", "--resume", str(folder), *where]))
    if diverged:
        raise DivergedError(" ".join(diverged))


def _stop(stopped: KeyboardInterrupt | OSError | StoppedError, records: Sequence[Record], resuming: str) -> None:
    """Print what is saved, as the disk has it now, and the command `resuming`; exit with the status of a stop."""
    from fedmate.experiment.checkpoint import Checkpoint

    record = next((record for record in records if not record.finished), records[-1])
    done, of = Checkpoint(record.folder).state.round, record.config["rounds"]
    reason = "Stopped" if isinstance(stopped, KeyboardInterrupt) else f"Error: {one_line(str(stopped))}"
    typer.echo(f"{reason}. {record.folder} is saved after round {done} of {of}. Continue with: {resuming}", err=True)
    raise typer.Exit(status(stopped) if isinstance(stopped, KeyboardInterrupt) else 1)


def _print_results(console: Console, records: Sequence[Record]) -> None:
    from fedmate.report.tables import comparison, unseen_clients

    summaries = [record.summary for record in records if record.finished]
    ended = [summary for summary in summaries if summary.get("diverged_in_round") is None]
    if not ended:
        return
    for table in (comparison(ended), unseen_clients(ended)):
        if table is not None:
            # A line that wraps is better than a number that is cut.
            width = max(console.width, console.measure(table).minimum)
            console.print(table, highlight=False, width=width, crop=False)
    console.out(f"Records: {', '.join(str(record.folder) for record in records)}", highlight=False)

"""`fedmate run` and `fedmate track`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate.cli import (
    DataDir,
    DatasetName,
    Settings,
    SkipBad,
    make_console,
    one_line,
    read_request,
    status,
)
from fedmate.errors import DivergedError, StoppedError, UserError

if TYPE_CHECKING:
    from fedmate.experiment.record import Record


def run(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="[EXPERIMENT.toml]", help="File of an experiment; without one, the defaults are run."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(metavar="M", help="Method; repeat it to compare. [default: the file's, or fedrep]"),
    ] = None,
    dataset: DatasetName = None,
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
    from fedmate.experiment.prepare import new_runs, resumed_runs, run_all
    from fedmate.experiment.record import Record
    from fedmate.progress import RunProgress

    if resume is not None and out is not None:
        raise UserError("`--out` begins a new run and `--resume` continues an old one; give one of them.")
    request = read_request(experiment, method or [], dataset, set_, skip_bad, data_dir)
    console, diverged = make_console(), list[str]()
    stopped: KeyboardInterrupt | OSError | StoppedError | None = None
    with new_runs(request, out) if resume is None else resumed_runs(request, resume) as jobs:
        for job in jobs:
            if job.built is None:
                console.out(f"{job.folder} is finished already: nothing to do.")
        try:
            with RunProgress(console) as progress:
                progress.warn(warning for job in jobs for warning in job.warnings)
                diverged = run_all(jobs, progress)
        except (KeyboardInterrupt, OSError, StoppedError) as error:
            stopped = error
        folders = [job.folder for job in jobs]
        records = [Record(folder) for folder in folders]
        _print_results(console, records)
        if stopped is not None:
            folder = resume or (folders[0] if len(folders) == 1 else folders[0].parent)
            where = [] if data_dir is None else ["--data-dir", str(data_dir)]
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
    from fedmate.report.tables import comparison, show, unseen_clients

    summaries = [record.summary for record in records if record.finished]
    if ended := [summary for summary in summaries if summary.get("diverged_in_round") is None]:
        for table in filter(None, (comparison(ended), unseen_clients(ended))):
            show(table, console)
        console.out(f"Records: {', '.join(str(record.folder) for record in records)}")


def track(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs and comparisons.")],
    to: Annotated[str, typer.Option(metavar="C", help="Callback: tensorboard, wandb, trackio, mlflow, or your own.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Option of the callback; repeatable.")
    ] = None,
) -> None:
    """Send finished runs to a tracker, as if they ran now."""
    from fedmate.experiment.callback import replay
    from fedmate.experiment.config import ConfigSource, make_callbacks, parse_set, resolve_callbacks
    from fedmate.experiment.record import Record, runs_of

    options = parse_set(set_ or []).values
    (callback,) = make_callbacks(resolve_callbacks([ConfigSource("--set", {"callbacks": {to: options}})]))
    for record in [Record(run) for folder in runs for run in runs_of(folder)]:
        try:
            replay(record, callback)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"`{to}` failed at {record.folder} ({type(error).__name__}: {error}).") from error
        make_console().out(f"{record.folder}: sent to {to}.", highlight=False)

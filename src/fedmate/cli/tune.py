"""`fedmate tune`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate.cli import DataDir, Settings, SkipBad, make_console, read_request, status
from fedmate.errors import UserError

if TYPE_CHECKING:
    from fedmate.experiment.inputs import UserInputs
    from fedmate.studies.records import Records
    from fedmate.studies.tuning import Search, Trial

OURS = frozenset({"best.toml", "locks", "records", "runs", "trials.csv"})
"""The content of the folder of a search."""


def tune(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="The method to tune.")],
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="The experiment. [default: that of --dataset]")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set with a test split of its own.")] = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
    trials: Annotated[int, typer.Option(min=1, metavar="N", help="Number of settings to try.")] = 12,
    shares: Annotated[
        str | None,
        typer.Option(metavar="S,S", help="`partition.share` of the runs of a trial. [default: 10,70, or as set]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from `seed` + 100.")] = 1,
    view: Annotated[str | None, typer.Option(metavar="V", help="Models to score. [default: primary view]")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the results. [default: tuned/METHOD-DATASET]")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the runs; searches may share it. [default: --out]")
    ] = None,
) -> None:
    """Tune a method on validation samples that no client holds, never on a test split.

    Finished runs are never run again: the same command continues a search that was stopped.
    """
    from fedmate.report.tables import show
    from fedmate.studies.records import Records
    from fedmate.studies.tuning import Search, save, table_of

    request = read_request(experiment, [method], dataset, set_, skip_bad, data_dir)
    search = Search.of(request, trials, _numbers(shares), seeds, view or "")
    folder = out or Path("tuned") / f"{method}-{search.experiment.dataset.name}"
    if folder.is_file() or (folder.is_dir() and not {path.name for path in folder.iterdir()} <= OURS):
        raise UserError(f"`--out` is `{folder}`, which holds other files; choose a new folder.")
    console, records = make_console(), Records(store or folder, folder.name)
    done = _run(console, search, records, request.inputs)
    save(search, done, folder)
    show(table_of(search, done), console)
    best = shlex.quote(str(folder / "best.toml"))
    console.out(f"Saved: {folder}. To run the best: fedmate run {best}", highlight=False)


def _numbers(text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"`--shares` got `{text}`; write numbers with commas between them, such as `10,70`.") from None


def _run(console: Console, search: Search, records: Records, inputs: UserInputs) -> list[Trial]:
    """Run the trials and print a line for each."""
    from fedmate.cli.study_progress import StudyProgress
    from fedmate.studies.tuning import as_text, run_trials

    console.out(search.describe(), highlight=False)
    done: list[Trial] = []
    try:
        progress = StudyProgress(console, search.trials * len(search.settings))
        with progress.bars:
            for trial in run_trials(search, records, inputs, progress):
                done.append(trial)
                settings = ", ".join(f"{key} {as_text(value)}" for key, value in trial.settings.items())
                score = "diverged" if trial.score is None else f"{trial.score:.2f} %"
                progress.warned(f"trial {trial.number}: {settings}: {score}")
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped after {len(done)} of {search.trials} trials; the same command continues.", err=True)
        raise typer.Exit(status(error)) from None
    return done

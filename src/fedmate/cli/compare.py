"""`fedmate compare`: a study of methods, settings and seeds."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate.cli import DataDir, make_console, one_line, status
from fedmate.errors import UserError

if TYPE_CHECKING:
    from fedmate.studies.records import Records
    from fedmate.studies.study import Choice, Study


def compare(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study; docs/reproduce.md has an example.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Runs at once: worth it on a GPU.")] = 1,
    only: Annotated[
        list[str] | None, typer.Option(metavar="SETTING/METHOD", help="Only these runs, `*` for any; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs; digits stand in for missing data sets.")] = False,
    tuned: Annotated[bool, typer.Option("--tuned", help="Methods with their preset `tuned`.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of records, runs and tables.")] = Path("studies"),
    merge: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Add finished runs of another folder; repeatable.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show the runs that are finished.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Run methods x settings x seeds, and make tables and plots of the results.

    A study is a TOML file with tables `[settings.KEY]` and `[methods.KEY]`. Finished runs are never run again: the same
    command continues a study that was stopped. Several processes and machines may share the folder.
    """
    from fedmate.studies.records import Records
    from fedmate.studies.study import Choice, load_study

    console, loaded, choice = make_console(), load_study(study), Choice(seeds, tuned, quick, tuple(only or ()))
    loaded.check_patterns(choice.only)
    if any(place.is_file() for place in (out, *out.parents)):
        raise UserError(f"`--out` is `{out}`, which is or lies in a file; name a folder.")
    if (out / "config.toml").exists() or (out / "comparison.json").exists():
        raise UserError(f"`--out` is `{out}`, which holds a run or a comparison; name another folder.")
    records = Records(out, loaded.name)
    for folder in merge or []:
        merged = records.merge(folder)
        text = f"{folder}: {len(merged.new)} new runs, {len(merged.same)} known"
        if merged.different:
            text += f"; not replaced, because they are here with other figures: {', '.join(merged.different)}"
        console.out(f"{text}.", highlight=False)
    if show:
        _show(console, loaded.with_records(choice, records.all()), choice, records)
    elif not _run(console, loaded, choice, records, jobs, data_dir):
        raise typer.Exit(1)


def _run(console: Console, study: Study, choice: Choice, records: Records, jobs: int, data_dir: Path | None) -> bool:
    """Run everything that is left, show the results, and tell whether all runs are finished."""
    from fedmate.cli.study_progress import StudyProgress
    from fedmate.experiment.inputs import UserInputs
    from fedmate.studies.run import Work, run_all

    study, notes = study.with_data(choice, data_dir)
    work = Work(study.runs(choice), records, UserInputs(folder=data_dir))
    if outdated := work.outdated():
        names = ", ".join(f"`{name}`" for name in outdated)
        notes.append(f"finished runs of {names} used an earlier version of its file; use another `--out`.")
    _print_notes(console, notes)
    if not work.runs:
        raise UserError(f"`{study.name}` has nothing to run here; the notes above give the reasons.")
    total = len({run.name for run in work.runs})
    done = total - len(work.left())
    console.out(f"{study.title}: {total} run{'s' * (total > 1)}, {done} finished.", highlight=False)
    progress = StudyProgress(console, total - done)
    try:
        with progress.bars:
            run_all(work, progress, jobs)
    except KeyboardInterrupt as error:
        done = total - len(work.left())
        typer.echo(f"Stopped. {done} of {total} runs are finished; the same command continues.", err=True)
        raise typer.Exit(status(error)) from None
    left = work.left()
    if len(left) < total:
        _show(console, study, choice, records)
    else:
        console.out("No run is finished, so there is nothing to show.", highlight=False)
    return not left


def _show(console: Console, study: Study, choice: Choice, records: Records) -> None:
    """Print the accuracies and the differences, and save all tables with the plots."""
    from fedmate.report.tables import show
    from fedmate.studies.plots import plots
    from fedmate.studies.statistics import Results
    from fedmate.studies.tables import save, tables

    results = Results.of(study, choice, records)
    if not results.found:
        raise UserError(
            f"`{records.folder}` has no finished run of `{study.name}` for these options; run it without `--show`."
        )
    found, notes, has_plots = tables(results), results.notes(), importlib.util.find_spec("matplotlib") is not None
    folder, files = save(results, found, plots(results) if has_plots else [], records.folder)
    for one in found:
        if one.name.startswith(("accuracy", "differences")):
            # The notes of the study come once, below all tables.
            own = [note for note in one.notes if note not in notes]
            show(replace(one, notes=own), console)
    lack = "there are no plots without matplotlib; install it with `pip install 'fedmate[plots]'`."
    _print_notes(console, notes if has_plots else [*notes, lack])
    console.out(f"Saved: {folder} ({', '.join(files)})", highlight=False)


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.out(f"Note: {one_line(note)}", highlight=False)

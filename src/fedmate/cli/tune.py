"""`fedmate tune`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedmate import storage
from fedmate.cli.app import DataDir, Settings, SkipBad, make_console, read_settings, status
from fedmate.errors import UserError
from fedmate.storage import BusyError

if TYPE_CHECKING:
    from fedmate.experiment.user_inputs import UserInputs
    from fedmate.studies.records import Records
    from fedmate.tune.search import Search, Trial

MARK = ".fedmate-tune"
"""The file that tells the folder of a search from others; it is written before anything else."""

MARKED = b"What `fedmate tune` found: it writes trials.csv and best.toml anew, unless more trials found better.\n"
"""What the file says to who looks into it."""


def tune(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="Whose settings to look for.")],
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="On what; defaults to the data set's setting.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set.")] = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many settings to try; the first are the experiment's own.")
    ] = 12,
    shares: Annotated[
        str | None,
        typer.Option(metavar="S,S", help="`partition.share` of each trial's runs. [default: 10,70, or as set]"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="How many for each of them, from `seed` + 100.")] = 1,
    view: Annotated[str | None, typer.Option(metavar="V", help="Which models are scored. [default: headline]")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for what is found. [default: tuned/METHOD-DATASET]")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the runs; searches may share it. [default: --out]")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Put what is found into this file of presets, too.")
    ] = None,
) -> None:
    """Look for the settings of a method on validation samples that no client holds, never on a test split.

    Finished runs are never run again: the same command continues a search that was stopped.
    """
    from fedmate.experiment.config import load_file
    from fedmate.experiment.prepare import Request
    from fedmate.experiment.user_inputs import UserInputs
    from fedmate.studies.records import Records
    from fedmate.tune.outcome import preset_of
    from fedmate.tune.presets import check_presets, may_have_presets
    from fedmate.tune.search import Asked, Search, check_optuna

    check_optuna()
    base, given = None if experiment is None else load_file(experiment), UserInputs(folder=data_dir)
    request = Request(base, [method], dataset, read_settings(set_, skip_bad), given)
    search = Search.of(request, Asked(trials, _numbers(shares), seeds, view))
    folder = out or Path("tuned") / f"{method}-{search.experiment.dataset.name}"
    place = Records(store or folder, "tuning")
    _check_folder(folder)
    if write is not None:
        check_presets(write, search.experiment.dataset.name)
    if store is not None:
        _check_store(place)
    _mark(folder)
    console = make_console()
    trials_done = _search(console, search, place, given)
    _save(console, search, trials_done, folder)
    if may_have_presets(search.experiment.dataset.name):
        _give_preset(console, preset_of(search, trials_done, place), place, write)


def _numbers(text: str | None) -> list[float]:
    try:
        return [] if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"`--shares` got `{text}`; write numbers with commas between them, such as `10,70`.") from None


def _check_folder(folder: Path) -> None:
    """Refuse a folder in which somebody keeps something else."""
    with _usable("--out", folder):
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if names and MARK not in names:
        raise UserError(f"`--out` got `{folder}`, which holds other things; name a new folder, or that of a search.")


def _check_store(store: Records) -> None:
    """Refuse a folder in which no runs can be kept."""
    with _usable("--store", store.folder):
        for folder in (store.path.parent, store.folder / "runs"):
            storage.make_folder(folder)
        with suppress(BusyError), store.claim("presets"):
            pass


def _mark(folder: Path) -> None:
    """Make the folder of a search, and take it for one from now on."""
    with _usable("--out", folder):
        storage.make_folder(folder)
        if not (folder / MARK).exists():
            storage.write(folder / MARK, MARKED)


@contextmanager
def _usable(option: str, folder: Path) -> Iterator[None]:
    """Say what is wrong with a folder if something is."""
    try:
        if folder.is_file():
            raise UserError(f"`{option}` got `{folder}`, which is a file; name a folder.")
        yield
    except OSError as error:
        raise UserError(
            f"`{option}` got `{folder}`, which cannot be used ({error.strerror}); name another folder."
        ) from None


def _search(console: Console, search: Search, store: Records, given: UserInputs) -> list[Trial]:
    """Run the trials, a line each."""
    from fedmate.tune.search import run_trials
    from fedmate.tune.telling import Told, describe

    console.out(describe(search), highlight=False)
    done: list[Trial] = []
    try:
        with Told(console) as told:
            for trial in run_trials(search, store, given, told):
                done.append(trial)
                told.tried(trial, search.trials)
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped after {len(done)} of {search.trials} trials; the same command continues.", err=True)
        raise typer.Exit(status(error)) from None
    return done


def _save(console: Console, search: Search, done: list[Trial], folder: Path) -> None:
    """Print the trials and save what was found."""
    from fedmate.report.tables import to_rich
    from fedmate.tune.outcome import save, sheet_of

    is_saved = save(search, done, folder)
    console.print(to_rich(sheet_of(search, done)), highlight=False)
    best = shlex.quote(str(folder / "best.toml"))
    said = (
        f"Saved: {folder} (trials.csv, best.toml)." if is_saved else f"Left: {folder}, where more trials found better."
    )
    console.out(f"{said} To run the best: fedmate run {best}", highlight=False)


def _give_preset(console: Console, entry: str, store: Records, write: Path | None) -> None:
    """Put the preset into a file, or show it."""
    from fedmate.tune.presets import write_preset

    if write is not None:
        write_preset(write, entry, store)
        console.out(f"Written to {write}:", highlight=False)
    else:
        console.out(
            "As a preset, which the same command with `--write FILE` puts into a file of presets without running "
            "anything again (src/fedmate/tuned.toml in a checkout):",
            highlight=False,
        )
    console.out(f"\n{entry}", highlight=False)

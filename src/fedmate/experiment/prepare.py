"""Runs on disk: new ones, and those that were interrupted."""

from __future__ import annotations

import errno
import json
import platform
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from fedmate import __version__, storage
from fedmate.core.tree import DamagedError
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.build import Built, build, check_min_clients
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import Experiment, flat, load_file, resolve
from fedmate.experiment.record import Record, Recorder, runs_of
from fedmate.experiment.request import Request, UserInputs, compose, dropped, left_out
from fedmate.experiment.run import Observer, run

LENIENT = ("min_clients", "patience")
"""What a run may go on with other values of: how long to wait, and for how many."""


class PreparedRun(NamedTuple):
    """A run to be run.

    Attributes:
        folder: its record.
        built: ready to run; `None` if it is finished.
        warnings: sentences the user should read.
    """

    folder: Path
    built: Built | None
    warnings: list[str]


@contextmanager
def new_runs(request: Request, out: Path | None) -> Iterator[list[PreparedRun]]:
    """Begin a run for each experiment asked for; each has its folder, and no other process may write there.

    Everything is built before anything is written, and all folders come into being at once: a mistake in the last
    method, or a kill, leaves no half comparison.
    """
    experiments = compose(request)
    folder = out or _default_folder(experiments)
    check_free(folder)
    built = [build(experiment, request.inputs) for experiment in experiments]
    names = [] if len(built) == 1 else [one.experiment.method.name for one in built]
    with ExitStack() as locks:
        try:
            with storage.staged(folder) as stage:
                if names:
                    storage.write(stage / "comparison.json", json.dumps({"runs": names}).encode() + b"\n")
                for one, place in zip(built, [stage / name for name in names] or [stage], strict=True):
                    begin(place, one)
        except OSError as error:
            raise _unusable(folder, error) from None
        places = [folder / name for name in names] or [folder]
        for place in places:
            locks.enter_context(_locked(place))
        jobs = [PreparedRun(place, one, one.warnings) for place, one in zip(places, built, strict=True)]
        notes = [*left_out(request), *dropped(request), *_say_unlike(experiments)]
        yield [jobs[0]._replace(warnings=[*notes, *jobs[0].warnings]), *jobs[1:]]


@contextmanager
def resumed_runs(request: Request, folder: Path) -> Iterator[list[PreparedRun]]:
    """Go on with a run, or with all runs of a comparison; raise `UserError` if that cannot be done faithfully."""
    folders = runs_of(folder)
    if not all(_is_finished(place) for place in folders):
        # Another user may have made the folder: nothing outside it is written to.
        storage.refuse_links(folder)
    with ExitStack() as locks:
        jobs = [_reopen(place, request.inputs, locks) for place in folders]
        if request.describes:
            asked = _check_asked(request, folder, folders)
            named = request.settings.values.keys() | (set() if request.base is None else request.base.values.keys())
            for job, one in zip(jobs, asked, strict=True):
                if job.built is not None and job.built.backend.is_remote:
                    check_min_clients(one.general, len(job.built.federation.clients))
                    for key in named & set(LENIENT):
                        setattr(job.built.backend, key, getattr(one.general, key))
        # What is refused changes nothing, so nothing is written before.
        yield [_with_environment(job) for job in jobs]


def begin(folder: Path, built: Built) -> None:
    """Write the record of a run that has not begun: what `run` goes on from."""
    config = built.experiment.to_toml()
    Recorder.begin(folder, config, built.split.to_json(), environment())
    initial = built.method.setup.model.init_params()
    note = {**built.signature.to_dict(), "partition": built.split.sha256}
    Checkpoint.create(folder, config, len(built.federation.clients), initial, note)


def run_all(jobs: Iterable[PreparedRun], observer: Observer) -> list[str]:
    """Run one after the other; return a sentence for each that diverged, which does not stop the rest."""
    diverged = []
    for job in jobs:
        if job.built is not None:
            try:
                run(job.built, job.folder, observer)
            except DivergedError as error:
                diverged.append(f"{job.built.experiment.method.name}: {error} The record is in {job.folder}.")
    return diverged


def check_free(folder: Path) -> None:
    """Raise `UserError` if something is at `folder` already."""
    try:
        taken = folder.exists() or folder.is_symlink()
        nearest = next(parent for parent in folder.absolute().parents if parent.exists())
        if not nearest.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is not a directory")
    except OSError as error:
        raise _unusable(folder, error) from None
    if taken:
        raise UserError(
            f"`{{option}}` is `{folder}`, which exists already; {_continuing(folder)}name a new folder.",
            "out",
        )


def _continuing(folder: Path) -> str:
    try:
        is_open = any((run / "config.toml").is_file() and not Record(run).finished for run in runs_of(folder))
    except (OSError, UserError):
        return ""
    return f"go on with it by `fedmate run --resume {shlex.quote(str(folder))}`, or " * is_open


def _unusable(folder: Path, error: OSError) -> UserError:
    """Return what to say when a folder cannot be made."""
    return UserError(f"`{{option}}` is `{folder}`, which cannot be created ({error.strerror}); name another.", "out")


def environment() -> dict[str, Any]:
    """Return everything that a result may depend on besides the experiment."""
    import numpy
    import sklearn
    import torch

    return {
        "fedmate": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scikit-learn": sklearn.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "machine": platform.machine(),
        "system": platform.system(),
    }


def _commit() -> str | None:
    """Return the commit this package was run from, or `None` if it does not lie in a checkout of its own."""
    here = Path(__file__).resolve()
    # An installed copy may lie inside another repository, which does not track this file.
    tracked, describe = ["ls-files", "--error-unmatch", here.name], ["describe", "--always", "--dirty", "--abbrev=40"]
    try:
        _, commit = (
            subprocess.run(["git", *words], cwd=here.parent, check=True, capture_output=True, text=True).stdout.strip()
            for words in (tracked, [*describe, "--exclude=*"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit


def stored_experiment(folder: Path) -> Experiment:
    """Return the experiment of a run."""
    return resolve([load_file(Record(folder).folder / "config.toml")])


def _reopen(folder: Path, inputs: UserInputs, locks: ExitStack) -> PreparedRun:
    if _is_finished(folder):
        return PreparedRun(folder, None, [])
    Checkpoint(folder)
    locks.enter_context(_locked(folder))
    # Only now is it certain that no other process runs it.
    if _is_finished(folder):
        return PreparedRun(folder, None, [])
    checkpoint = Checkpoint(folder)
    checkpoint.check_all()
    initial, note = checkpoint.initial()
    try:
        built = build(stored_experiment(folder), inputs, initial)
    except DamagedError as error:
        raise checkpoint.damaged("initial.safetensors", str(error)) from None
    if note.get("partition") != built.split.sha256:
        raise UserError(
            f"`{folder}` cannot go on: its data set holds other samples now than it began with (`partition.json` has "
            "the old digests); put the old files back, or start a new run."
        )
    return PreparedRun(folder, built, built.warnings)


def _locked(folder: Path) -> AbstractContextManager[object]:
    try:
        return storage.lock(folder / "checkpoint" / "lock")
    except storage.BusyError:
        raise UserError(
            f"`{folder}` is being run by another process; wait for it, or stop it before you resume."
        ) from None
    except OSError as error:
        raise UserError(
            f"`{folder}` cannot be written to ({error.strerror}); give yourself the right to, or resume a copy."
        ) from None


def _is_finished(folder: Path) -> bool:
    """Tell whether a run came to its end; a summary that is none raises `UserError`."""
    record = Record(folder)
    return record.finished and bool(record.summary)


def _check_asked(request: Request, folder: Path, folders: Sequence[Path]) -> list[Experiment]:
    """Return what is asked for of each run; refuse to go on with one of another experiment."""
    advice = "resume it without other settings, or start a new run"
    held = {place: stored_experiment(place) for place in folders}
    names = [experiment.method.name for experiment in held.values()]
    methods = request.methods or (names if request.base is None and len(names) > 1 else ())
    wanted = []
    for place, experiment in held.items():
        # Without a file, settings change the run as it is.
        base = request.base or load_file(place / "config.toml")
        asked = {one.method.name: one for one in compose(request._replace(base=base, methods=methods))}
        if {*asked} != {*names}:
            raise UserError(f"`{folder}` is a run of {' and '.join(names)}, not of {' and '.join(asked)}; {advice}.")
        wanted.append(asked[experiment.method.name])
        found = flat(experiment.to_dict())
        for key, value in flat(wanted[-1].to_dict()).items():
            decided = (key in ("backend", "device") and value == "auto") or key in LENIENT
            if not decided and found.get(key) != value:
                raise UserError(f"`{folder}` was run with `{key}` {found.get(key)!r}, not {value!r}; {advice}.")
    return wanted


def _default_folder(experiments: Sequence[Experiment]) -> Path:
    """Return a folder below `runs` that does not exist."""
    first = experiments[0]
    what = first.method.name if len(experiments) == 1 else "comparison"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{first.dataset.name}-{what}-{stamp}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def _say_unlike(experiments: Sequence[Experiment]) -> list[str]:
    """Say it if compared methods are not trained alike, as their presets may have it."""
    trainings = {one.method.name: asdict(one.training) for one in experiments}
    first = next(iter(trainings.values()))
    unlike = [key for key in first if any(training[key] != first[key] for training in trainings.values())]
    if not unlike:
        return []
    each = (f"{name} {', '.join(f'{key} {own[key]}' for key in unlike)}" for name, own in trainings.items())
    return [f"the methods are not trained alike, a preset sets `[training]` of some: {'; '.join(each)}."]


def _with_environment(job: PreparedRun) -> PreparedRun:
    """Write down what has changed since the run began, and warn of it."""
    if job.built is None:
        return job
    changed = Recorder(job.folder).note_environment(Checkpoint(job.folder).state.round, environment())
    note = f"`{job.folder}` goes on with another {', '.join(changed)} than it began with: results may differ slightly."
    return job._replace(warnings=[*job.warnings, note]) if changed else job

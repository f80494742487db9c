"""What is asked for, and the runs on disk that it begins or goes on with."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedmate import __version__, storage
from fedmate.core.options import options_of, spelled
from fedmate.core.tree import DamagedError
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.build import Built, build, check_min_clients
from fedmate.experiment.callback import Callback
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import (
    DEFAULT_NAMES,
    TUNED,
    ConfigSource,
    check_shape,
    load_file,
    lookup,
    make_callbacks,
    resolve,
    resolve_callbacks,
    stored_experiment,
)
from fedmate.experiment.inputs import NO_INPUTS, UserInputs
from fedmate.experiment.record import Record, Recorder, runs_of
from fedmate.experiment.run import run
from fedmate.experiment.sections import Experiment, flat, written
from fedmate.methods import METHODS

LENIENT = ("min_clients", "patience")
"""What a run may go on with other values of: how long to wait, and for how many."""


class Request(NamedTuple):
    """The experiments that a command or a call asks for."""

    base: ConfigSource | None = None  # an experiment's file, or its content
    methods: Sequence[str] = ()  # which to compare; the experiment's own if there are none
    dataset: str | None = None
    settings: ConfigSource = ConfigSource("`set`", {})  # single values that come last
    inputs: UserInputs = NO_INPUTS
    callbacks: Sequence[Callback] = ()  # besides those that the experiment names


class PreparedRun(NamedTuple):
    """A run to be run, with its record's folder; it is not built if it is finished."""

    folder: Path
    built: Built | None
    warnings: list[str]
    callbacks: Sequence[Callback] = ()


def compose(request: Request) -> list[Experiment]:
    """Return an experiment for each of the methods, or one if none is named."""
    layers = [] if request.base is None else [request.base]
    if request.dataset is not None:
        if request.inputs.data is not None:
            raise UserError(f"`dataset` is `{request.dataset}`, but `data` is given, too; leave one of them out.")
        layers.append(ConfigSource("the argument `dataset`", {"dataset": {"name": request.dataset}}))
    layers.append(request.inputs.layer())
    settings, methods = request.settings, request.methods
    check_shape(settings)
    if not methods:
        return [resolve([*layers, settings])]
    own, experiments = settings.values.get("method", {}), []
    if "name" in own:
        raise UserError("`{option}` and the setting `method.name` both name a method; use `{option}` alone.", "method")
    for name in methods:
        lookup("method", METHODS, name, "the argument `method`")
        if methods.count(name) > 1:
            raise UserError(f"`{{option}}` names `{name}` twice; name each method once.", "method")
    # A setting that a method lacks, but another of them has, is left out.
    everywhere = set.intersection(*(_lacking(name, own) for name in methods))
    for name in methods:
        kept = {key: value for key, value in own.items() if key not in _lacking(name, own) - everywhere}
        chosen = ConfigSource("the argument `method`", {"method": {"name": name}})
        last = ConfigSource(settings.source, {**settings.values, "method": kept})
        experiments.append(resolve([*layers, chosen, last]))
    return experiments


def _lacking(method: str, settings: Mapping[str, object]) -> set[str]:
    """Return the settings that a method does not have."""
    cls = METHODS[method]
    # A method that was not tuned is refused: beside others that were, its figures would say nothing.
    known = {*options_of(cls), *(["preset"] if settings.get("preset") in [TUNED, *cls.presets] else [])}
    return settings.keys() - known


def dropped(request: Request) -> list[str]:
    """Say which settings, and which values of the file, do not hold for some of the methods that are asked for.

    Of the file that is what another method would have, too, or a preset: they hold for the method that the file names.
    """
    sentences, asked = [], request.settings.values.get("method", {})
    for key, value in asked.items():
        lacking = [f"`{name}`" for name in request.methods if key in _lacking(name, asked)]
        if lacking:
            have, kind = "has" if len(lacking) == 1 else "have", "preset" if key == "preset" else "option"
            sentences.append(
                f"`method.{key}={spelled(value)}` does not hold for {', '.join(lacking)}, which {have} no such {kind}."
            )
    own = {} if request.base is None else request.base.values.get("method", {})
    name = own.get("name", DEFAULT_NAMES["method"])
    others = [other for other in request.methods or [asked.get("name", name)] if other != name]
    theirs = [options_of(METHODS[other]) for other in others]
    lost = [
        f"`method.{key}`"
        for key, value in own.items()
        if key not in asked
        and any(key == "preset" or (key in fields and value != fields[key].default) for fields in theirs)
    ]
    if request.base is not None and lost:
        sentences.append(
            f"{', '.join(lost)} in {request.base.source} {'holds' if len(lost) == 1 else 'hold'} for `{name}`, not for "
            f"{', '.join(f'`{other}`' for other in others)}; a setting (`set`) holds for all."
        )
    return sentences


@contextmanager
def new_runs(request: Request, out: Path | None) -> Iterator[list[PreparedRun]]:
    """Begin a run for each experiment asked for; each has its folder, and no other process may write there.

    Everything is built before anything is written, and all folders come into being at once: a mistake in the last
    method, or a kill, leaves no half comparison.
    """
    experiments = compose(request)
    folder = out or _default_folder(experiments)
    if os.path.lexists(folder):
        hint = ""
        with suppress(OSError, UserError):
            if not all(Record(run).finished for run in runs_of(folder)):
                hint = f"go on with it by `fedmate run --resume {shlex.quote(str(folder))}`, or "
        raise UserError(f"`{{option}}` is `{folder}`, which exists already; {hint}name a new folder.", "out")
    asked = resolve_callbacks([request.base, request.settings])
    make_callbacks(asked)
    built = [build(experiment, request.inputs) for experiment in experiments]
    names = [] if len(built) == 1 else [one.experiment.method.name for one in built]
    with ExitStack() as locks:
        try:
            with storage.staged(folder) as stage:
                if names:
                    storage.write(stage / "comparison.json", json.dumps({"runs": names}).encode() + b"\n")
                for one, place in zip(built, [stage / name for name in names] or [stage], strict=True):
                    begin(place, one)
                    if asked:
                        toml = tomli_w.dumps(written({"callbacks": asked}))
                        storage.write(place / "callbacks.toml", toml.encode())
        except OSError as error:
            reason = f"cannot be created ({error.strerror}); name another."
            raise UserError(f"`{{option}}` is `{folder}`, which {reason}", "out") from None
        places = [folder / name for name in names] or [folder]
        for place in places:
            locks.enter_context(_locked(place))
        jobs = [
            PreparedRun(place, one, one.warnings, [*make_callbacks(asked), *request.callbacks])
            for place, one in zip(places, built, strict=True)
        ]
        jobs[0].warnings[:0] = [*dropped(request), *_unlike(experiments)]
        yield jobs


@contextmanager
def resumed_runs(request: Request, folder: Path) -> Iterator[list[PreparedRun]]:
    """Go on with a run, or with all runs of a comparison; raise `UserError` if that cannot be done faithfully.

    Of a finished run only the summary is read, unless the request says what it should have been.
    """
    folders = runs_of(folder)
    if not all(_is_finished(place) for place in folders):
        # Another user may have made the folder: nothing outside it is written to.
        storage.refuse_links(folder)
    with ExitStack() as locks:
        jobs = [_reopen(place, request, locks) for place in folders]
        base, settings = request.base, request.settings.values
        if base is not None or request.methods or request.dataset is not None or settings:
            asked = _check_asked(request, folder, folders)
            named = {*settings, *({} if base is None else base.values)}
            for job, one in zip(jobs, asked, strict=True):
                if job.built is not None and job.built.backend.is_remote:
                    check_min_clients(one.general, len(job.built.federation.clients))
                    for key in named & {*LENIENT}:
                        setattr(job.built.backend, key, getattr(one.general, key))
        # What is refused changes nothing, so nothing is written before.
        for job in jobs:
            if job.built is not None:
                changed = Recorder(job.folder).note_environment(Checkpoint(job.folder).state.round, environment())
                note = f"`{job.folder}` goes on with another {', '.join(changed)} than it began with"
                job.warnings.extend([f"{note}: results may differ slightly."] if changed else [])
        yield jobs


def _reopen(folder: Path, request: Request, locks: ExitStack) -> PreparedRun:
    if not _is_finished(folder):
        Checkpoint(folder)
        locks.enter_context(_locked(folder))
    # Asked again: only now is it certain that no other process runs it.
    if _is_finished(folder):
        return PreparedRun(folder, None, [])
    checkpoint = Checkpoint(folder)
    checkpoint.check_all()
    initial, note = checkpoint.initial()
    try:
        built = build(stored_experiment(folder), request.inputs, initial)
    except DamagedError as error:
        raise checkpoint.damaged("initial.safetensors", str(error)) from None
    if note.get("partition") != built.split.sha256:
        raise UserError(
            f"`{folder}` cannot go on: its data set holds other samples now than it began with (`partition.json` has "
            "the old digests); put the old files back, or start a new run."
        )
    # They do not belong to what a run is, but go on with it.
    stored = load_file(path) if (path := folder / "callbacks.toml").exists() else None
    asked = resolve_callbacks([stored, request.base, request.settings])
    return PreparedRun(folder, built, built.warnings, [*make_callbacks(asked), *request.callbacks])


def _is_finished(folder: Path) -> bool:
    """Tell whether a run came to its end; a summary that is none raises `UserError`."""
    record = Record(folder)
    return record.finished and bool(record.summary)


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
                ran = spelled(found.get(key))
                raise UserError(f"`{folder}` was run with `{key}` {ran}, not {spelled(value)}; {advice}.")
    return wanted


def begin(folder: Path, built: Built) -> None:
    """Write the record of a run that has not begun: what `run` goes on from."""
    config = built.experiment.to_toml()
    Recorder.begin(folder, config, built.split.to_json(), environment())
    model = built.method.setup.model
    note = {**built.signature.to_dict(), "partition": built.split.sha256}
    Checkpoint.create(folder, config, len(built.federation.clients), {**model.init_params(), **model.frozen}, note)


def run_all(jobs: Iterable[PreparedRun], progress: Callback) -> list[str]:
    """Run one after the other; return a sentence for each that diverged, which does not stop the rest."""
    diverged = []
    for job in jobs:
        if job.built is not None:
            try:
                run(job.built, job.folder, [*job.callbacks, progress])
            except DivergedError as error:
                diverged.append(f"{job.built.experiment.method.name}: {error} The record is in {job.folder}.")
    return diverged


def _default_folder(experiments: Sequence[Experiment]) -> Path:
    """Return a folder below `runs` that does not exist."""
    first = experiments[0]
    what = first.method.name if len(experiments) == 1 else "comparison"
    base = Path("runs") / f"{first.dataset.name}-{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (base.with_name(f"{base.name}-{number}") for number in count(2))
    return next(folder for folder in chain([base], others) if not folder.exists())


def _unlike(experiments: Sequence[Experiment]) -> list[str]:
    """Say it if compared methods are not trained alike, as their presets may have it."""
    trainings = {one.method.name: asdict(one.training) for one in experiments}
    first = next(iter(trainings.values()))
    unlike = [key for key in first if any(training[key] != first[key] for training in trainings.values())]
    each = (f"{name} {', '.join(f'{key} {own[key]}' for key in unlike)}" for name, own in trainings.items())
    sentence = f"the methods are not trained alike, a preset sets `[training]` of some: {'; '.join(each)}."
    return [sentence] if unlike else []


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

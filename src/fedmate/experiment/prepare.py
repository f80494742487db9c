"""From the words of a command or a call to runs on disk: new ones, and those that were interrupted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from fedmate import storage
from fedmate.core.options import options_of
from fedmate.core.serialise import DamagedError
from fedmate.errors import DivergedError, UserError, nearest
from fedmate.experiment.build import Built, build, check_min_clients
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import (
    DEFAULT_NAMES,
    ConfigSource,
    Experiment,
    check_shape,
    elsewhere,
    flat,
    load_file,
    lookup,
    resolve,
)
from fedmate.experiment.record import Record, runs_of
from fedmate.experiment.recorder import Recorder, check_free, unusable
from fedmate.experiment.run import Observer, begin, run
from fedmate.experiment.tuned import TUNED
from fedmate.experiment.user_inputs import NO_INPUTS, UserInputs
from fedmate.methods import METHODS

NO_SETTINGS = ConfigSource("`set`", {})


class Request(NamedTuple):
    """The experiments that a command or a call asks for.

    Attributes:
        base: an experiment's file, or its content.
        methods: which to compare; the experiment's own if there are none.
        dataset: the name of a data set.
        settings: single values that come last.
        given: data and a network from Python.
    """

    base: ConfigSource | None = None
    methods: Sequence[str] = ()
    dataset: str | None = None
    settings: ConfigSource = NO_SETTINGS
    inputs: UserInputs = NO_INPUTS

    @property
    def describes(self) -> bool:
        """Whether it says anything about the experiment that a file could hold."""
        return self.base is not None or bool(self.methods) or self.dataset is not None or bool(self.settings.values)


def compose(request: Request) -> list[Experiment]:
    """Return an experiment for each of the methods, or one if none is named."""
    layers = [] if request.base is None else [request.base]
    if request.dataset is not None and request.inputs.data is not None:
        raise UserError(f"`dataset` is `{request.dataset}`, but `data` is given, too; leave one of them out.")
    if request.dataset is not None:
        layers.append(ConfigSource("the argument `dataset`", {"dataset": {"name": request.dataset}}))
    layers.append(request.inputs.layer())
    settings, methods = request.settings, request.methods
    check_shape(settings)
    if not methods:
        return [resolve([*layers, settings])]
    _check_methods(methods, settings)
    return [
        resolve(
            [
                *layers,
                ConfigSource("the argument `method`", {"method": {"name": name}}),
                _for_method(settings, name, methods),
            ]
        )
        for name in methods
    ]


def left_out(request: Request) -> list[str]:
    """Say which settings hold for some of the compared methods only, for the others do not have them."""
    sentences = []
    for key, value in request.settings.values.get("method", {}).items():
        lacking = [name for name in request.methods if not _knows(name, key, value)]
        if lacking:
            names = ", ".join(f"`{name}`" for name in lacking)
            kind = "preset" if key == "preset" else "option"
            have = "has" if len(lacking) == 1 else "have"
            spelled = str(value).lower() if isinstance(value, bool) else value
            sentences.append(f"`method.{key}={spelled}` does not hold for {names}, which {have} no such {kind}.")
    return sentences


def dropped(request: Request) -> list[str]:
    """Say what the file says of its method that those chosen instead would have, too, or a preset, but do not get."""
    own = {} if request.base is None else request.base.values.get("method", {})
    name = own.get("name", DEFAULT_NAMES["method"])
    chosen = request.methods or [request.settings.values.get("method", {}).get("name", name)]
    others = [other for other in chosen if other != name]
    asked = request.settings.values.get("method", {})
    theirs = [options_of(METHODS[other]) for other in others]
    keys = [
        key
        for key, value in own.items()
        if key not in asked
        and any(key == "preset" or (key in fields and value != fields[key].default) for fields in theirs)
    ]
    lost = ", ".join(f"`method.{key}`" for key in keys)
    if request.base is None or not lost:
        return []
    names = ", ".join(f"`{other}`" for other in others)
    holds = "holds" if len(keys) == 1 else "hold"
    return [f"{lost} in {request.base.source} {holds} for `{name}`, not for {names}; a setting (`set`) holds for all."]


def _check_methods(methods: Sequence[str], settings: ConfigSource) -> None:
    for name in methods:
        lookup("method", METHODS, name, "the argument `method`")
    repeated = next((name for name in methods if methods.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"`{{option}}` names `{repeated}` twice; name each method once.", "method")
    own = settings.values.get("method", {})
    if "name" in own:
        raise UserError("`{option}` and the setting `method.name` both name a method; use `{option}` alone.", "method")
    known = {key for name in methods for key in options_of(METHODS[name])}
    unknown = next((key for key in own if key not in known and key != "preset"), None)
    if unknown is not None and len(methods) > 1:
        raise UserError(
            f"`method.{unknown}` in {settings.source} is not an option of any of the methods; "
            f"{elsewhere(unknown, 'method') or nearest(unknown, known)}"
        )


def _for_method(settings: ConfigSource, name: str, methods: Sequence[str]) -> ConfigSource:
    """Drop a method's setting where `name` does not know it but another of the compared methods does."""
    own = settings.values.get("method", {})
    kept = {
        key: value
        for key, value in own.items()
        if _knows(name, key, value) or not any(_knows(other, key, value) for other in methods)
    }
    return ConfigSource(settings.source, {**settings.values, "method": kept})


def _knows(method: str, key: str, value: object) -> bool:
    cls = METHODS[method]
    # A method that was not tuned is refused: beside others that were, its figures would say nothing.
    return value in [TUNED, *cls.presets] if key == "preset" else key in options_of(cls)


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
    folder = out or default_folder(experiments)
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
            raise unusable(folder, error) from None
        places = [folder / name for name in names] or [folder]
        for place in places:
            locks.enter_context(_locked(place))
        jobs = [PreparedRun(place, one, one.warnings) for place, one in zip(places, built, strict=True)]
        notes = [*left_out(request), *dropped(request), *_say_unlike(experiments)]
        yield [jobs[0]._replace(warnings=[*notes, *jobs[0].warnings]), *jobs[1:]]


def _say_unlike(experiments: Sequence[Experiment]) -> list[str]:
    """Say it if compared methods are not trained alike, as their presets may have it."""
    trainings = {one.method.name: asdict(one.training) for one in experiments}
    first = next(iter(trainings.values()))
    unlike = [key for key in first if any(training[key] != first[key] for training in trainings.values())]
    if not unlike:
        return []
    each = (f"{name} {', '.join(f'{key} {own[key]}' for key in unlike)}" for name, own in trainings.items())
    return [f"the methods are not trained alike, a preset sets `[training]` of some: {'; '.join(each)}."]


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
            for job, one in zip(jobs, asked, strict=True):
                _wait_as_asked(job, one, request)
        # What is refused changes nothing, so nothing is written before.
        yield [_note_environment(job) for job in jobs]


def run_all(jobs: Iterable[PreparedRun], observer: Callable[[], Observer]) -> list[str]:
    """Run one after the other; return a sentence for each that diverged, which does not stop the rest."""
    diverged = []
    for job in jobs:
        if job.built is not None:
            try:
                run(job.built, job.folder, observer())
            except DivergedError as error:
                diverged.append(f"{job.built.experiment.method.name}: {error} The record is in {job.folder}.")
    return diverged


def default_folder(experiments: Sequence[Experiment]) -> Path:
    """Return a folder below `runs` that does not exist."""
    first = experiments[0]
    what = first.method.name if len(experiments) == 1 else "comparison"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{first.dataset.name}-{what}-{stamp}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


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


def _locked(folder: Path) -> storage.Lock:
    try:
        return storage.Lock(folder / "checkpoint" / "lock")
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


def _note_environment(job: PreparedRun) -> PreparedRun:
    """Write down what has changed since the run began, and say it."""
    if job.built is None:
        return job
    changed = Recorder(job.folder).note_environment(Checkpoint(job.folder).state.round)
    note = f"`{job.folder}` goes on with another {', '.join(changed)} than it began with: results may differ slightly."
    return job._replace(warnings=[*job.warnings, note]) if changed else job


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


def _wait_as_asked(job: PreparedRun, asked: Experiment, request: Request) -> None:
    """Wait for clients as a file or a setting says now; what neither names stays as it was."""
    if job.built is not None and job.built.backend.is_remote:
        named = request.settings.values.keys() | (set() if request.base is None else request.base.values.keys())
        check_min_clients(asked.general, len(job.built.federation.clients))
        for key in named & set(LENIENT):
            setattr(job.built.backend, key, getattr(asked.general, key))

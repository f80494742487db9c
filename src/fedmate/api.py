"""What the command does, as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from fedmate.data.arrays import Pool, Sites
from fedmate.data.dataset import ArrayLike
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.callback import Callback
from fedmate.experiment.config import ConfigSource, load_file, nest
from fedmate.experiment.export import export_model
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.predict import PortableModel, Predictions, Prior, check_target, load_model
from fedmate.experiment.prepare import Request, new_runs, resumed_runs, run_all
from fedmate.experiment.record import Record, runs_of
from fedmate.progress import RunProgress


def run(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    dataset: str | None = None,
    set: Mapping[str, Any] | None = None,
    data: Pool | Sites | None = None,
    model: nn.Module | None = None,
    classifier: str | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Record:
    """Run an experiment and return its record, as `fedmate run` does.

    Args:
        experiment: the path of a TOML file, or what one would hold.
        method: its name.
        dataset: its name.
        set: single values by `key` or `section.key`, over everything else.
        data: your own samples instead of a named data set: a `Pool` or `Sites`.
        model: your own network, which starts from the weights it has; it is copied, never changed.
        classifier: the name of its last layer.
        data_dir: where data sets lie; `FEDMATE_DATA` if left out, or a folder of the user's own.
        out: the folder for the record; it must not exist. By default a new one below `runs`.
        resume: the folder of an interrupted run to go on with, instead of `out`. A run on your own `data` and `model`
            needs them again.
        progress: whether to print how it goes; if not, what should be read about the run is a `NoteWarning`.
        callbacks: follow the run, besides those that `[callbacks]` of the experiment names: docs/callbacks.md.

    Raises:
        UserError: something cannot be done as asked; nothing was written.
        DivergedError: training went to infinity at every client.

    Example:
        >>> import tempfile
        >>> record = run(method="fedavg", set={"rounds": 2, "partition.clients": 3}, out=tempfile.mkdtemp() + "/run")
        >>> record.summary["rounds"], record.accuracy("global") == record.accuracy()
        (2, True)
    """
    if resume is not None and len(runs := runs_of(Path(resume))) > 1:
        raise UserError(f"`resume` is `{resume}`, a comparison of {len(runs)} runs; use `fedmate.compare(resume=...)`.")
    inputs = UserInputs(data, model, classifier, None if data_dir is None else Path(data_dir))
    methods = () if method is None else (method,)
    return _run(experiment, methods, dataset, set, inputs, out, resume, progress, callbacks)[0]


def compare(
    methods: Sequence[str] = (),
    *,
    experiment: str | Path | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    set: Mapping[str, Any] | None = None,
    data: Pool | Sites | None = None,
    model: nn.Module | None = None,
    classifier: str | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Record]:
    """Run one experiment with several methods and return their records by method.

    All arguments but `methods` are those of `run`. An option of a method in `set` holds for the methods that have it,
    each method gets a folder below `out`, and `resume` is the folder of an interrupted comparison.

    Example:
        >>> import tempfile
        >>> records = compare(["fedavg", "local"], set={"rounds": 1}, out=tempfile.mkdtemp() + "/both")
        >>> sorted(records)
        ['fedavg', 'local']
    """
    if isinstance(methods, str) or not (methods or resume):
        raise UserError(f"`methods` is {methods!r}; give a list of names, such as `['fedmate', 'fedavg']`.")
    inputs = UserInputs(data, model, classifier, None if data_dir is None else Path(data_dir))
    records = _run(experiment, methods, dataset, set, inputs, out, resume, progress, callbacks)
    return {record.config["method"]["name"]: record for record in records}


def load(folder: str | Path) -> Record:
    """Read the record of a run, finished or not, from its folder."""
    return Record(Path(folder))


def export(
    folder: str | Path,
    *,
    client: int | None = None,
    global_: bool = False,
    to: str | Path | None = None,
    data: Pool | Sites | None = None,
    model: nn.Module | None = None,
) -> PortableModel:
    """Export one model of a run, as `fedmate export` does.

    Args:
        folder: the run's; it may be going on.
        client: the number of a client; its model is the one after the last broadcast (the view `pre`).
        global_: whether to export the aggregated model instead.
        to: a new file to write it to, `.safetensors` or `.pt2`.
        data: the samples of a run on your own, if its method trains once more before use, or if a calibrated run is not
            finished.
        model: the network of a run on your own.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = run(method="fedavg", set={"rounds": 1, "partition.clients": 3}, out=folder + "/run")
        >>> export(folder + "/run", client=2, to=folder + "/model.safetensors")
        PortableModel(digits_cnn: fedavg on digits, client 2, round 1)
        >>> load_model(folder + "/model.safetensors").signature.input_shape
        (1, 8, 8)
        >>> predict(folder + "/model.safetensors", [0.0] * 64).probabilities.shape
        (1, 10)
    """
    if (client is None) != bool(global_):
        raise UserError("`client` and `global_` choose the model; give exactly one of them.")
    if to is not None:
        check_target(Path(to))
    # numpy's whole numbers would overflow where Python's do not.
    exported = export_model(Path(folder), None if client is None else index(client), UserInputs(data, model))
    if to is not None:
        exported.save(Path(to))
    return exported


def predict(model: PortableModel | str | Path, x: ArrayLike | str | Path, *, prior: Prior | None = None) -> Predictions:
    """Return the classes of raw samples, as `fedmate predict` does.

    Args:
        model: the result of `export` or `load_model`, or the path of its file.
        x: `[samples, *input_shape]`, one sample, or flattened samples; or the path of a `.npy`, `.npz` or `.csv` file.
        prior: the class shares among the samples, for a model that was trained with `objective.calibration`: `uniform`,
            `own` (those of its client's training samples), `estimated` (from the samples), or a number per class. By
            default `own`, and `uniform` for a global model.

    Example:
        >>> import tempfile
        >>> record = run(method="fedavg", set={"rounds": 1, "partition.clients": 2}, out=tempfile.mkdtemp() + "/run")
        >>> predictions = predict(export(record.folder, global_=True), [[0.0] * 64, [16.0] * 64])
        >>> len(predictions.class_names), predictions.probabilities.shape
        (2, (2, 10))
    """
    if not isinstance(model, PortableModel):
        model = load_model(model)
    return model.predict(x, prior)


def _run(
    experiment: str | Path | Mapping[str, Any] | None,
    methods: Sequence[str],
    dataset: str | None,
    settings: Mapping[str, Any] | None,
    inputs: UserInputs,
    out: str | Path | None,
    resume: str | Path | None,
    progress: bool,
    callbacks: Sequence[Callback],
) -> list[Record]:
    if isinstance(experiment, Mapping):
        base: ConfigSource | None = ConfigSource("the experiment", dict(experiment))
    else:
        base = None if experiment is None else load_file(Path(experiment))
    if not isinstance(settings, Mapping | None):
        raise UserError(f"`set` is a {type(settings).__name__}; give a dictionary, such as `{{'rounds': 10}}`.")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(f"`callbacks` holds {callback!r}; give objects of classes that derive from `Callback`.")
    if out is not None and resume is not None:
        raise UserError("`out` begins a new run and `resume` goes on with an old one; give one of them.")
    request = Request(base, methods, dataset, nest("set", (settings or {}).items()), inputs, callbacks)
    opened = (
        new_runs(request, None if out is None else Path(out)) if resume is None else resumed_runs(request, Path(resume))
    )
    with opened as jobs, RunProgress(Console() if progress else None) as shown:
        shown.warn(warning for job in jobs for warning in job.warnings)
        try:
            diverged = run_all(jobs, shown)
        except KeyboardInterrupt as interrupt:
            place = "" if inputs.folder is None else f", data_dir={str(inputs.folder)!r}"
            name, folder = ("run", jobs[0].folder) if len(jobs) == 1 else ("compare", jobs[0].folder.parent)
            call = f"fedmate.{name}(resume={str(folder)!r}{place})"
            interrupt.add_note(f"The rounds done are saved: `{call}` goes on.")
            raise
    if diverged:
        raise DivergedError(" ".join(diverged))
    return [Record(job.folder) for job in jobs]

"""What the command does, as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from fedmate.datasets.given import Pool, Sites
from fedmate.errors import DivergedError, UserError
from fedmate.experiment.compose import Request
from fedmate.experiment.config import Layer, load_file, nest
from fedmate.experiment.given import Given
from fedmate.experiment.jobs import resumed, run_jobs, started
from fedmate.experiment.record import Record, runs_of
from fedmate.progress import Display


def run(
    experiment: str | Path | Mapping[str, Any] | None = None,
    *,
    method: str | None = None,
    dataset: str | None = None,
    set: Mapping[str, Any] | None = None,
    data: Pool | Sites | None = None,
    model: nn.Module | None = None,
    classifier: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
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
        out: the folder for the record; it must not exist. By default a new one below `runs`.
        resume: the folder of an interrupted run to go on with, instead of `out`. A run on your own `data` and `model`
            needs them again.
        progress: whether to print how it goes.

    Raises:
        UserError: something cannot be done as asked; nothing was written.
        DivergedError: training went to infinity at every client.

    Example:
        >>> import tempfile
        >>> record = run(method="fedavg", set={"rounds": 2, "partition.clients": 3}, out=tempfile.mkdtemp() + "/run")
        >>> record.summary["rounds"], record.accuracy("global") == record.accuracy()
        (2, True)
    """
    methods = () if method is None else (method,)
    request = _request(experiment, methods, dataset, set, Given(data, model, classifier))
    if resume is not None and len(runs := runs_of(Path(resume))) > 1:
        raise UserError(f"`resume` is `{resume}`, a comparison of {len(runs)} runs; use `fedmate.compare(resume=...)`.")
    return _run(request, out, resume, progress)[0]


def compare(
    methods: Sequence[str] = (),
    *,
    experiment: str | Path | Mapping[str, Any] | None = None,
    dataset: str | None = None,
    set: Mapping[str, Any] | None = None,
    data: Pool | Sites | None = None,
    model: nn.Module | None = None,
    classifier: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: bool = False,
) -> dict[str, Record]:
    """Run one experiment with several methods and return their records by method.

    Args:
        methods: their names.
        experiment: as for `run`.
        dataset: as for `run`.
        set: as for `run`; an option of a method is set for those that have it.
        data: as for `run`.
        model: as for `run`.
        classifier: as for `run`.
        out: as for `run`; each method gets a folder below it.
        resume: the folder of an interrupted comparison.
        progress: as for `run`.

    Example:
        >>> import tempfile
        >>> records = compare(["fedavg", "local"], set={"rounds": 1}, out=tempfile.mkdtemp() + "/both")
        >>> sorted(records)
        ['fedavg', 'local']
    """
    request = _request(experiment, methods, dataset, set, Given(data, model, classifier))
    return {record.config["method"]["name"]: record for record in _run(request, out, resume, progress)}


def load(folder: str | Path) -> Record:
    """Read the record of a run, finished or not, from its folder."""
    return Record(folder)


def _request(
    experiment: str | Path | Mapping[str, Any] | None,
    methods: Sequence[str],
    dataset: str | None,
    settings: Mapping[str, Any] | None,
    given: Given,
) -> Request:
    if isinstance(experiment, Mapping):
        base: Layer | None = Layer("the experiment", dict(experiment))
    else:
        base = None if experiment is None else load_file(Path(experiment))
    return Request(base, methods, dataset, nest("set", (settings or {}).items()), given)


def _run(request: Request, out: str | Path | None, resume: str | Path | None, progress: bool) -> list[Record]:
    if out is not None and resume is not None:
        raise UserError("`out` begins a new run and `resume` goes on with an old one; give one of them.")
    opened = started(request, None if out is None else Path(out)) if resume is None else resumed(request, Path(resume))
    with opened as jobs, Display(Console() if progress else None) as display:
        display.notes(note for job in jobs for note in job.notes)
        diverged = run_jobs(jobs, display.observer)
    if diverged:
        raise DivergedError(" ".join(diverged))
    return [Record(job.folder) for job in jobs]

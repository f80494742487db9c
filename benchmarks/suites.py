"""Which cases belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.baselines import BASELINES
from benchmarks.case import AUTO, Case
from fedmate.backends import BACKENDS
from fedmate.backends.precision import Precision
from fedmate.errors import UserError, nearest
from fedmate.methods import METHODS

IN_PROCESS = [name for name in BACKENDS.names() if name != "flower"]
COMPARED = ("fedavg", "fedrep", "fedmate")
"""The methods that baselines are measured with."""

CLIENTS = (20, 100, 500, 1000)
CLASSES = (10, 100, 1000)
NETWORKS = ("digits_cnn", "emnist_cnn", "cifar_cnn", "cifar100_cnn", "resnet18")

PAPER = Case(network="cifar_cnn", clients=20, samples=600)
"""The paper's CIFAR-10 federation, for GPUs."""

DIGITS = Case(network="digits_cnn", clients=20, samples=40)
SMALL = Case(network="cifar_cnn", clients=4, samples=100)
"""For CPUs."""

ONE_BY_ONE, FEW = ("sequential", "plain_loop"), 100
"""On a GPU, runners that train clients one by one are not measured with more clients than this."""


def make_suite(
    name: str,
    device: str,
    methods: Sequence[str] = (),
    runners: Sequence[str] = (),
    precisions: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
) -> list[Case]:
    """Return the cases of a suite; each is repeated for each method, runner and precision given instead of its own."""
    if name not in (*SUITES, "all"):
        raise UserError(f"`--suite` is `{name}`; {nearest(name, (*SUITES, 'all'))}")
    known = [AUTO, *IN_PROCESS, *BASELINES]
    for runner in runners:
        if runner not in known:
            raise UserError(f"`--backend` is `{runner}`; {nearest(runner, known)}")
    makers = SUITES.values() if name == "all" else [SUITES[name]]
    precision: Precision = "strict" if device == "cpu" else "tf32"
    cases = [dataclasses.replace(case, precision=precision) for make in makers for case in make(device)]
    cases = [case.changed(settings or {}, "--set") for case in cases]
    for key, values in (("method", methods), ("runner", runners), ("precision", precisions)):
        if values:
            cases = [case.changed({key: value}, f"--{key}") for case in cases for value in values]
    # Cases to compare stand together.
    works = list(dict.fromkeys(case.work for case in cases))
    return sorted(dict.fromkeys(cases), key=lambda case: works.index(case.work))


def _works(device: str) -> list[Case]:
    works = (PAPER,) if device != "cpu" else (DIGITS, SMALL)
    return [dataclasses.replace(work, device=device) for work in works]


def _run_by(work: Case, names: Iterable[str]) -> Iterable[Case]:
    """Yield the work for each of these runners that can do it."""
    for name in names:
        if name not in BASELINES or BASELINES[name].suits(work):
            yield dataclasses.replace(work, runner=name)


def _quick(device: str) -> Iterable[Case]:
    installed = [name for name in ("plain_loop", "jax") if not BASELINES[name].missing()]
    for work in _works(device):
        for method in COMPARED:
            yield from _run_by(dataclasses.replace(work, method=method), (AUTO, *installed))


def _methods(device: str) -> Iterable[Case]:
    for work in _works(device):
        for method in METHODS.names():
            yield from _run_by(dataclasses.replace(work, method=method), IN_PROCESS)


def _clients(device: str) -> Iterable[Case]:
    for method in ("fedavg", "fedmate"):
        for clients in CLIENTS:
            work = dataclasses.replace(_works(device)[0], method=method, clients=clients)
            for case in _run_by(work, (*IN_PROCESS, "plain_loop", "jax")):
                if device == "cpu" or clients <= FEW or case.runner not in ONE_BY_ONE:
                    yield case


def _classes(device: str) -> Iterable[Case]:
    for method in ("fedavg", "fedmate"):
        for classes in CLASSES:
            yield from _run_by(dataclasses.replace(_works(device)[0], method=method, classes=classes), IN_PROCESS)


def _networks(device: str) -> Iterable[Case]:
    for network in NETWORKS:
        samples = 50 if device == "cpu" else 100
        work = dataclasses.replace(_works(device)[-1], network=network, samples=samples, epochs=1)
        yield from _run_by(work, (*IN_PROCESS, "plain_loop", "jax"))


def _baselines(device: str) -> Iterable[Case]:
    for work in _works(device):
        for method in COMPARED:
            yield from _run_by(dataclasses.replace(work, method=method), (AUTO, *BASELINES))


SUITES: dict[str, Callable[[str], Iterable[Case]]] = {
    "quick": _quick,
    "methods": _methods,
    "clients": _clients,
    "classes": _classes,
    "models": _networks,
    "baselines": _baselines,
}

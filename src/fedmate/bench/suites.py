"""Which cases belong together: what each suite of `fedmate bench` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fedmate.backends import in_process
from fedmate.backends.precision import Precision
from fedmate.bench.case import AUTO, Case
from fedmate.bench.rivals import RIVALS
from fedmate.errors import UserError, nearest
from fedmate.methods import METHODS

COMPARED = ("fedavg", "fedrep", "fedmate")
"""The methods that are held against rivals."""

CLIENTS = (20, 100, 500, 1000)
CLASSES = (10, 100, 1000)
NETWORKS = ("digits_cnn", "emnist_cnn", "cifar_cnn", "cifar100_cnn", "resnet18")

PAPER = Case(network="cifar_cnn", clients=20, samples=600, epochs=5)
"""The paper's CIFAR-10 federation, for GPUs."""

DIGITS = Case(network="digits_cnn", clients=20, samples=40, epochs=5)
"""The federation of `make demo`, for CPUs."""

SMALL = Case(network="cifar_cnn", clients=4, samples=100, epochs=5)
"""The paper's network with little to do, for CPUs."""

ONE_BY_ONE, FEW = ("sequential", "plain_loop"), 100
"""On a GPU, runners whose time is that of a client times their number are not measured beyond so many clients."""


class Choice(NamedTuple):
    """What of a suite's cases is replaced; each case is repeated for each value, and nothing is where there is none.

    Attributes:
        methods, runners, precisions: instead of the suite's own.
        settings: other properties, by name.
    """

    methods: Sequence[str] = ()
    runners: Sequence[str] = ()
    precisions: Sequence[str] = ()
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed


def make_suite(name: str, device: str, choice: Choice) -> list[Case]:
    """Return the cases of a suite, or raise `UserError`."""
    if name not in (*SUITES, "all"):
        raise UserError(f"`--suite` is `{name}`; {nearest(name, (*SUITES, 'all'))}")
    known = [AUTO, *in_process(), *RIVALS]
    for runner in choice.runners:
        if runner not in known:
            raise UserError(f"`--backend` is `{runner}`; {nearest(runner, known)}")
    makers = SUITES.values() if name == "all" else [SUITES[name]]
    # As an experiment has it unless told otherwise.
    precision: Precision = "strict" if device == "cpu" else "tf32"
    cases = [dataclasses.replace(case, precision=precision) for make in makers for case in make(device)]
    for key, instead in (("device", "--device"), ("runner", "--backend")):
        if key in choice.settings:
            raise UserError(f"`{key}` in --set is `{choice.settings[key]}`; give it with `{instead}` instead.")
    cases = [case.changed(choice.settings, "--set") for case in cases]
    for key, values, source in (
        ("method", choice.methods, "--method"),
        ("runner", choice.runners, "--backend"),
        ("precision", choice.precisions, "--precision"),
    ):
        if values:
            cases = [case.changed({key: value}, source) for case in cases for value in values]
    # What is to be compared stands together.
    works = list(dict.fromkeys(case.work for case in cases))
    return sorted(dict.fromkeys(cases), key=lambda case: works.index(case.work))


def _works(device: str) -> list[Case]:
    """Return what a device of this kind is measured with."""
    works = (PAPER,) if device != "cpu" else (DIGITS, SMALL)
    return [dataclasses.replace(work, device=device) for work in works]


def _quick(device: str) -> Iterable[Case]:
    for work in _works(device):
        for method in COMPARED:
            case = dataclasses.replace(work, method=method)
            yield case
            yield from _rivals(case, [name for name in ("plain_loop", "jax") if RIVALS[name].is_installed()])


def _methods(device: str) -> Iterable[Case]:
    for work in _works(device):
        for method in METHODS.names():
            yield from _backends(dataclasses.replace(work, method=method))


def _clients(device: str) -> Iterable[Case]:
    for method in ("fedavg", "fedmate"):
        for clients in CLIENTS:
            work = dataclasses.replace(_works(device)[0], method=method, clients=clients)
            for case in (*_backends(work), *_rivals(work, ("plain_loop", "jax"))):
                if device == "cpu" or clients <= FEW or case.runner not in ONE_BY_ONE:
                    yield case


def _classes(device: str) -> Iterable[Case]:
    for method in ("fedavg", "fedmate"):
        for classes in CLASSES:
            yield from _backends(dataclasses.replace(_works(device)[0], method=method, classes=classes))


def _networks(device: str) -> Iterable[Case]:
    for network in NETWORKS:
        samples = 50 if device == "cpu" else 100
        work = dataclasses.replace(_works(device)[-1], network=network, samples=samples, epochs=1)
        yield from (*_backends(work), *_rivals(work, ("plain_loop", "jax")))


def _compared(device: str) -> Iterable[Case]:
    for work in _works(device):
        for method in COMPARED:
            case = dataclasses.replace(work, method=method)
            yield case
            yield from _rivals(case, RIVALS)


def _backends(work: Case) -> Iterable[Case]:
    """Yield a case for every back end."""
    return (dataclasses.replace(work, runner=name) for name in in_process())


def _rivals(work: Case, names: Iterable[str]) -> Iterable[Case]:
    """Yield a case for each rival that was written for this work."""
    return (dataclasses.replace(work, runner=name) for name in names if RIVALS[name].suits(work))


SUITES: dict[str, Callable[[str], Iterable[Case]]] = {
    "quick": _quick,
    "methods": _methods,
    "clients": _clients,
    "classes": _classes,
    "models": _networks,
    "rivals": _compared,
}
"""By name: what gives its cases, for a device."""

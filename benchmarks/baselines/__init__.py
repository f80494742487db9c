"""Baselines: the same work as others would do it, to be measured side by side.

Each starts from the same parameters, holds the same samples and takes as many steps of the same size. Fedmate's own
rounds do more: they also measure every client's loss before and after its training, and look for clients that diverge.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from benchmarks.case import Case
from fedmate.errors import UserError

if TYPE_CHECKING:
    from benchmarks.measure import Timing

CHAINS = ("animals_cnn", "cifar100_cnn", "cifar_cnn", "digits_cnn", "emnist_cnn", "mlp")
"""Networks that are one layer after the other."""


@final
@dataclass(frozen=True)
class Baseline:
    """Another implementation of rounds.

    Attributes:
        module: its module, with a function `measure(case, repeat)`.
        methods: the methods it implements.
        packages: what it needs besides fedmate's own dependencies.
        networks: the networks it implements; all if `None`.
        on_gpu: whether it runs on a GPU.
    """

    module: str
    methods: tuple[str, ...] = ("fedavg",)
    packages: tuple[str, ...] = ()
    networks: tuple[str, ...] | None = None
    on_gpu: bool = True

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [name for name in self.packages if importlib.util.find_spec(name) is None]

    def suits(self, case: Case) -> bool:
        """Return whether it implements a case."""
        knows = case.method in self.methods and (self.networks is None or case.network in self.networks)
        return knows and (self.on_gpu or case.device == "cpu")

    def measure(self, case: Case, repeat: int) -> Timing:
        """Time a case, or raise `UserError` if it cannot."""
        if self.missing():
            raise UserError(f"{self.missing()[0]} is not installed")
        if not self.suits(case):
            raise UserError(f"not implemented for {case.method} with {case.network} on {case.device}")
        timing: Timing = importlib.import_module(f"benchmarks.baselines.{self.module}").measure(case, repeat)
        return timing


BASELINES: dict[str, Baseline] = {
    "plain_loop": Baseline("plain_loop", ("fedavg", "fedrep", "fedmate")),
    "jax": Baseline("jax_fedavg", packages=("jax",), networks=CHAINS),
    "flower": Baseline("flower", packages=("flwr", "ray"), on_gpu=False),
    "pfl": Baseline("pfl_fedavg", packages=("pfl",)),
}

"""Rivals: the same work as others would do it, to be measured side by side.

Each starts from the same parameters, holds the same samples and takes as many steps of the same size. Fedmate's own
rounds do more: they also measure every client's loss before and after its training, and look for clients that diverge.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedmate.bench.case import Case

if TYPE_CHECKING:
    from fedmate.bench.measure import Timing

CHAINS = ("animals_cnn", "cifar100_cnn", "cifar_cnn", "digits_cnn", "emnist_cnn", "mlp")
"""Networks that are one layer after the other."""


@final
@dataclass(frozen=True)
class Rival:
    """Somebody else who runs rounds.

    Attributes:
        module: where it is, with a function `measure(case, repeat)`.
        methods: those that were written for it.
        packages: what it needs besides fedmate's own dependencies.
        networks: those that were written for it; all if `None`.
        on_gpu: whether it runs on a GPU.
    """

    module: str
    methods: tuple[str, ...]
    packages: tuple[str, ...] = ()
    networks: tuple[str, ...] | None = None
    on_gpu: bool = True

    def is_installed(self) -> bool:
        """Tell whether everything it needs is there."""
        return not self._missing()

    def suits(self, case: Case) -> bool:
        """Tell whether it was written for a case."""
        return self._unsuited(case) is None

    def refusal(self, case: Case) -> str | None:
        """Say why it cannot run a case, or return `None` if it can."""
        missing = self._missing()
        return f"{missing[0]} is not installed" if missing else self._unsuited(case)

    def measure(self, case: Case, repeat: int) -> Timing:
        """Run a case that it can run."""
        timing: Timing = importlib.import_module(self.module).measure(case, repeat)
        return timing

    def _missing(self) -> list[str]:
        return [name for name in self.packages if importlib.util.find_spec(name) is None]

    def _unsuited(self, case: Case) -> str | None:
        if case.method not in self.methods:
            return f"not written for {case.method}"
        if self.networks is not None and case.network not in self.networks:
            return f"not written for {case.network}"
        return "not written for GPUs" if case.device != "cpu" and not self.on_gpu else None


RIVALS: dict[str, Rival] = {
    "plain_loop": Rival("fedmate.bench.rivals.plain_loop", ("fedavg", "fedrep", "fedmate")),
    "jax": Rival("fedmate.bench.rivals.jax_round", ("fedavg",), ("jax",), CHAINS),
    "flower": Rival("fedmate.bench.rivals.flower_simulation", ("fedavg",), ("flwr", "ray"), on_gpu=False),
    "pfl": Rival("fedmate.bench.rivals.pfl_research", ("fedavg",), ("pfl",)),
}

"""Local: every client trains alone. The yardstick that collaboration has to beat.

Deviations: none. A round has as many epochs as for the other methods, so budgets match; nothing crosses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.prior_calibration import Calibrated
from fedmate.components.supervised import train_together
from fedmate.core import ClientData, LocalResult, Tree, Wire


@final
@dataclass(frozen=True, kw_only=True)
class Local(Calibrated):
    """Training without a federation."""

    primary_view: ClassVar[str] = "post"
    shared: ClassVar[tuple[str, ...]] = ()

    def init_server(self, params: Tree, num_clients: int, key: Tensor) -> Tree:
        """The server knows nothing."""
        return {}

    def wire(self, round_number: int) -> Wire:
        """Nothing crosses."""
        return Wire(down=frozenset(), up=frozenset())

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the client's own model further."""
        params = train_together(self, client, data, key)
        return LocalResult(client=params, upload={}, params=params, diagnostics={})

    def aggregate(self, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor) -> Tree:
        """There is nothing to combine."""
        return server

"""Local: every client trains alone. The yardstick that collaboration has to beat.

Deviations: none. A round has as many epochs as for the other methods, so budgets match; nothing crosses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from fedmate.components.supervised import train_together
from fedmate.core import ClientData, LocalResult, Tree
from fedmate.methods.base import PartialSharing


@final
@dataclass(frozen=True, kw_only=True)
class Local(PartialSharing):
    """Training without a federation."""

    primary_view: ClassVar[str] = "post"
    shared: ClassVar[tuple[str, ...]] = ()

    def local_update(self, client: Tree, download: Tree, data: ClientData, key: Tensor) -> LocalResult:
        """Train the client's own model further."""
        params = train_together(self, self.personal_params(client, download), data, key)
        return self.result(params, data)

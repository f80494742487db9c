"""Server momentum as an option of a method."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedmate.core.method import Method
from fedmate.core.options import Limits, option
from fedmate.core.server import Server, ServerSGD


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(Method):
    """A method whose server can move with momentum."""

    server_momentum: float = option(0.0, "server momentum (beta); 0 is off", Limits(at_least=0, below=1))

    @property
    def server(self) -> Server:
        """The server of the experiment, with the method's momentum if it has one."""
        given = self.setup.server
        return replace(given, optimiser=ServerSGD(momentum=self.server_momentum)) if self.server_momentum else given

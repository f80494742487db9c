"""Back ends: ways to run a round. All give the same result."""

from fedmate.backends.base import Backend
from fedmate.backends.sequential import Sequential
from fedmate.backends.vectorised import Vectorised
from fedmate.registry import Registry

__all__ = ["BACKENDS", "Backend", "in_process"]

BACKENDS: Registry[type[Backend]] = Registry(
    "backends",
    {"sequential": Sequential, "vectorised": Vectorised},
    later={"flower": "fedmate.flower.backend:Flower"},
)


def in_process() -> list[str]:
    """Return the names of those whose clients live in this process."""
    return [name for name in BACKENDS.names() if not BACKENDS[name].is_remote]

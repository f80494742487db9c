"""Back ends: ways to run a round. All give the same result."""

from fedmate.backends.base import Backend
from fedmate.registry import Registry

__all__ = ["BACKENDS", "Backend", "in_process"]

BACKENDS: Registry[type[Backend]] = Registry(
    "backends",
    {
        "flower": "fedmate.flower.backend:Flower",
        "sequential": "fedmate.backends.sequential:Sequential",
        "vectorised": "fedmate.backends.vectorised:Vectorised",
    },
)


def in_process() -> list[str]:
    """Return the names of those whose clients live in this process."""
    return [name for name in BACKENDS.names() if not BACKENDS[name].is_remote]

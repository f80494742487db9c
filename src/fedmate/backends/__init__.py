"""Back ends: ways to run a round. All give the same result."""

from fedmate.backends.base import Backend
from fedmate.core.options import Registry

__all__ = ["BACKENDS", "Backend"]

BACKENDS: Registry[type[Backend]] = Registry(
    "backends",
    {
        "flower": "fedmate.flower.backend:Flower",
        "sequential": "fedmate.backends.sequential:Sequential",
        "vectorised": "fedmate.backends.vectorised:Vectorised",
    },
)

"""Back ends: ways to run a round. All give the same result."""

from fedmate.backends.base import Backend
from fedmate.backends.sequential import Sequential
from fedmate.backends.vectorised import Vectorised
from fedmate.registry import Registry

__all__ = ["BACKENDS", "Backend"]

BACKENDS: Registry[type[Backend]] = Registry("backends", {"sequential": Sequential, "vectorised": Vectorised})

"""Personalised federated learning: FedMate and the methods it is compared with.

    import fedmate
    record = fedmate.run(method="fedmate", dataset="digits")
    record.accuracy()

Names are imported when they are first used: `import fedmate` itself is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmate.api import compare, export, load, predict, run
    from fedmate.data.arrays import Pool, Sites
    from fedmate.errors import DivergedError, FedmateError, NoteWarning, UserError
    from fedmate.experiment.callback import Callback
    from fedmate.experiment.export import Adaptation, adapt
    from fedmate.experiment.predict import PortableModel, Predictions, load_model
    from fedmate.experiment.record import Record

__version__ = "0.1.0"

__all__ = [
    "Adaptation",
    "Callback",
    "DivergedError",
    "FedmateError",
    "NoteWarning",
    "Pool",
    "PortableModel",
    "Predictions",
    "Record",
    "Sites",
    "UserError",
    "__version__",
    "adapt",
    "compare",
    "export",
    "load",
    "load_model",
    "predict",
    "run",
]

_PLACES = {
    name: f"fedmate.{module}"
    for module, names in {
        "api": "compare export load predict run",
        "data.arrays": "Pool Sites",
        "errors": "DivergedError FedmateError NoteWarning UserError",
        "experiment.callback": "Callback",
        "experiment.export": "Adaptation adapt",
        "experiment.predict": "PortableModel Predictions load_model",
        "experiment.record": "Record",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module `fedmate` has no attribute `{name}`")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__

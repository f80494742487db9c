"""Methods, one file each, and the table that names them."""

import dataclasses
from typing import get_type_hints

from fedmate.core import Method
from fedmate.methods.ditto import Ditto
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedbabu import FedBABU
from fedmate.methods.fedfa import FedFA
from fedmate.methods.fedmate import FedMate
from fedmate.methods.fedpac import FedPAC
from fedmate.methods.fedper import FedPer
from fedmate.methods.fedproto import FedProto
from fedmate.methods.fedprox import FedProx
from fedmate.methods.fedrep import FedRep
from fedmate.methods.fedrod import FedRoD
from fedmate.methods.lg_fedavg import LGFedAvg
from fedmate.methods.local import Local
from fedmate.methods.moon import MOON
from fedmate.methods.scaffold import Scaffold
from fedmate.registry import Registry

__all__ = ["METHODS", "Method"]

PLUS = "FedMate with prior calibration and server momentum: a personal model that serves any distribution of classes."


def _preset_as_method(cls: type[Method], preset: str, title: str) -> type[Method]:
    """Return a method whose defaults are those of a preset, so that the preset can be chosen by a name of its own."""
    values, types = cls.presets[preset]["method"], get_type_hints(cls)
    fields = [
        (field.name, types[field.name], dataclasses.field(default=values[field.name], metadata=field.metadata))
        for field in dataclasses.fields(cls)
        if field.name in values
    ]
    # Nothing but defaults differs, which is why a class that is final may be the base of this one.
    namespace = {"__doc__": title, "__final__": True, "presets": {}}
    named = dataclasses.make_dataclass(
        f"{cls.__name__}{preset.title()}", fields, bases=(cls,), namespace=namespace, frozen=True, kw_only=True
    )
    named.__module__ = cls.__module__
    return named


METHODS: Registry[type[Method]] = Registry(
    "methods",
    {
        "ditto": Ditto,
        "fedavg": FedAvg,
        "fedbabu": FedBABU,
        "fedfa": FedFA,
        "fedmate": FedMate,
        "fedmate_plus": _preset_as_method(FedMate, "plus", PLUS),
        "fedpac": FedPAC,
        "fedper": FedPer,
        "fedproto": FedProto,
        "fedprox": FedProx,
        "fedrep": FedRep,
        "fedrod": FedRoD,
        "lg_fedavg": LGFedAvg,
        "local": Local,
        "moon": MOON,
        "scaffold": Scaffold,
    },
)

"""Methods, one file each, and the table that names them."""

from fedmate.core import Method
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedmate import FedMate
from fedmate.methods.fedper import FedPer
from fedmate.methods.fedrep import FedRep
from fedmate.methods.local import Local
from fedmate.registry import Registry

__all__ = ["METHODS", "Method"]

METHODS: Registry[type[Method]] = Registry(
    "methods",
    {
        "fedavg": FedAvg,
        "fedmate": FedMate,
        "fedper": FedPer,
        "fedrep": FedRep,
        "local": Local,
    },
)

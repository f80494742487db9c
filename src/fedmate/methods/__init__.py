"""Methods, one file each, and the table that names them."""

from fedmate.core import Method
from fedmate.methods.ditto import Ditto
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedbabu import FedBABU
from fedmate.methods.fedfa import FedFA
from fedmate.methods.fedmate import FedMate
from fedmate.methods.fedmate_plus import FedMatePlus
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

METHODS: Registry[type[Method]] = Registry(
    "methods",
    {
        "ditto": Ditto,
        "fedavg": FedAvg,
        "fedbabu": FedBABU,
        "fedfa": FedFA,
        "fedmate": FedMate,
        "fedmate_plus": FedMatePlus,
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

"""Methods, one file each, and the table that names them."""

from fedmate.core import Method
from fedmate.core.options import Registry

__all__ = ["METHODS", "Method"]

METHODS: Registry[type[Method]] = Registry(
    "methods",
    {
        "ditto": "fedmate.methods.ditto:Ditto",
        "fedavg": "fedmate.methods.fedavg:FedAvg",
        "fedbabu": "fedmate.methods.fedbabu:FedBABU",
        "fedbn": "fedmate.methods.fedbn:FedBN",
        "fedfa": "fedmate.methods.fedfa:FedFA",
        "fedmate": "fedmate.methods.fedmate:FedMate",
        "fedmate_plus": "fedmate.methods.fedmate:FedMatePlus",
        "fedpac": "fedmate.methods.fedpac:FedPAC",
        "fedper": "fedmate.methods.fedper:FedPer",
        "fedproto": "fedmate.methods.fedproto:FedProto",
        "fedprox": "fedmate.methods.fedprox:FedProx",
        "fedrep": "fedmate.methods.fedrep:FedRep",
        "fedrod": "fedmate.methods.fedrod:FedRoD",
        "lg_fedavg": "fedmate.methods.lg_fedavg:LGFedAvg",
        "local": "fedmate.methods.local:Local",
        "moon": "fedmate.methods.moon:MOON",
        "scaffold": "fedmate.methods.scaffold:Scaffold",
    },
)

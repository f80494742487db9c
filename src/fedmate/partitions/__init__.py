"""Partitions, one file each, and the table that names them."""

from fedmate.partitions.base import Deck, Partition
from fedmate.partitions.dirichlet import Dirichlet
from fedmate.partitions.given import Given
from fedmate.partitions.iid import IID
from fedmate.partitions.natural import Natural
from fedmate.partitions.pathological import Pathological
from fedmate.partitions.redundant import repeat_samples
from fedmate.partitions.share import Share
from fedmate.registry import Registry

__all__ = ["PARTITIONS", "Deck", "Partition", "repeat_samples"]

PARTITIONS: Registry[type[Partition]] = Registry(
    "partitions",
    {
        "dirichlet": Dirichlet,
        "given": Given,
        "iid": IID,
        "natural": Natural,
        "pathological": Pathological,
        "share": Share,
    },
)

"""Partitions, one file each, and the table that names them."""

from fedmate.data.partitions.base import Partition, PartitionInput
from fedmate.data.partitions.dirichlet import Dirichlet
from fedmate.data.partitions.iid import IID
from fedmate.data.partitions.natural import Natural
from fedmate.data.partitions.pathological import Pathological
from fedmate.data.partitions.predefined import Predefined
from fedmate.data.partitions.redundant import repeat_samples
from fedmate.data.partitions.share import Share
from fedmate.registry import Registry

__all__ = ["PARTITIONS", "Partition", "PartitionInput", "repeat_samples"]

PARTITIONS: Registry[type[Partition]] = Registry(
    "partitions",
    {
        "dirichlet": Dirichlet,
        "given": Predefined,
        "iid": IID,
        "natural": Natural,
        "pathological": Pathological,
        "share": Share,
    },
)

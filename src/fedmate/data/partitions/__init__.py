"""Partitions, one file each, and the table that names them."""

from fedmate.data.partitions.base import Partition, PartitionInput
from fedmate.data.partitions.redundant import repeat_samples
from fedmate.registry import Registry

__all__ = ["PARTITIONS", "Partition", "PartitionInput", "repeat_samples"]

PARTITIONS: Registry[type[Partition]] = Registry(
    "partitions",
    {
        "dirichlet": "fedmate.data.partitions.dirichlet:Dirichlet",
        "given": "fedmate.data.partitions.predefined:Predefined",
        "iid": "fedmate.data.partitions.iid:IID",
        "natural": "fedmate.data.partitions.natural:Natural",
        "pathological": "fedmate.data.partitions.pathological:Pathological",
        "share": "fedmate.data.partitions.share:Share",
    },
)

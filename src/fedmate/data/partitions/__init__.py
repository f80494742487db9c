"""Partitions: how the samples of a data set are split over clients, and the table that names them."""

from fedmate.core.options import Registry
from fedmate.data.partitions.base import Partition, PartitionInput, repeat_samples

__all__ = ["PARTITIONS", "Partition", "PartitionInput", "repeat_samples"]

PARTITIONS: Registry[type[Partition]] = Registry(
    "partitions",
    {
        "dirichlet": "fedmate.data.partitions.dirichlet:Dirichlet",
        "given": "fedmate.data.partitions.natural:Predefined",
        "iid": "fedmate.data.partitions.dirichlet:IID",
        "natural": "fedmate.data.partitions.natural:Natural",
        "pathological": "fedmate.data.partitions.pathological:Pathological",
        "share": "fedmate.data.partitions.share:Share",
    },
)

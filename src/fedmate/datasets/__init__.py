"""Data sets, one file each, and the table that names them."""

from fedmate.datasets.base import Arrays, Dataset, Samples
from fedmate.datasets.digits import Digits
from fedmate.registry import Registry

DATASETS: Registry[type[Dataset]] = Registry("datasets", {"digits": Digits})

__all__ = ["DATASETS", "Arrays", "Dataset", "Samples"]

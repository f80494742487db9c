"""Data sets, one file each, and the table that names them."""

from fedmate.datasets.base import Arrays, Dataset, Normalisation, Samples, hold_back
from fedmate.datasets.digits import Digits
from fedmate.datasets.given import Given
from fedmate.registry import Registry

DATASETS: Registry[type[Dataset]] = Registry("datasets", {"digits": Digits, "given": Given})

__all__ = ["DATASETS", "Arrays", "Dataset", "Normalisation", "Samples", "hold_back"]

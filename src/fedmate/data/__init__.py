"""Data sets, and the table that names them."""

from fedmate.core.options import Registry
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples, content_digest, hold_back, hold_back_from_each

DATASETS: Registry[type[Dataset]] = Registry(
    "datasets",
    {
        "animal10": "fedmate.data.photographs:Animal10",
        "cifar10": "fedmate.data.photographs:Cifar10",
        "cifar100": "fedmate.data.photographs:Cifar100",
        "cinic10": "fedmate.data.photographs:Cinic10",
        "digits": "fedmate.data.mnist:Digits",
        "emnist": "fedmate.data.mnist:Emnist",
        "fashion_mnist": "fedmate.data.mnist:FashionMnist",
        "folder": "fedmate.data.images:Folder",
        "given": "fedmate.data.arrays:ArrayDataset",
        "mnist": "fedmate.data.mnist:Mnist",
        "npz": "fedmate.data.arrays:Npz",
        "sites": "fedmate.data.arrays:AtSites",
    },
)

__all__ = [
    "DATASETS",
    "Arrays",
    "Dataset",
    "Normalisation",
    "Samples",
    "content_digest",
    "hold_back",
    "hold_back_from_each",
]

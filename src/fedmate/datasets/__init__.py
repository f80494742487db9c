"""Data sets, one file each, and the table that names them."""

from fedmate.datasets.animal10 import Animal10
from fedmate.datasets.base import Arrays, Dataset, Normalisation, Samples, content_digest, hold_back
from fedmate.datasets.cifar import Cifar10, Cifar100
from fedmate.datasets.cinic10 import Cinic10
from fedmate.datasets.digits import Digits
from fedmate.datasets.emnist import Emnist
from fedmate.datasets.folder import Folder
from fedmate.datasets.given import Given
from fedmate.datasets.mnist import FashionMnist, Mnist
from fedmate.datasets.npz import Npz
from fedmate.datasets.sites import AtSites
from fedmate.registry import Registry

DATASETS: Registry[type[Dataset]] = Registry(
    "datasets",
    {
        "animal10": Animal10,
        "cifar10": Cifar10,
        "cifar100": Cifar100,
        "cinic10": Cinic10,
        "digits": Digits,
        "emnist": Emnist,
        "fashion_mnist": FashionMnist,
        "folder": Folder,
        "given": Given,
        "mnist": Mnist,
        "npz": Npz,
        "sites": AtSites,
    },
)

__all__ = ["DATASETS", "Arrays", "Dataset", "Normalisation", "Samples", "content_digest", "hold_back"]

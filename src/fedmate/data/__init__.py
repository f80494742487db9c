"""Data sets, one file each, and the table that names them."""

from fedmate.data.animal10 import Animal10
from fedmate.data.arrays import ArrayDataset
from fedmate.data.cifar import Cifar10, Cifar100
from fedmate.data.cinic10 import Cinic10
from fedmate.data.dataset import Arrays, Dataset, Normalisation, Samples, content_digest, hold_back
from fedmate.data.digits import Digits
from fedmate.data.emnist import Emnist
from fedmate.data.folder import Folder
from fedmate.data.mnist import FashionMnist, Mnist
from fedmate.data.npz import Npz
from fedmate.data.sites import AtSites
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
        "given": ArrayDataset,
        "mnist": Mnist,
        "npz": Npz,
        "sites": AtSites,
    },
)

__all__ = ["DATASETS", "Arrays", "Dataset", "Normalisation", "Samples", "content_digest", "hold_back"]

"""Networks, and the table that names them."""

from fedmate.models.base import Architecture
from fedmate.models.cnn import AnimalsCNN, Cifar100CNN, CifarCNN, EmnistCNN
from fedmate.models.custom import CustomModel
from fedmate.models.digits_cnn import DigitsCNN
from fedmate.models.mlp import MLP
from fedmate.models.resnet import ResNet18
from fedmate.registry import Registry

__all__ = ["MODELS", "Architecture"]

MODELS: Registry[type[Architecture]] = Registry(
    "models",
    {
        "animals_cnn": AnimalsCNN,
        "cifar100_cnn": Cifar100CNN,
        "cifar_cnn": CifarCNN,
        "digits_cnn": DigitsCNN,
        "emnist_cnn": EmnistCNN,
        "given": CustomModel,
        "mlp": MLP,
        "resnet18": ResNet18,
    },
)

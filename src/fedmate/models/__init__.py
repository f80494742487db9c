"""Networks, and the table that names them."""

from fedmate.core.options import Registry
from fedmate.models.base import Architecture

__all__ = ["MODELS", "Architecture"]

MODELS: Registry[type[Architecture]] = Registry(
    "models",
    {
        "animals_cnn": "fedmate.models.cnn:AnimalsCNN",
        "cifar100_cnn": "fedmate.models.cnn:Cifar100CNN",
        "cifar_cnn": "fedmate.models.cnn:CifarCNN",
        "digits_cnn": "fedmate.models.digits_cnn:DigitsCNN",
        "emnist_cnn": "fedmate.models.cnn:EmnistCNN",
        "given": "fedmate.models.custom:CustomModel",
        "mlp": "fedmate.models.mlp:MLP",
        "resnet18": "fedmate.models.resnet:ResNet18",
    },
)

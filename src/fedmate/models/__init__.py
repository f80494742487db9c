"""Networks, one file each, and the table that names them."""

from fedmate.models.base import Architecture
from fedmate.models.digits_cnn import DigitsCNN
from fedmate.registry import Registry

MODELS: Registry[type[Architecture]] = Registry("models", {"digits_cnn": DigitsCNN})

"""Personalised federated learning: FedMate and the methods it is compared with."""

__version__ = "0.1.0"

__all__ = ["__version__"]

"""Callbacks that come with fedmate; `fedmate.Callback` is the base of your own, and docs/callbacks.md says how."""

from fedmate.callbacks.early_stopping import EarlyStopping
from fedmate.callbacks.trackers import MLflow, TensorBoard, Trackio, WandB

__all__ = ["EarlyStopping", "MLflow", "TensorBoard", "Trackio", "WandB"]

"""FedMate+: FedMate with prior calibration and server momentum: one personal model generalises and adapts.

docs/beyond.md tells what was tried. Class shares are kept out of the model (`components/prior_calibration.py`),
which makes it as good on all classes as the federation is, and are put in again where they hold; the extractor moves
with momentum (`components/server_momentum.py`). All of these are options of FedMate; here are other defaults.

Deviations: those of FedMate, whose paper it goes beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from fedmate.components.prior_calibration import CALIBRATION, LIMITS
from fedmate.components.server_momentum import LIMITS as MOMENTUM_LIMITS
from fedmate.components.server_momentum import SERVER_MOMENTUM
from fedmate.core import Limits, option
from fedmate.methods.fedmate import FedMate


@final
@dataclass(frozen=True, kw_only=True)
class FedMatePlus(FedMate):
    """FedMate with prior calibration and server momentum: a personal model that serves any distribution of classes."""

    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}

    calibration: float = option(1.0, CALIBRATION, LIMITS)
    classifier_start: Literal["own", "global"] = option("global", "the classifier local training starts from")
    classifier_learning_rate: float = option(0.02, "step size of the classifier's passes", Limits(at_least=0))
    server_momentum: float = option(0.5, SERVER_MOMENTUM, MOMENTUM_LIMITS)

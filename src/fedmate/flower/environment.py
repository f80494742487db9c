"""What everything needs that starts Flower: its packages, and silence."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from fedmate.errors import UserError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""The environment of all that is started: nothing calls home, and nothing is installed behind the user's back.

The last but one keeps Ray from hiding a GPU from its workers, and from warning that it will stop doing so; the last,
from writing to the terminal what it thinks of workers that were ended.
"""


def need_flower(*, simulation: bool = False) -> None:
    """Raise `UserError` unless Flower is installed; `simulation` asks for what its virtual clients need, too."""
    missing = next((name for name in ("flwr", "ray") if find_spec(name) is None), None)
    if missing == "flwr" or (missing == "ray" and simulation):
        raise UserError(
            f"the back end `flower` needs the package `{missing}`, which is missing; run "
            "`pip install 'fedmate[flower]'`."
        )


def silence() -> None:
    """Set the environment of all that is started from here, and of this process, which may have loaded Flower."""
    os.environ.update(QUIET)
    telemetry = sys.modules.get("flwr.supercore.telemetry")
    if telemetry is not None:
        # It has read the environment once and for all.
        vars(telemetry)["FLWR_TELEMETRY_ENABLED"] = QUIET["FLWR_TELEMETRY_ENABLED"]

"""The back end `flower`: virtual clients and sites of their own. Only the registry of back ends names this package."""

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
    # Without it Ray hides GPUs from its workers.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Nothing is written to the terminal about workers that have ended.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""The environment of all processes: nothing calls home, and nothing is installed without the user's knowledge."""


def need_flower(*, simulation: bool = False) -> None:
    """Raise `UserError` unless Flower is installed, and for a `simulation` Ray."""
    for name in ("flwr", "ray") if simulation else ("flwr",):
        if find_spec(name) is None:
            raise UserError(
                f"the back end `flower` needs the package `{name}`, which is missing; run "
                "`pip install 'fedmate[flower]'`."
            )


def silence() -> None:
    """Set the environment of this process and its children; Flower may be loaded already."""
    os.environ.update(QUIET)
    telemetry = sys.modules.get("flwr.supercore.telemetry")
    if telemetry is not None:
        # It reads the environment once.
        vars(telemetry)["FLWR_TELEMETRY_ENABLED"] = QUIET["FLWR_TELEMETRY_ENABLED"]

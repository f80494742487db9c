"""Early stopping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedmate.core.options import Limits, option
from fedmate.errors import UserError, nearest
from fedmate.experiment.callback import Callback, RoundSummary, Run, figure


@dataclass(eq=False)
class EarlyStopping(Callback):
    """Ends a run whose figure does not become better any more."""

    patience: int = option(5, "evaluations in a row without a better figure that end a run", Limits(at_least=1))
    min_delta: float = option(0.0, "a figure must be better by more than this to count", Limits(at_least=0))
    metric: str = option("accuracy", "`accuracy`, `loss` (after training), or a metric of `evaluation.metrics`")
    view: str | None = option(None, "the view; the method's own if left out")
    test: Literal["balanced", "own", "local"] | None = option(None, "the test; the run's primary one if left out")
    mode: Literal["auto", "max", "min"] = option("auto", "what is better; `auto`: less of a loss or an error")

    def run_started(self, run: Run) -> bool:
        """Begin anew, with what a run that goes on has done before."""
        known = ("accuracy", "loss", *run.config.get("evaluation", {}).get("metrics", ()))
        if self.metric not in known:
            raise UserError(f"`callbacks.early_stopping.metric` is `{self.metric}`; {nearest(self.metric, known)}")
        self._where = self.view or run.primary[0], self.test or run.primary[1]
        self._is_less_better = self.mode == "min" or (self.mode == "auto" and self.metric.endswith(("loss", "error")))
        self._best, self._waited = -math.inf, 0
        return any([self.round_ended(summary) for summary in run.history()][-1:])

    def round_ended(self, summary: RoundSummary) -> bool:
        """Compare an evaluated round with the best one."""
        if summary.metrics is not None:
            value = figure(summary.metrics, self.metric, *self._where)
            value = -math.inf if value is None else -value if self._is_less_better else value
            if value > self._best + self.min_delta or (self._best == -math.inf < value):
                self._best, self._waited = value, 0
            else:
                self._waited += 1
        return self._waited >= self.patience

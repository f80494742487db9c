"""Trackers: callbacks that send a run's figures to other programs, whose packages are imported when they are asked for.

A run that goes on sends the rounds done before, too, so that what is tracked is whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from fedmate.core.options import option
from fedmate.errors import UserError
from fedmate.experiment.callback import Callback, RoundSummary, Run
from fedmate.experiment.sections import flat


@dataclass(eq=False)
class Tracker(Callback, ABC):
    """A callback around a package; a subclass says how a run begins there, how numbers are stored, and how it ends."""

    package: ClassVar[str]
    _is_open: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            self.library: Any = import_module(self.package)
        except ImportError as error:
            extra = self.package.partition(".")[0]
            raise UserError(
                f"The callback `{type(self).__name__}` needs a package that is missing ({error}); run "
                f"`pip install 'fedmate[{extra}]'`."
            ) from None

    def run_started(self, run: Run) -> None:
        """Begin a run."""
        self.begin(run)
        self._is_open = True  # type: ignore[misc]
        for summary in run.history():
            self.round_ended(summary)

    def round_ended(self, summary: RoundSummary) -> None:
        """Store all numbers of a round."""
        self.log(summary.scalars(), summary.round)

    def run_ended(self, summary: Mapping[str, Any] | None) -> None:
        """End the run, if it has begun."""
        if self._is_open:
            self._is_open = False  # type: ignore[misc]
            self.end()

    @abstractmethod
    def begin(self, run: Run) -> None:
        """Begin a run at the tracker."""

    @abstractmethod
    def log(self, scalars: Mapping[str, float], round: int) -> None:
        """Store numbers by name."""

    @abstractmethod
    def end(self) -> None:
        """End the run at the tracker."""


@dataclass(eq=False)
class TensorBoard(Tracker):
    """Writes event files for TensorBoard into the run's folder, below `tensorboard/`."""

    package: ClassVar[str] = "torch.utils.tensorboard"
    folder: Path | None = None

    def begin(self, run: Run) -> None:
        """Open a file that replaces those of earlier processes."""
        place = self.folder or run.folder / "tensorboard"
        self._writer = self.library.SummaryWriter(str(place), purge_step=1)
        self._writer.add_text("config", "".join(f"    {key} = {value}\n" for key, value in flat(run.config).items()))

    def log(self, scalars: Mapping[str, float], round: int) -> None:
        """Add an event for each number."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round)
        # Or a kill would lose two minutes.
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        self._writer.close()


@dataclass(eq=False)
class WandB(Tracker):
    """Logs to Weights & Biases; with `WANDB_MODE=offline` in the environment to files that `wandb sync` uploads."""

    package: ClassVar[str] = "wandb"
    project: str = option("fedmate", "the project that the run belongs to")
    group: str | None = option(None, "the group of runs that it belongs to")

    def begin(self, run: Run) -> None:
        """Begin a run with the experiment as its configuration."""
        self.library.init(project=self.project, name=run.name, group=self.group, config=run.config)

    def log(self, scalars: Mapping[str, float], round: int) -> None:
        """Log numbers under the round's."""
        self.library.log(dict(scalars), step=round)

    def end(self) -> None:
        """Finish the run."""
        self.library.finish()


@dataclass(eq=False)
class Trackio(WandB):
    """Logs to Trackio, which keeps runs on this machine and has the interface of Weights & Biases."""

    package: ClassVar[str] = "trackio"


@dataclass(eq=False)
class MLflow(Tracker):
    """Logs to MLflow, to where `MLFLOW_TRACKING_URI` in the environment says."""

    package: ClassVar[str] = "mlflow"
    project: str = option("fedmate", "the experiment, in MLflow's words, that the run belongs to")

    def begin(self, run: Run) -> None:
        """Start a run with the options of the experiment as its parameters."""
        self.library.set_experiment(self.project)
        self.library.start_run(run_name=run.name)
        self.library.log_params(flat(run.config))

    def log(self, scalars: Mapping[str, float], round: int) -> None:
        """Log numbers under the round's."""
        self.library.log_metrics(dict(scalars), step=round)

    def end(self) -> None:
        """End the run."""
        self.library.end_run()

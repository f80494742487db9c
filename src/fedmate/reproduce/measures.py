"""What some experiments ask of a run besides its figures: it is taken when the run ends, and kept with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmate.core import ClientData, Source, rows_of
from fedmate.core.hollow import NOWHERE, hollow_update
from fedmate.datasets import DATASETS
from fedmate.errors import UserError
from fedmate.experiment.build import Built
from fedmate.experiment.given import Given
from fedmate.experiment.record import Record
from fedmate.experiment.restore import Restored
from fedmate.experiment.run import initial_server
from fedmate.reproduce.workload import flops_of_update


class Measure(NamedTuple):
    """Something taken from a finished run.

    Attributes:
        figures: entries for the JSON that is kept.
        arrays: arrays that are kept beside it.
        check: raises `UserError` if a run will not have it, before it is trained.
    """

    figures: Callable[[Record, Given], dict[str, Any]] = lambda record, given: {}
    arrays: Callable[[Record], Mapping[str, Tensor]] | None = None
    check: Callable[[Built], None] = lambda built: None


def _prototypes(record: Record) -> dict[str, Tensor]:
    """Return the prototypes that clients had in the last round: `[clients, classes, width]`.

    NaN stands for a client that was not in it, or diverged in it. A run that ended early has none, of size 0.
    """
    if record.summary.get("diverged_in_round") is not None:
        return {"prototypes": torch.zeros(0, 0, 0)}
    found = record.diagnostics(record.config["rounds"]) if (record.folder / "diagnostics").is_dir() else {}
    if "clients/prototypes" not in found:
        raise _has_none(record.config["method"]["name"])
    own, valid = found["clients/prototypes"], found["clients/valid"]
    everyone = own.new_full((len(_sizes(record)), *own.shape[1:]), torch.nan)
    everyone[found["clients/ids"][valid]] = own[valid]
    return {"prototypes": everyone}


def _check_prototypes(built: Built) -> None:
    """Raise `UserError` if a client's update, followed by shapes alone, has none."""
    try:
        result = hollow_update(built.method, initial_server(built), built.federation.clients[0])
    except RuntimeError:
        # One that looks at numbers cannot be followed: it is seen when it has run.
        return
    if "prototypes" not in result.diagnostics:
        raise _has_none(built.experiment.method.name)


def _has_none(method: str) -> UserError:
    return UserError(
        f"`measures` has `prototypes`, but `{method}` records none; leave it out, or run methods that have some."
    )


def _flops(record: Record, given: Given) -> dict[str, Any]:
    """Return the operations of all participants' local updates in a round; on average, where not all take part."""
    run, sizes, rows = Restored(record.folder, given.module), _sizes(record), record.rounds
    # Clients of one size do the same.
    update = functools.cache(lambda size: flops_of_update(run.method, run.server, _samples(run, size)))
    try:
        total = sum(update(sizes[row["client"]]) for row in rows)
    except RuntimeError as error:
        raise UserError(
            f"`measures` has `flops`, but those of `{run.experiment.method.name}` cannot be counted from shapes alone "
            f"({str(error).strip().splitlines()[0]}); leave it out."
        ) from None
    return {"flops_per_round": round(total / rows[-1]["round"])}


def _samples(run: Restored, size: int) -> ClientData:
    """Return as many samples as a client holds, without content, varied in training as the data set's are."""
    dataset = DATASETS[run.experiment.dataset.name](**run.experiment.dataset.options)
    samples = torch.empty(size, *run.card.input_shape, dtype=torch.uint8, device=NOWHERE)
    scale = torch.empty((), dtype=getattr(torch, run.card.dtype), device=NOWHERE)
    rows = torch.empty(size, dtype=torch.int64, device=NOWHERE)
    return rows_of(Source(samples, scale, scale, dataset.augmentation), rows, rows)


def _sizes(record: Record) -> list[int]:
    """Return how many samples each client in training holds."""
    return [row["samples"] for row in record.clients if not row.get("newcomer")]


MEASURES: dict[str, Measure] = {
    "flops": Measure(figures=_flops),
    "prototypes": Measure(arrays=_prototypes, check=_check_prototypes),
}


def have_arrays(measures: Sequence[str]) -> bool:
    """Tell whether some of the measures take arrays."""
    return any(MEASURES[name].arrays is not None for name in measures)


def check_measures(built: Built, measures: Sequence[str]) -> None:
    """Raise `UserError` if a run will not have what the measures take, before it is trained."""
    for name in measures:
        MEASURES[name].check(built)


def arrays_of(record: Record, measures: Sequence[str]) -> dict[str, Tensor] | None:
    """Return the arrays that the measures take from a run; `None` if they take none."""
    found: dict[str, Tensor] = {}
    for name in measures:
        take = MEASURES[name].arrays
        found |= {} if take is None else dict(take(record))
    return found or None

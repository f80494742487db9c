"""What some experiments ask of a run besides its figures: it is kept with them.

Some of it is taken from the run when it ends. Some can be counted from its declaration: a run that is kept without it
need not be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmate.core.shapes import trace_update
from fedmate.errors import UserError
from fedmate.experiment.build import Built
from fedmate.experiment.record import Record
from fedmate.experiment.run import initial_server, sample_participants
from fedmate.studies.workload import flops_of_update


class Measure(NamedTuple):
    """Something about a run.

    Attributes:
        counted: entries for the JSON that is kept, from the experiment alone.
        arrays: arrays that are kept beside it, from the finished run.
        check: raises `UserError` if a run will not have it, before it is trained.
    """

    counted: Callable[[Built], dict[str, Any]] | None = None
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
        result = trace_update(built.method, initial_server(built), built.federation.clients[0])
    except (RuntimeError, TypeError):
        # One that looks at numbers cannot be followed: it is seen when it has run.
        return
    if "prototypes" not in result.diagnostics:
        raise _has_none(built.experiment.method.name)


def _has_none(method: str) -> UserError:
    return UserError(
        f"`measures` has `prototypes`, but `{method}` records none; leave it out, or run methods that have some."
    )


def _flops(built: Built) -> dict[str, Any]:
    """Return the operations of all participants' local updates in a round; on average, where not all take part."""
    general, clients, server = built.experiment.general, built.federation.clients, initial_server(built)
    # Clients of one size do the same.
    by_size = {len(data.y): data for data in clients}
    try:
        updates = {size: flops_of_update(built.method, server, data) for size, data in by_size.items()}
    except (RuntimeError, TypeError) as error:
        raise UserError(
            f"`measures` has `flops`, but those of `{built.experiment.method.name}` cannot be counted from shapes "
            f"alone ({str(error).strip().splitlines()[0]}); leave it out."
        ) from None
    present = [
        client
        for number in range(general.rounds)
        for client in sample_participants(general.seed, number, len(clients), general.participation)
    ]
    return {"flops_per_round": round(sum(updates[len(clients[one].y)] for one in present) / general.rounds)}


def _sizes(record: Record) -> list[int]:
    """Return how many samples each client in training holds."""
    return [row["samples"] for row in record.clients if not row.get("newcomer")]


MEASURES: dict[str, Measure] = {
    "flops": Measure(counted=_flops),
    "prototypes": Measure(arrays=_prototypes, check=_check_prototypes),
}


def have_arrays(measures: Sequence[str]) -> bool:
    """Tell whether some of the measures take arrays."""
    return any(MEASURES[name].arrays is not None for name in measures)


def are_counted(measures: Iterable[str]) -> bool:
    """Tell whether all of the measures can be had without the run."""
    return all(MEASURES[name].counted is not None for name in measures)


def counted_of(built: Built, measures: Sequence[str]) -> dict[str, Any]:
    """Return the entries of the measures that are counted from an experiment."""
    found: dict[str, Any] = {}
    for name in measures:
        count = MEASURES[name].counted
        found |= {} if count is None else count(built)
    return found


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

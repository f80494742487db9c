"""Redundant: around any partition, some clients of whose samples many are copies of one.

The paper's redundancy experiment: the share `redundant_clients` of all clients is chosen at random; each of them gets
the share `redundant_samples` of its positions overwritten by one of its own samples, drawn at random. Nobody's size
changes, so that the class of that sample weighs more than it should, which is the point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedmate.data.partitions.base import Indices
from fedmate.errors import UserError


def repeat_samples(
    client_rows: Sequence[Indices], client_share: float, sample_share: float, rng: np.random.Generator
) -> list[Indices]:
    """Return the rows of all clients, some of them with copies; in ascending order, as they came.

    Args:
        client_rows: which samples each client holds.
        client_share: the share of clients that get copies, rounded to the nearest number.
        sample_share: the share of such a client's positions that are overwritten, rounded down.
        rng: where chance comes from.
    """
    # The small addition undoes rounding: 0.29 * 50 is 14.499999999999998.
    count = math.floor(client_share * len(client_rows) + 0.5 + 1e-9)
    if client_share and not count:
        raise UserError(
            f"`partition.redundant_clients` is {client_share}, which of {len(client_rows)} clients is none; set it to "
            f"at least {_enough(len(client_rows))}, or to 0."
        )
    chosen = set(rng.permutation(len(client_rows))[:count].tolist())
    return [_repeat_one(rows, sample_share, rng) if i in chosen else rows for i, rows in enumerate(client_rows)]


def _repeat_one(rows: Indices, share: float, rng: np.random.Generator) -> Indices:
    copied = rows[rng.integers(len(rows))]
    # As above.
    places = rng.permutation(len(rows))[: math.floor(share * len(rows) + 1e-9)]
    repeated = rows.copy()
    repeated[places] = copied
    return np.sort(repeated)


def _enough(clients: int) -> float:
    """Return the least share of clients that is one of them, in few digits and rounded up."""
    scale = 10.0 ** (len(str(clients)) + 1)
    return math.ceil(scale / (2 * clients)) / scale

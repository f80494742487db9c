"""Validation of uploads: an upload counts only if a client of this method could have sent it.

One place for every back end. Inside a process structure cannot be wrong, and `is_sound` is all that is asked; it is a
mask computed on the device. What arrives from elsewhere is held against a pattern first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedmate.core import Tree, all_finite, flatten
from fedmate.core.tree import DamagedError, fit_to
from fedmate.errors import FedmateError

COUNTS = ("num_samples", "class_counts")
"""Parts of an upload that count samples."""


MOST = 2**40
"""The most samples a client may claim: more would outweigh all others, and sums would overflow."""


class RefusedError(FedmateError):
    """An upload that is left out of its round, and why."""


class NotFiniteError(RefusedError):
    """An upload in the right form, of a client that has diverged."""


def is_sound(upload: Tree, loss: Tensor) -> Tensor:
    """Tell, on the device, whether an upload and the loss it came with can be built on.

    Numbers must be finite, counts must not be negative, and those of classes must add up to that of samples.
    """
    sound = all_finite({**upload, "loss": loss})
    for name in COUNTS:
        if name in upload:
            sound = sound & ((upload[name] >= 0) & (upload[name] <= MOST)).all()
    return sound & _agree(upload) if all(name in upload for name in COUNTS) else sound


def _agree(upload: Tree) -> Tensor:
    samples: Tensor = upload["num_samples"]
    return samples.eq(upload["class_counts"].sum())


def validate_upload(sent: Mapping[str, Tensor], like: Tree) -> Tree:
    """Return an upload that arrived as leaves by path, or raise `RefusedError`.

    Args:
        sent: what arrived.
        like: an upload of this round with the same parts, shapes and types, on the device where it is wanted.
    """
    try:
        upload = fit_to(dict(sent), like)
    except DamagedError as error:
        raise RefusedError(str(error)) from None
    for name in COUNTS:
        if name in upload and bool((upload[name] < 0).any()):
            raise RefusedError(f"`{name}` is negative")
        if name in upload and bool((upload[name] > MOST).any()):
            raise RefusedError(f"`{name}` is larger than any client's can be")
    if all(name in upload for name in COUNTS) and not bool(_agree(upload)):
        raise RefusedError("`class_counts` do not add up to `num_samples`")
    for path, leaf in flatten(upload).items():
        if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
            raise NotFiniteError(f"`{path}` is not finite")
    return upload

"""What one client holds, and how it is read in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.core.random import fold, shuffle


class ClientData(NamedTuple):
    """The samples of one client.

    Attributes:
        x: inputs `[samples, ...]`.
        y: labels `[samples]`, int64.
        mask: `[samples]`, false where a row is padding.
    """

    x: Tensor
    y: Tensor
    mask: Tensor


class Batch(NamedTuple):
    """Some samples of one client.

    Attributes:
        x, y, mask: as in `ClientData`.
        ids: which of the client's samples these are, `[batch]`.
        key: the randomness of this step, for dropout and augmentation.
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    ids: Tensor
    key: Tensor


class Federation(NamedTuple):
    """The data of an experiment: the clients' own samples and the common test split.

    Attributes:
        clients: by client id, unpadded.
        test: the test split, the same for every client.
        num_classes: how many classes there are, whether or not somebody holds them.
        newcomers: clients that stay out of training and are met afterwards.
    """

    clients: tuple[ClientData, ...]
    test: ClientData
    num_classes: int
    newcomers: tuple[ClientData, ...] = ()


def client_data(x: Tensor, y: Tensor) -> ClientData:
    """Make a client's data from its samples, without padding."""
    return ClientData(x, y, torch.ones(len(y), dtype=torch.bool, device=y.device))


def pad(data: ClientData, length: int) -> ClientData:
    """Append masked rows until there are `length`, so that unequal clients can be stacked.

    They repeat the first sample: a network may divide by a sample's own spread, and zeros would turn into NaN.
    """
    missing = length - len(data.y)
    x, y = (torch.cat([leaf, leaf[:1].expand(missing, *leaf.shape[1:])]) for leaf in (data.x, data.y))
    return ClientData(x, y, torch.cat([data.mask, data.mask.new_zeros(missing)]))


def num_samples(data: ClientData) -> Tensor:
    """Return n_i, the number of real samples, as an int64 scalar."""
    return data.mask.sum()


def class_counts(data: ClientData, num_classes: int) -> Tensor:
    """Return n_ik, how many real samples of each class there are, `[classes]`."""
    return _members(data.y, data.mask, num_classes).sum(0)


def class_means(features: Tensor, labels: Tensor, mask: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean feature of each class and the number of samples behind it.

    Args:
        features: `[samples, width]`.
        labels: `[samples]`.
        mask: `[samples]`, false where a row does not count.
        num_classes: how many classes there are.

    Returns:
        Means `[classes, width]` (zeros where a class has no sample) and counts `[classes]`, int64.
    """
    members = _members(labels, mask, num_classes)
    counts = members.sum(0)
    kept = torch.where(mask[:, None], features, torch.zeros_like(features))
    sums = members.to(features.dtype).T @ kept
    return sums / counts.clamp(min=1)[:, None].to(features.dtype), counts


def _members(labels: Tensor, mask: Tensor, num_classes: int) -> Tensor:
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)) & mask[:, None]


def batches(data: ClientData, batch_size: int, epochs: int, key: Tensor) -> Iterator[Batch]:
    """Yield `epochs` shuffled passes over the samples; the last batch of a pass may be short.

    Padding comes last in every pass, so real samples meet in the same batches with and without it, and a batch of
    padding alone is recognised by its mask.
    """
    for epoch in range(epochs):
        order, step_key = shuffle(fold(key, epoch), data.mask), fold(key, epoch, "step")
        for step, ids in enumerate(torch.split(order, batch_size)):
            yield Batch(data.x[ids], data.y[ids], data.mask[ids], ids, fold(step_key, step))

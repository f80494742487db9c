"""What one client holds, and how it is read in batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.core.random import fold, shuffle
from fedmate.core.source import Augmentation, Source, plain_source


class ClientData(NamedTuple):
    """The samples of one client: rows of a source that it may share with others.

    Attributes:
        source: where samples lie.
        rows: which of them are the client's, `[samples]`, int64.
        y: labels `[samples]`, int64.
        mask: `[samples]`, false where a row is padding.
    """

    source: Source
    rows: Tensor
    y: Tensor
    mask: Tensor

    @property
    def x(self) -> Tensor:
        """All its inputs, `[samples, ...]`, as a network reads them."""
        return self.source.read(self.rows)

    def vary(self, ids: Tensor, key: Tensor) -> Tensor:
        """Return some of its inputs as a network reads them in training, `[ids, ...]`."""
        rows = self.rows[ids]
        # Without anything to draw there is no need of keys.
        varied = self.source.augmentation != Augmentation()
        return self.source.vary(rows, fold(key, "augment", ids)) if varied else self.source.read(rows)

    def map(self, function: Callable[[Tensor], Tensor]) -> ClientData:
        """Apply a function to everything but the source: choose samples, or clients of a stack."""
        return ClientData(self.source, *map(function, (self.rows, self.y, self.mask)))


class Batch(NamedTuple):
    """Some samples of one client.

    Attributes:
        x: inputs `[batch, ...]`, varied as training wants them.
        y, mask: as in `ClientData`.
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
    """Make a client's data from samples of its own that are read as they are, without padding."""
    return rows_of(plain_source(x), torch.arange(len(y), device=y.device), y)


def rows_of(source: Source, rows: Tensor, y: Tensor) -> ClientData:
    """Make a client's data from rows of a source, without padding."""
    return ClientData(source, rows, y, torch.ones_like(rows, dtype=torch.bool))


def share_source(clients: Sequence[ClientData]) -> tuple[ClientData, ...]:
    """Let clients be rows of one source, as they are already unless each came with its own."""
    source = clients[0].source
    if all(data.source is source for data in clients):
        return tuple(clients)
    if any(data.source.augmentation != source.augmentation for data in clients):
        raise ValueError("clients whose samples are varied in different ways cannot share a source")
    shared = source._replace(samples=torch.cat([data.source.samples[data.rows] for data in clients]))
    ends = itertools.accumulate(len(data.rows) for data in clients)
    device = source.samples.device
    rows = [torch.arange(end - len(data.rows), end, device=device) for data, end in zip(clients, ends, strict=True)]
    return tuple(data._replace(source=shared, rows=own) for data, own in zip(clients, rows, strict=True))


def pad(data: ClientData, length: int) -> ClientData:
    """Append masked rows until there are `length`, so that unequal clients can be stacked.

    They repeat the first sample: a network may divide by a sample's own spread, and zeros would turn into NaN.
    """
    missing = length - len(data.y)
    rows, y = (torch.cat([leaf, leaf[:1].expand(missing)]) for leaf in (data.rows, data.y))
    return ClientData(data.source, rows, y, torch.cat([data.mask, data.mask.new_zeros(missing)]))


PER_CLIENT = ClientData(source=None, rows=0, y=0, mask=0)  # type: ignore[arg-type]
"""What of a stack of clients has a client axis, as `torch.func.vmap` wants to be told: all but the source."""


def stack_clients(clients: Sequence[ClientData]) -> ClientData:
    """Pad clients to the largest of them and stack them; the source stays one."""
    length = max(len(data.y) for data in clients)
    padded = [pad(data, length) for data in share_source(clients)]
    rows, y, mask = (torch.stack(leaves) for leaves in list(zip(*padded, strict=True))[1:])
    return ClientData(padded[0].source, rows, y, mask)


def num_samples(data: ClientData) -> Tensor:
    """Return n_i, the number of real samples, as an int64 scalar."""
    return data.mask.sum()


def class_counts(data: ClientData, num_classes: int) -> Tensor:
    """Return n_ik, how many real samples of each class there are, `[classes]`."""
    return count_classes(data.y, data.mask, num_classes)


def count_classes(labels: Tensor, mask: Tensor, num_classes: int) -> Tensor:
    """Return how many of the labels that count there are of each class, `[classes]`, int64."""
    return _members(labels, mask, num_classes).sum(0)


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
            moment = fold(step_key, step)
            yield Batch(data.vary(ids, moment), data.y[ids], data.mask[ids], ids, moment)

"""What one client holds, and how it is read in batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedmate.core.execution import lay_out
from fedmate.core.random import fold, shuffle
from fedmate.core.source import Augmentation, Source, plain_source

Count = TypeVar("Count", int, Tensor)


class ClientData(NamedTuple):
    """The samples of one client: rows of a source that it may share with others."""

    source: Source  # where samples lie
    rows: Tensor  # which of them are the client's, `[samples]`, int64
    y: Tensor  # targets `[samples, ...]`, of which the model's task knows more; int64 labels for a class each
    mask: Tensor  # `[samples]`, false where a row is padding
    # at least so many rows are no padding, of each client in a stack. A plain number, known without reading the
    # mask; 0 promises nothing
    filled: int = 0

    @property
    def counted(self) -> Tensor | None:
        """The mask, or `None` where it is known to hold everywhere."""
        return None if self.filled == self.rows.shape[-1] else self.mask

    @property
    def x(self) -> Tensor:
        """All its inputs, `[samples, ...]`, as a network reads them."""
        return self.source.read(self.rows)

    @property
    def is_augmented(self) -> bool:
        """Whether training sees its samples cropped or mirrored, each time anew."""
        return self.source.augmentation != Augmentation()

    def draw(self, ids: Tensor, key: Tensor) -> Tensor:
        """Return some of its samples as the source keeps them, augmented for training; one key, or one for each."""
        rows = self.rows[ids]
        # Without anything to draw there is no need of keys.
        return self.source.draw(rows, fold(key, "augment", ids)) if self.is_augmented else self.source.take(rows)

    def masked(self) -> ClientData:
        """Return it with nothing that counts."""
        return self._replace(mask=torch.zeros_like(self.mask), filled=0)

    def map(self, function: Callable[[Tensor], Tensor]) -> ClientData:
        """Apply a function to everything but the source: choose samples, or clients of a stack."""
        rows, y, mask = map(function, (self.rows, self.y, self.mask))
        # A choice has no more padding than there was.
        padding = self.rows.shape[-1] - self.filled
        return ClientData(self.source, rows, y, mask, max(0, rows.shape[-1] - padding))


class Batch(NamedTuple):
    """Some samples of one client."""

    x: Tensor  # inputs `[batch, ...]`, augmented as training wants them
    y: Tensor  # as in `ClientData`
    mask: Tensor
    ids: Tensor  # which of the client's samples these are, `[batch]`
    key: Tensor  # the randomness of this step, for dropout and augmentation
    filled: int = 0  # as in `ClientData`

    @property
    def counted(self) -> Tensor | None:
        """The mask, or `None` where it is known to hold everywhere."""
        return None if self.filled == self.y.shape[0] else self.mask


class EvaluationData(NamedTuple):
    """What the models of a client are tested on."""

    common: ClientData | None  # the test split, the same for every client; sites have none
    local: ClientData | None = None  # the client's own samples for testing, if it has such


class Federation(NamedTuple):
    """The data of an experiment: the clients' own samples and the common test split."""

    clients: tuple[ClientData, ...]  # by client id, unpadded
    test: ClientData  # the test split, the same for every client
    num_classes: int  # how many classes there are, whether or not a client holds them
    held_out_clients: tuple[ClientData, ...] = ()  # clients that stay out of training and are met afterwards
    # each client's own samples for testing, then each held-out client's; empty if they have none
    local_tests: tuple[ClientData, ...] = ()
    # whether samples lie with sites of their own; those here then have their shape, and mean nothing
    at_sites: bool = False

    def tests(self, client: int) -> EvaluationData:
        """Return what a client is tested on; held-out clients are numbered on from those in training."""
        local = self.local_tests[client] if self.local_tests else None
        return EvaluationData(None if self.at_sites else self.test, local)


def client_data(x: Tensor, y: Tensor) -> ClientData:
    """Make a client's data from samples of its own that are read as they are, without padding."""
    return rows_of(plain_source(x), torch.arange(len(y), device=y.device), y)


def rows_of(source: Source, rows: Tensor, y: Tensor) -> ClientData:
    """Make a client's data from rows of a source, without padding."""
    return ClientData(source, rows, y, torch.ones_like(rows, dtype=torch.bool), len(rows))


def share_source(clients: Sequence[ClientData]) -> tuple[ClientData, ...]:
    """Let clients be rows of one source, as they are already unless each came with its own."""
    source = clients[0].source
    if all(data.source is source for data in clients):
        return tuple(clients)
    if any(data.source.augmentation != source.augmentation for data in clients):
        raise ValueError("clients whose samples are augmented in different ways cannot share a source")
    shared = source._replace(samples=torch.cat([data.source.samples[data.rows] for data in clients]))
    ends = itertools.accumulate(len(data.rows) for data in clients)
    device = source.samples.device
    rows = [torch.arange(end - len(data.rows), end, device=device) for data, end in zip(clients, ends, strict=True)]
    return tuple(data._replace(source=shared, rows=own) for data, own in zip(clients, rows, strict=True))


def pad(data: ClientData, length: int) -> ClientData:
    """Append masked rows until there are `length`, so that unequal clients can be stacked.

    They repeat the first sample: a network may divide by a sample's own spread, and zeros would turn into NaN.
    """
    missing = length - len(data.rows)
    rows, y = (torch.cat([leaf, leaf[:1].expand(missing, *leaf.shape[1:])]) for leaf in (data.rows, data.y))
    return ClientData(data.source, rows, y, torch.cat([data.mask, data.mask.new_zeros(missing)]), data.filled)


PER_CLIENT = ClientData(source=None, rows=0, y=0, mask=0, filled=None)  # type: ignore[arg-type]
"""What of a stack of clients has a client axis, as `torch.func.vmap` expects it: all tensors but the source's."""


def stack_clients(clients: Sequence[ClientData]) -> ClientData:
    """Pad clients to the largest of them and stack them; the source stays one."""
    length = max(len(data.rows) for data in clients)
    padded = [pad(data, length) for data in share_source(clients)]
    rows, y, mask = (torch.stack(leaves) for leaves in list(zip(*padded, strict=True))[1:4])
    return ClientData(padded[0].source, rows, y, mask, min(data.filled for data in padded))


def num_samples(data: ClientData) -> Tensor:
    """Return n_i, the number of real samples, as an int64 scalar."""
    return data.mask.sum()


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
    members = class_members(labels, mask, num_classes)
    counts = members.sum(0)
    kept = torch.where(mask[:, None], features, torch.zeros_like(features))
    sums = members.to(features.dtype).T @ kept
    return sums / counts.clamp(min=1)[:, None].to(features.dtype), counts


def class_members(labels: Tensor, mask: Tensor, num_classes: int) -> Tensor:
    """Tell for each sample that counts and each class whether it is of that class, `[samples, classes]`."""
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)) & mask[:, None]


WINDOW = 1000
"""Samples augmented at once: so many that starting an operation costs little beside it, few enough for memory."""


def windows(data: ClientData, batch_size: int, epochs: float, key: Tensor) -> Iterator[Batch]:
    """Yield what `batches` yields, many steps at once: samples as the source keeps them, and one key for each step."""
    size = max(1, WINDOW // batch_size) * batch_size
    for epoch in range(math.ceil(epochs)):
        order, step_key = shuffle(fold(key, epoch), data.mask), fold(key, epoch, "step")
        promised, counted = data.filled, None
        if epochs < epoch + 1:
            length, counted = _share(len(order), epochs - epoch), _share(num_samples(data), epochs - epoch)
            order, promised = order[:length], _share(data.filled, epochs - epoch)
        for start in range(0, order.shape[0], size):
            ids = order[start : start + size]
            steps = -(-ids.shape[0] // batch_size)
            moments = fold(step_key, torch.arange(steps, device=ids.device) + start // batch_size)
            filled = min(max(0, promised - start), ids.shape[0])
            if counted is None:
                mask = data.mask[ids]
            else:
                mask = torch.arange(start, start + len(ids), device=ids.device) < counted
            yield _window(data, ids, mask, moments, batch_size, filled)


def _window(data: ClientData, ids: Tensor, mask: Tensor, moments: Tensor, batch_size: int, filled: int) -> Batch:
    of_each = moments[:, None].expand(-1, batch_size).flatten()[: ids.shape[0]]
    # Once for all steps, and while they are bytes.
    samples = lay_out(data.draw(ids, of_each), data.source.mean.dtype)
    return Batch(samples, data.y[ids], mask, ids, moments, filled)


def _share(count: Count, share: float) -> Count:
    """Return a share of samples, rounded up; in whole numbers, so that a tensor has no other rounding."""
    return -(-count * round(share * 10**6) // 10**6)


def _windows_of_steps(data: ClientData, batch_size: int, steps: int, key: Tensor) -> Iterator[Batch]:
    """Yield the windows of so many steps of a client that may be padded: each begins a pass when its own is over."""
    samples, size = num_samples(data), max(1, WINDOW // batch_size)
    steps_of_pass = -(-samples // batch_size)
    # The shortest pass of all clients in the stack tells how many a window may touch.
    shortest = max(1, -(-data.filled // batch_size))
    for start in range(0, steps, size):
        step = torch.arange(start, min(start + size, steps), device=data.rows.device)
        number, place = step // steps_of_pass, step % steps_of_pass
        passes = range((len(step) + shortest - 2) // shortest + 1)
        orders = torch.stack([shuffle(fold(key, number[0] + later), data.mask) for later in passes])
        rows = place[:, None] * batch_size + torch.arange(batch_size, device=step.device)
        ids = orders[(number - number[0])[:, None], rows.clamp(max=data.rows.shape[0] - 1)].flatten()
        moments = fold(key, number, "step", place)
        yield _window(data, ids, (rows < samples).flatten(), moments, batch_size, 0)


def split(window: Batch, batch_size: int) -> Iterator[Batch]:
    """Yield the steps of a window."""
    parts = (torch.split(leaf, batch_size) for leaf in (window.x, window.y, window.mask, window.ids))
    for step, (x, y, mask, ids, key) in enumerate(zip(*parts, window.key.unbind(), strict=True)):
        filled = min(max(0, window.filled - step * batch_size), ids.shape[0])
        yield Batch(x, y, mask, ids, key, filled)


def batches(data: ClientData, batch_size: int, epochs: float, key: Tensor, steps: int = 0) -> Iterator[Batch]:
    """Yield `epochs` shuffled passes over the samples; the last batch of a pass may be short.

    The last pass may be a part of one. `steps` yields so many batches instead, of as many passes as that takes.
    Padding comes last in every pass, so real samples meet in the same batches with and without it, and a batch of
    padding alone is recognised by its mask.
    """
    length = data.rows.shape[0]
    if steps and data.filled < length:
        batch_size = min(batch_size, length)
        found = _windows_of_steps(data, batch_size, steps, key)
    else:
        steps_of_pass = -(-length // batch_size)
        found = windows(data, batch_size, -(-steps // steps_of_pass) if steps else epochs, key)
    unlimited = (batch for window in found for batch in split(window, batch_size))
    for batch in itertools.islice(unlimited, steps or None):
        # A step of a fixed number has a sample in it.
        filled = max(batch.filled, 1) if steps else batch.filled
        yield batch._replace(x=data.source.normalise(batch.x), filled=filled)


def num_steps(data: ClientData, batch_size: int, epochs: float, steps: int = 0) -> Tensor:
    """Return how many batches of a client `batches` yields that are no padding, as an int64 scalar."""
    samples, whole = num_samples(data), int(epochs)
    if steps:
        return torch.full_like(samples, steps)
    found = -(-samples // batch_size) * whole
    return found if whole == epochs else found - (-_share(samples, epochs - whole) // batch_size)

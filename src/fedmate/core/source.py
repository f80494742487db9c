"""Samples as they lie on the device, and how a network reads them: cropped, mirrored, normalised, as a key says.

Everything here is a pure function of tensors, so that a sample is read alike by one client alone, by many at once and
at a site of its own; the draws of a sample depend on its key, not on what else is in the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmate.core.execution import lay_out
from fedmate.core.random import fold, to_uniform


class Augmentation(NamedTuple):
    """How training images are augmented."""

    crop: int = 0  # how many black pixels are put around an image before a part of its old size is cut out at random
    flip: bool = False  # whether half of them are mirrored, left to right


class Source(NamedTuple):
    """The samples that clients are rows of; they share one source, which is on the device once."""

    samples: Tensor  # `[samples, ...]`, as the data set has them: bytes for images
    mean: Tensor  # what is subtracted and divided by, in the precision of the network; they broadcast to a sample
    std: Tensor
    augmentation: Augmentation = Augmentation()  # how samples are augmented in training

    def read(self, rows: Tensor) -> Tensor:
        """Return some samples as a network reads them."""
        return self.normalise(self.take(rows))

    def take(self, rows: Tensor) -> Tensor:
        """Return some samples as they are kept."""
        # What `samples[rows]` is, but several times faster on a CPU: whole samples are copied, not number by number.
        found = functional.embedding(rows, self.samples.flatten(1))
        return found.reshape(*rows.shape, *self.samples.shape[1:])

    def draw(self, rows: Tensor, keys: Tensor) -> Tensor:
        """Return some samples as they are kept, augmented for training; `keys` has one for each."""
        return augment(self.take(rows), self.augmentation, keys)

    def normalise(self, samples: Tensor) -> Tensor:
        """Return what a network reads of samples as they are kept."""
        # Laid out as samples are: going through three numbers at every pixel would take longer than all the rest.
        precision = self.mean.dtype
        mean, std = (lay_out(number.expand(1, *samples.shape[1:]), precision) for number in (self.mean, self.std))
        return (lay_out(samples, precision).to(precision) - mean) / std


def plain_source(samples: Tensor) -> Source:
    """Return a source of samples that are read as they are."""
    return Source(samples, samples.new_zeros(()), samples.new_ones(()))


def augment(images: Tensor, augmentation: Augmentation, keys: Tensor) -> Tensor:
    """Crop and mirror images at random.

    Args:
        images: `[samples, channels, height, width]`, of any type.
        augmentation: what to do.
        keys: `[samples]`, the randomness of each.
    """
    margin, flip = augmentation
    if not margin and not flip:
        return images
    height, width = images.shape[-2:]
    draws = to_uniform(fold(keys[:, None], torch.arange(3, device=images.device)))
    down, right = ((draws[:, i, None] * (2 * margin + 1)).long() for i in (0, 1))
    columns = torch.arange(width, device=images.device)
    if flip:
        columns = torch.where(draws[:, 2, None] < 0.5, columns.flip(0), columns)
    rows = torch.arange(height, device=images.device) + down
    # One gather for both: where each pixel of the result lies in the image with its margin.
    places = (rows[:, :, None] * (width + 2 * margin) + (columns + right)[:, None, :]).flatten(1)
    padded = functional.pad(images, (margin,) * 4).flatten(2)
    return padded.gather(2, places[:, None].expand(-1, images.shape[1], -1)).reshape(images.shape)

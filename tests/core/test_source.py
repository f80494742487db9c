"""Samples are read as the data set says, and varied as their own keys say, in whatever company."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedmate.core import source as source_module
from fedmate.core.data import ClientData, batches, rows_of, share_source
from fedmate.core.random import fold, make_key, to_uniform
from fedmate.core.source import Augmentation, Source, augment

VARIED = Augmentation(2, True)


class Draw(NamedTuple):
    """Where a part is cut out of an image with its margin, and whether it is mirrored."""

    down: int
    right: int
    mirrored: bool


def draw(key: Tensor, crop: int, flip: bool = True) -> Draw:
    """Return what a key stands for: three numbers, the first two tell the place, the third whether to mirror."""
    first, second, third = (float(to_uniform(fold(key, i))) for i in range(3))
    return Draw(int(first * (2 * crop + 1)), int(second * (2 * crop + 1)), flip and third < 0.5)


def by_hand(image: NDArray[np.generic], crop: int, chosen: Draw) -> NDArray[np.generic]:
    """Cut one image `[channels, height, width]` out of a black margin, then mirror it."""
    _, height, width = image.shape
    around = np.pad(image, ((0, 0), (crop, crop), (crop, crop)))
    part = around[:, chosen.down : chosen.down + height, chosen.right : chosen.right + width]
    return part[:, :, ::-1] if chosen.mirrored else part


def make_images(count: int, shape: tuple[int, int, int] = (3, 6, 5), seed: int = 0) -> Tensor:
    """Return bytes without a black pixel among them, so that the margin is told from the image."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (count, *shape), generator=generator, dtype=torch.uint8)


def make_keys(count: int, seed: int = 0) -> Tensor:
    return fold(make_key(seed), torch.arange(count))


def make_source(augmentation: Augmentation = VARIED, dtype: torch.dtype = torch.float32) -> Source:
    mean, std = (torch.tensor(values, dtype=dtype)[:, None, None] for values in ([120, 100, 90.5], [60, 55.5, 70]))
    return Source(make_images(40), mean, std, augmentation)


def make_client(source: Source, first: int, size: int) -> ClientData:
    """Return a client that holds every second sample from `first` on."""
    return rows_of(source, first + 2 * torch.arange(size), torch.arange(size) % 4)


# -------------------- varying, by hand


def test_what_a_key_stands_for_never_changes() -> None:
    """Or records could not be repeated."""
    keys = [13243816594963024, -7275568145525864772, -8290608373601797151, 3733294341789409801]
    chosen = [Draw(8, 2, False), Draw(5, 8, True), Draw(1, 2, False), Draw(2, 2, True)]
    images = make_images(4)
    found = augment(images, Augmentation(4, True), torch.tensor(keys))
    assert all(np.array_equal(found[i].numpy(), by_hand(images[i].numpy(), 4, chosen[i])) for i in range(len(images)))


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    crop=st.integers(0, 9),
    flip=st.booleans(),
    count=st.integers(0, 5),
    kind=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
    seed=st.integers(0, 10**6),
)
def test_is_padding_cutting_and_mirroring(
    shape: tuple[int, int, int], crop: int, flip: bool, count: int, kind: torch.dtype, seed: int
) -> None:
    images, keys = make_images(count, shape, seed).to(kind), make_keys(count, seed)
    before = images.clone()
    found = augment(images, Augmentation(crop, flip), keys)
    assert (found.dtype, found.shape) == (kind, images.shape)
    for image, key, one in zip(images, keys, found, strict=True):
        assert np.array_equal(one.numpy(), by_hand(image.numpy(), crop, draw(key, crop, flip)))
    assert torch.equal(images, before)


@pytest.mark.parametrize("crop", [1, 4, 15, 16, 64])
def test_the_largest_draw_stays_inside(crop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number just below 1, times 2 crop + 1, must not be rounded up to a place outside."""
    monkeypatch.setattr(source_module, "to_uniform", lambda bits: torch.full(bits.shape, 1 - 2.0**-24))
    images = make_images(1, (1, 2, 3))
    found = augment(images, Augmentation(crop, True), make_keys(1))
    assert np.array_equal(found[0].numpy(), by_hand(images[0].numpy(), crop, Draw(2 * crop, 2 * crop, False)))


# -------------------- clients


def test_every_pass_varies_anew() -> None:
    data = make_client(make_source(), 0, 20)
    passes, again = ([b.x[b.ids.argsort()] for b in batches(data, 20, 3, make_key(0))] for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(passes, again, strict=True))
    for first, second in combinations(passes, 2):
        same = (first == second).flatten(1).all(1)
        # Of 50 ways to vary a sample two are the same now and then.
        assert int(same.sum()) < 4
    plain = data._replace(source=data.source._replace(augmentation=Augmentation()))
    assert all(torch.equal(batch.x, plain.x[batch.ids]) for batch in batches(plain, 7, 2, make_key(0)))


# -------------------- one source for all


def as_own_sources(clients: list[ClientData]) -> list[ClientData]:
    """Return the same clients, each with a source of its own, which holds other samples too."""
    own = []
    for data in clients:
        samples = torch.cat([make_images(2, seed=9), data.source.samples[data.rows].flip(0)])
        rows = torch.arange(len(data.rows)).flip(0) + 2
        own.append(data._replace(source=data.source._replace(samples=samples), rows=rows))
    return own


@pytest.mark.parametrize("sizes", [(3, 1, 5), (4,), (2, 2)], ids=str)
def test_clients_with_own_sources_come_to_share_one(sizes: tuple[int, ...]) -> None:
    clients = [make_client(make_source(), 3 * i, size) for i, size in enumerate(sizes)]
    shared = share_source(as_own_sources(clients))
    assert len(shared) == len(sizes)
    assert all(data.source is shared[0].source for data in shared)
    for before, after in zip(clients, shared, strict=True):
        assert torch.equal(after.x, before.x)
        assert torch.equal(after.y, before.y)
        ids, key = torch.arange(len(before.y)), make_key(4)
        assert torch.equal(after.draw(ids, key), before.draw(ids, key))

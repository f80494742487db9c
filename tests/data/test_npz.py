"""Arrays in a file: a user's own in any sensible shape, prepared ones in theirs, and one sentence for the rest."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmate.core import Augmentation
from fedmate.data.arrays import Npz
from fedmate.data.dataset import Arrays
from fedmate.data.sources import read_numpy
from fedmate.errors import UserError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 9, 8), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 9, 8, 3), dtype=np.uint8)
TABLE = RNG.normal(size=(6, 4))
LABELS = np.array([0, 1, 2, 2, 1, 0])
TESTED = {"test_x": TABLE, "test_y": LABELS, "test_client": LABELS}


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def load(folder: Path, **arrays: Any) -> Arrays:
    path = save(folder / "own.npz", **{"train_x": TABLE, "train_y": LABELS, **arrays})
    return Npz(path=str(path)).load(folder)


def refused(folder: Path, **arrays: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, **arrays)
    assert "own.npz" in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("content", [b"", b"<html>", pickle.dumps([1])])
def test_what_is_no_npz_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"x.npz` is not a file of numpy's numbers \(.+\); write plain numbers, "):
        read_numpy(tmp_path / "x.npz")
    with pytest.raises(UserError, match=r"y.npz` does not exist"):
        read_numpy(tmp_path / "y.npz")


def test_no_pickle_in_a_file_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([print], dtype=object))
    with pytest.raises(UserError, match=r"Python objects, which are not read; write plain numbers, and words with"):
        read_numpy(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (GREY, (1, 9, 8)),
        (GREY[:, None], (1, 9, 8)),
        (GREY[..., None], (1, 9, 8)),
        (COLOUR, (3, 9, 8)),
        (COLOUR.transpose(0, 3, 1, 2), (3, 9, 8)),
        # Three rows or three channels at either end: taken as it is.
        (COLOUR[:, :3], (3, 8, 3)),
        (RNG.integers(0, 256, (6, 4, 9, 8), dtype=np.uint8), (4, 9, 8)),
    ],
)
def test_bytes_are_images_with_channels_first(x: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    arrays = load(tmp_path, train_x=x)
    assert arrays.train.x.shape == (6, *shape)
    assert arrays.train.x.dtype == np.uint8
    if shape == (3, 9, 8):
        np.testing.assert_array_equal(arrays.train.x, COLOUR.transpose(0, 3, 1, 2))
    source = arrays.normalisation.source(arrays.train.x, Augmentation(), torch.float64, "cpu")
    read = source.read(torch.arange(6)).numpy()
    np.testing.assert_allclose(read, (arrays.train.x / 255 - 0.5) / 0.5)
    assert -1 <= read.min() < -0.9
    assert 0.9 < read.max() <= 1


def test_words_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    words = np.array(["cat", "dog", "ant", "ant", "dog", "cat"])
    arrays = load(tmp_path, train_y=words, test_x=TABLE[:2], test_y=np.array(["bee", "dog"]))
    assert arrays.class_names == ("ant", "bee", "cat", "dog")
    assert arrays.train.y.tolist() == [2, 3, 0, 0, 3, 2]
    assert arrays.test is not None
    assert arrays.test.y.tolist() == [1, 3]
    named = load(tmp_path, train_y=words, class_names=np.array(["dog", "cat", "ant", "never seen"]))
    assert named.class_names == ("dog", "cat", "ant", "never seen")
    assert named.train.y.tolist() == [1, 0, 2, 2, 0, 1]


@pytest.mark.parametrize(
    ("clients", "numbers", "names"),
    [
        ([70, 5, 5, -1, 70, 5], [2, 1, 1, 0, 2, 1], ("-1", "5", "70")),
        (["bo", "al", "cy", "al", "al", "al"], [1, 0, 2, 0, 0, 0], ("al", "bo", "cy")),
    ],
)
def test_clients_are_numbered_in_the_order_of_their_names(
    clients: list[Any], numbers: list[int], names: tuple[str, ...], tmp_path: Path
) -> None:
    # Read, then out of the cache.
    for _ in range(2):
        arrays = load(tmp_path, train_client=np.array(clients))
        assert arrays.clients is not None
        assert arrays.clients.tolist() == numbers
        assert arrays.client_names == names
    assert load(tmp_path).clients is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_x": TABLE[:5]}, "own.npz[train_x]` has the shape [5, 4], `"),
        ({"test_x": TABLE}, "has no `test_y`, but `train_x`, `train_y`, `test_x`"),
        ({"test_x": TABLE[:, 1:], "test_y": LABELS}, "own.npz[test_x]` has float64 samples of shape [3], `"),
        ({"train_y": LABELS - 1}, "own.npz[train_y]` is -1 at [0], but labels are whole numbers from 0"),
        ({"class_names": ["a", "b"]}, "own.npz[train_y]` is 2 at [2], but labels are whole numbers from 0 to 1"),
        ({"class_names": ["a", "b"], "train_y": np.array([*"abbcbb"])}, "own.npz[train_y]` holds `c`, which is"),
        ({"train_client": [1, 2]}, "own.npz[train_client]` has the shape [2] for 6 samples"),
        ({"train_client": LABELS / 2}, "own.npz[train_client]` is 0.5 at [1]; give whole numbers or words"),
        (TESTED, "has `test_client`, but no `train_client`; add"),
        ({**TESTED, "train_client": LABELS + 1}, "own.npz[test_client]` holds `0`, which `train_client` has not"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, **arrays)

"""The serialised form of a tree: what comes back is what went in, or an error, never anything else."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from fedmate.core import Tree
from fedmate.core.tree import DamagedError, fit_to, pack, unpack

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


def bits(leaf: Tensor) -> bytes:
    """Return a tensor's content, in which NaN equals itself and -0 is not 0."""
    return bytes(leaf.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def same(one: Tree, other: Tree) -> bool:
    """Tell whether two trees agree in structure, order, types, shapes and every bit."""
    if list(one) != list(other):
        return False
    for name, value in one.items():
        twin = other[name]
        if isinstance(value, dict) or isinstance(twin, dict):
            if not (isinstance(value, dict) and isinstance(twin, dict) and same(value, twin)):
                return False
        elif (value.dtype, value.shape) != (twin.dtype, twin.shape) or bits(value) != bits(twin):
            return False
    return True


def back(tree: Tree) -> Tree:
    """Write a tree down and read it again."""
    tensors, note = unpack(pack(tree, {"of": "a test"}))
    assert note == {"of": "a test"}
    return fit_to(tensors, tree)


def some(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return numbers of a type, every bit of which may be set."""
    size = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    if dtype == torch.bool:
        return torch.arange(size).reshape(shape) % 3 == 0
    return (torch.arange(size) * 37 % 251).to(torch.uint8).view(dtype).reshape(shape)


# -------------------- what goes in comes out


def test_the_same_tree_gives_the_same_bytes() -> None:
    def build() -> Tree:
        return {"b": {"y": torch.arange(5.0), "x": torch.ones(2, dtype=torch.int64)}, "a": torch.zeros(3)}

    first = pack(build(), {"client": 3, "file": "x", "round": 7})
    assert pack(build(), {"client": 3, "file": "x", "round": 7}) == first
    # Neither the order of keys nor how the numbers lie in memory matters.
    tree = build()
    shuffled = {"a": tree["a"], "b": {"x": tree["b"]["x"], "y": torch.arange(10.0)[:5]}}
    assert pack(shuffled, {"client": 3, "file": "x", "round": 7}) == first
    assert pack(build(), {"client": 4, "file": "x", "round": 7}) != first


# -------------------- damage

SMALL: Tree = {"a": torch.tensor([1.0, -2.5]), "b": {"n": torch.tensor(3), "mask": torch.tensor([True, False, True])}}
DATA = pack(SMALL, {"client": 3, "file": "clients/000003-000007.safetensors"})


def read(data: bytes) -> Tree | None:
    """Return the tree that `data` holds, or nothing if it is damaged; whatever else is raised goes through."""
    try:
        tensors, note = unpack(data)
    except DamagedError:
        return None
    return {"tensors": tensors, "note": note}


def test_every_flipped_bit_is_found() -> None:
    missed = []
    for place in range(8 * len(DATA)):
        data = bytearray(DATA)
        data[place // 8] ^= 1 << place % 8
        if read(bytes(data)) is not None:
            missed.append(place)
    assert missed == []


def test_every_truncation_is_found() -> None:
    assert [size for size in range(len(DATA)) if read(DATA[:size]) is not None] == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        save({"a": torch.ones(1)}),
        save({"a": torch.ones(1)}, {"fedmate": json.dumps({"note": 3, "digest": ""})}),
        save({"a": torch.ones(1)}, {"fedmate": json.dumps({"note": "{}", "digest": "0" * 64})}),
        save({"a": torch.ones(1)}, {"fedmate": "[" * 100_000}),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
)
def test_foreign_bytes_are_refused(data: bytes) -> None:
    assert read(data) is None


# -------------------- random trees

keys = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=4)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = st.builds(some, st.sampled_from(DTYPES)) | st.builds(
    lambda dtype, shape: some(dtype, *shape), st.sampled_from(DTYPES), shapes
)
trees: st.SearchStrategy[Tree] = st.dictionaries(
    keys, st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=6), max_size=4
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(tree=trees)
def test_random_trees_come_back(tree: Tree) -> None:
    assert same(back(tree), tree)
    assert pack(tree, {}) == pack(tree, {})

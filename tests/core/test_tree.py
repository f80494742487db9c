"""Trees keep their structure, and averages leave out what does not count."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmate.core.tree import Tree, all_finite, flatten, num_bytes, unflatten, weighted_mean, where

DTYPES = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, dtype=torch.float64, generator=generator) * 100).to(dtype)


tensors = st.builds(
    random_tensor,
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32 - 1),
)
# Names as modules give them: dots are allowed, the separator is not.
names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=6)
trees: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(names, tensors, min_size=1, max_size=3),
    lambda inner: st.dictionaries(names, inner | tensors, min_size=1, max_size=3),
    max_leaves=8,
)


def assert_identical(found: Tree, expected: Tree) -> None:
    """Same keys in the same order, same types, same bits."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_identical(found[name], value)
        else:
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)


class TestStructure:
    @settings(max_examples=40)
    @given(tree=trees)
    def test_flatten_and_back(self, tree: Tree) -> None:
        flat = flatten(tree)
        assert all(isinstance(value, Tensor) for value in flat.values())
        assert_identical(unflatten(flat), tree)


class TestWhere:
    @pytest.mark.parametrize("condition", [True, False])
    def test_takes_one_tree_whatever_the_other_holds(self, condition: bool) -> None:
        good: Tree = {"a": torch.tensor([1.0, -2.0]), "b": {"n": torch.tensor([7])}}
        bad: Tree = {"a": torch.tensor([math.nan, math.inf]), "b": {"n": torch.tensor([-1])}}
        chosen, otherwise = (good, bad) if condition else (bad, good)
        assert_identical(where(torch.tensor(condition), chosen, otherwise), good)


class TestWeightedMean:
    @pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rows_of_weight_zero_are_left_out_whatever_they_hold(self, poison: float, dtype: torch.dtype) -> None:
        good = random_tensor((2, 5), dtype, 0)
        stacked: Tree = {"a": torch.stack([good[0], torch.full((5,), poison, dtype=dtype), good[1]])}
        mean = weighted_mean(stacked, torch.tensor([1.0, 0.0, 3.0]))
        expected = weighted_mean({"a": good}, torch.tensor([1.0, 3.0]))
        assert torch.isfinite(mean["a"]).all()
        assert_identical(mean, expected)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_nobody_counts(self, dtype: torch.dtype) -> None:
        leaf = random_tensor((3, 2), dtype, 1)
        if dtype.is_floating_point:
            leaf[0] = math.nan
        mean = weighted_mean({"a": leaf}, torch.zeros(3))
        assert_identical(mean, {"a": torch.zeros(2, dtype=dtype)})

    @pytest.mark.parametrize(
        ("values", "weights", "expected"),
        [([1, 2], [3, 1], 1), ([1, 2], [1, 3], 2), ([-1, -2], [1, 3], -2), ([10, 20, 40], [1, 1, 1], 23)],
    )
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_integers_are_rounded(
        self, values: list[int], weights: list[int], expected: int, dtype: torch.dtype
    ) -> None:
        mean = weighted_mean({"n": torch.tensor(values, dtype=dtype)}, torch.tensor(weights))
        assert_identical(mean, {"n": torch.tensor(expected, dtype=dtype)})


class TestSummaries:
    def test_bytes(self) -> None:
        tree: Tree = {
            "a": torch.zeros(3, 5, dtype=torch.float32),
            "b": {"c": torch.zeros(4, dtype=torch.float64), "d": torch.zeros(7, dtype=torch.bool)},
            "empty": torch.zeros(0, 9),
        }
        assert num_bytes(tree) == 3 * 5 * 4 + 4 * 8 + 7

    @pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
    def test_finds_what_is_not_finite(self, poison: float) -> None:
        good: Tree = {"a": torch.ones(2, 3), "n": torch.tensor([1]), "b": {"c": torch.zeros(4, dtype=torch.float64)}}
        assert bool(all_finite(good)) is True
        for path in ("a", "b/c"):
            flat = {name: leaf.clone() for name, leaf in flatten(good).items()}
            flat[path].view(-1)[-1] = poison
            verdict = all_finite(unflatten(flat))
            assert verdict.dtype == torch.bool
            assert verdict.shape == ()
            assert not verdict

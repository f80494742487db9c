"""Trees: nested dictionaries of tensors, and the verbs on them.

Server state, client state, downloads, uploads and parameters are all trees. A *stack* is a tree whose leaves
have one more leading axis, the clients'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""A nested dictionary whose leaves are tensors. `Any` keeps indexing readable: `params["extractor"]["conv.weight"]`."""

SEPARATOR = "/"
"""Joins the keys on the way to a leaf; no key may contain it (parameter names use dots)."""


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to each leaf of `tree` and the leaves of `others` in the same place."""
    for other in others:
        if other.keys() != tree.keys():
            raise ValueError(f"trees differ: {sorted(tree)} against {sorted(other)}")
    return {
        name: tree_map(function, value, *(other[name] for other in others))
        if isinstance(value, dict)
        else function(value, *(other[name] for other in others))
        for name, value in tree.items()
    }


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of `tree` in order."""
    for value in tree.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by their path, the form in which trees are stored and sent."""
    flat: dict[str, Tensor] = {}
    for name, value in tree.items():
        path = f"{prefix}{SEPARATOR}{name}" if prefix else name
        flat.update(flatten(value, path) if isinstance(value, dict) else {path: value})
    return flat


def unflatten(flat: dict[str, Tensor]) -> Tree:
    """Undo `flatten` (empty sub-trees are not restored: they have no leaves)."""
    tree: Tree = {}
    for path, value in flat.items():
        *parents, name = path.split(SEPARATOR)
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def select(tree: Tree, parts: Iterable[str]) -> Tree:
    """Return the top-level `parts` of `tree`, those that exist, in the tree's order."""
    wanted = set(parts)
    return {name: value for name, value in tree.items() if name in wanted}


def stack(trees: Sequence[Tree]) -> Tree:
    """Put the trees of several clients on top of each other."""
    return tree_map(lambda *tensors: torch.stack(tensors), trees[0], *trees[1:])


def unstack(stacked: Tree, index: int) -> Tree:
    """Take one client's tree out of a stack."""
    return tree_map(lambda leaf: leaf[index], stacked)


def where(condition: Tensor, chosen: Tree, otherwise: Tree) -> Tree:
    """Choose between two trees. Never by multiplication: 0 * NaN is NaN."""
    return tree_map(lambda a, b: torch.where(condition, a, b), chosen, otherwise)


def weighted_mean(stacked: Tree, weights: Tensor) -> Tree:
    """Average a stack over its clients.

    Rows with weight 0 are left out, whatever they hold (also NaN). If all weights are 0 the result is zeros; a
    caller that has a better answer chooses it with `where`. Integer leaves are averaged and rounded.

    Args:
        stacked: leaves `[clients, ...]`.
        weights: `[clients]`, not negative, of any scale.
    """
    shares = weights.to(torch.float64)
    total = shares.sum()
    shares = shares / torch.where(total > 0, total, torch.ones_like(total))

    def mean(leaf: Tensor) -> Tensor:
        share = shares.reshape(-1, *[1] * (leaf.dim() - 1))
        kept = torch.where(share > 0, leaf, torch.zeros_like(leaf))
        if leaf.is_floating_point():
            return (kept * share.to(leaf.dtype)).sum(0)
        return (kept * share).sum(0).round().to(leaf.dtype)

    return tree_map(mean, stacked)


def num_bytes(tree: Tree) -> int:
    """Return how many bytes the tensors of `tree` hold, from their shapes alone."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def all_finite(tree: Tree) -> Tensor:
    """Return a boolean scalar: whether every floating-point number in `tree` is finite."""
    checks = [torch.isfinite(leaf).all() for leaf in leaves(tree) if leaf.is_floating_point()]
    return torch.stack(checks).all() if checks else torch.ones((), dtype=torch.bool)

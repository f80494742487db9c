"""Trees: nested dictionaries of tensors, the verbs on them, and the one form in which they are kept.

Server state, client state, downloads, uploads and parameters are all trees. A *stack* is a tree whose leaves have one
more leading axis, the clients'. Checkpoints, and sites on their own disks, keep a tree as safetensors with a digest of
its content and a note of what it is: numbers and their names, so that reading it executes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""A nested dictionary whose leaves are tensors. `Any` keeps indexing readable: `params["extractor"]["conv.weight"]`."""

SEPARATOR = "/"
"""Joins the keys on the way to a leaf; no key may contain it (parameter names use dots)."""

_NOTE = "fedmate"
"""The one key of the metadata: with several, their order in the file would be a matter of chance."""


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


class DamagedError(Exception):
    """Bytes that are not what `pack` wrote, or not what was expected."""


def pack(tree: Tree, note: Mapping[str, Any]) -> bytes:
    """Return a tree as bytes.

    Args:
        tree: what to keep.
        note: what it is, anything JSON can hold.

    Example:
        >>> data = pack({"classifier": {"bias": torch.ones(2)}}, {"client": 3})
        >>> tensors, note = unpack(data)
        >>> tensors["classifier/bias"], note
        (tensor([1., 1.]), {'client': 3})
    """
    tensors = {path: leaf.detach().cpu().contiguous() for path, leaf in flatten(tree).items()}
    text = json.dumps(dict(note), allow_nan=False)
    return save(_apart(tensors), {_NOTE: json.dumps({"note": text, "digest": digest(tensors, text)})})


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the leaves by path and the note, or raise `DamagedError` if a bit of either has changed."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        content = json.loads(header["__metadata__"][_NOTE])
        tensors: dict[str, Tensor] = load(data)
        note = dict(json.loads(content["note"]))
        intact = content["digest"] == digest(tensors, content["note"])
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"it is not a file of fedmate's ({type(error).__name__})") from error
    if not intact:
        raise DamagedError("its content has changed since it was written")
    return tensors, note


def fit_to(tensors: dict[str, Tensor], like: Tree) -> Tree:
    """Give leaves the structure, the order and the devices of `like`, or raise `DamagedError` if they do not fit."""
    expected = flatten(like)
    if tensors.keys() != expected.keys():
        odd = ", ".join(sorted(tensors.keys() ^ expected.keys()))
        raise DamagedError(f"it does not hold the expected parts ({odd})")
    for path, leaf in expected.items():
        if (tensors[path].shape, tensors[path].dtype) != (leaf.shape, leaf.dtype):
            raise DamagedError(f"`{path}` is {_kind(tensors[path])}, not {_kind(leaf)}")
    return _filled(like, unflatten({path: tensors[path].to(leaf.device) for path, leaf in expected.items()}))


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return a fingerprint of named tensors and a text: names, types, shapes and every bit."""
    total = hashlib.sha256(text.encode())
    for path in sorted(tensors):
        leaf = tensors[path].detach().cpu().contiguous()
        total.update(json.dumps([path, str(leaf.dtype), list(leaf.shape)]).encode())
        total.update(leaf.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _kind(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {tuple(leaf.shape)}"


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy leaves that share memory, which safetensors refuses to write twice."""
    seen = set[int]()
    result = {}
    for path, leaf in tensors.items():
        place = leaf.untyped_storage().data_ptr()
        result[path] = leaf.clone() if place in seen else leaf
        seen.add(place)
    return result


def _filled(like: Tree, tree: Tree) -> Tree:
    """Put back empty sub-trees, which have no leaves to be stored, and the order of keys."""
    return {
        name: _filled(value, tree.get(name, {})) if isinstance(value, dict) else tree[name]
        for name, value in like.items()
    }

"""The one serialised form of a tree: safetensors, with a digest of its content and a note of what it is.

Checkpoints keep states in this form, and so does a site on its own disk. It holds numbers and their names: reading it
executes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedmate.core.tree import Tree, flatten, unflatten

_NOTE = "fedmate"
"""The one key of the metadata: with several, their order in the file would be a matter of chance."""


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

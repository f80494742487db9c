"""Networks as `.pt2` files: graphs that PyTorch runs without fedmate, and fedmate without trusting them.

archive/models/model.json                        the graph
archive/data/weights/model_weights_config.json   which file holds which parameter, and its shape
archive/data/weights/weight_N                    raw numbers
archive/data/constants/...                       the same for numbers that are no parameters
archive/data/sample_inputs/model.pt              empty; elsewhere it holds a pickle
archive/extra/fedmate.json                       what the network reads and answers, and where it comes from

`torch.export.load` reads these files. fedmate does not call it, because it executes what it reads: pickles among the
numbers and in the sample inputs, expressions for sizes, guards, even names of variables, which it makes source code
from. `read` takes a closed list of entries apart by itself, `program` runs the graph, and a file with anything in it
that torch would execute is refused, although nothing here would.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedmate.core.serialise import DamagedError
from fedmate.errors import UserError
from fedmate.experiment.card import Card
from fedmate.experiment.program import DTYPES, Program, read_program

_NOTE = "fedmate.json"
_ROOT = "archive/"
_ENTRIES = re.compile(
    r"models/model\.json|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)|data/sample_inputs/model\.pt|extra/fedmate\.json"
    r"|archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id"
)
"""Everything that `write` leaves in an archive, below its root."""

_SYMBOL = re.compile(r"Symbol\('[a-z]+\d+'(, [a-z]+=(True|False))*\)")
_SIZE = re.compile(r"[A-Za-z0-9(), -]*")
"""How torch writes a size that depends on the number of samples, once its symbols are taken out."""


class RawReader(nn.Module):
    """A network that normalises its samples itself.

    Args:
        network: reads normalised samples.
        card: how they are normalised.
    """

    def __init__(self, network: nn.Module, card: Card) -> None:
        """Keep one number for each channel, or one for all."""
        super().__init__()
        self.network = network
        shape = (-1, *[1] * (len(card.input_shape) - 1))
        dtype = getattr(torch, card.dtype)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(card.normalisation.mean, dtype=dtype).reshape(shape))
        self.register_buffer("std", torch.tensor(card.normalisation.std, dtype=dtype).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of raw samples."""
        logits: Tensor = self.network((x - self.mean) / self.std)
        return logits


def write(module: nn.Module, card: Card, note: str) -> bytes:
    """Return a network as an archive that takes raw samples, any number of them, and answers with logits.

    Args:
        module: the network, in evaluation mode.
        card: what it reads and answers.
        note: what to keep beside it.

    Raises:
        UserError: torch cannot export the network.
    """
    # Zeros, never somebody's samples: what a graph is traced with may be found in it.
    samples = torch.zeros(2, *card.input_shape, dtype=getattr(torch, card.dtype))
    with warnings.catch_warnings():
        # Of torch about itself: how it copies a call's signature, how its recurrent layers keep their weights.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
        try:
            exported = torch.export.export(
                RawReader(module, card).eval(), (samples,), dynamic_shapes=({0: torch.export.Dim("batch")},)
            ).run_decompositions()
        except Exception as error:
            # Whatever a user's own `forward` or torch's tracer can raise.
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UserError(
                f"`model` cannot be written as `.pt2`, torch says: {reason.rstrip('.')}; use `.safetensors`."
            ) from error
        exported.example_inputs = None
        for node in exported.graph.nodes:
            # The rest tells of this machine: its folders, lines of source code.
            node.meta = {key: value for key, value in node.meta.items() if key == "val"}
        archive = io.BytesIO()
        torch.export.save(exported, archive, extra_files={_NOTE: note})
    return archive.getvalue()


def read(data: bytes) -> tuple[Program, str]:
    """Return the network of an archive and the note beside it, or raise `DamagedError`; nothing is executed."""
    try:
        entries = _entries(data)
        if entries["archive_format"] != b"pt2" or entries["byteorder"].decode() != sys.byteorder:
            raise DamagedError("it is of another format")
        if entries.get("data/sample_inputs/model.pt"):
            raise DamagedError("it holds sample inputs, which are a pickle: a program in disguise")
        exported = json.loads(entries["models/model.json"])
        if exported["schema_version"]["major"] != 8:
            raise DamagedError(f"it is of version {exported['schema_version']['major']}, not 8")
        _refuse_code(exported)
        tensors = {**_tensors(entries, "weights"), **_tensors(entries, "constants")}
        return read_program(exported["graph_module"], tensors), entries[f"extra/{_NOTE}"].decode()
    except zipfile.BadZipFile as error:
        changed = "CRC" in str(error)
        reason = "its content has changed since it was written" if changed else "it is not a file of fedmate's"
        raise DamagedError(f"{reason} ({error})") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DamagedError(f"it is not a file of fedmate's ({type(error).__name__}: {error})") from error
    except (RuntimeError, NotImplementedError, EOFError, OverflowError, MemoryError) as error:
        raise DamagedError(f"its content does not fit together ({type(error).__name__})") from error


def _entries(data: bytes) -> dict[str, bytes]:
    """Return the files of an archive by their names below its root."""
    entries = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            name = info.filename.removeprefix(_ROOT)
            if name == info.filename or not _ENTRIES.fullmatch(name):
                raise DamagedError(f"it holds `{info.filename}`, which no model of fedmate's has")
            # What is compressed could grow without limit.
            if name in entries or info.compress_type != zipfile.ZIP_STORED:
                raise DamagedError(f"it holds `{info.filename}` twice, or compressed")
            entries[name] = archive.read(info)
    return entries


def _refuse_code(exported: Any) -> None:
    """Raise `DamagedError` if there is a text that torch would evaluate and that is not the plain size of a tensor."""
    if exported["guards_code"]:
        raise DamagedError("it holds guards, which are Python code")
    for text in _expressions(exported["graph_module"]):
        if not _SIZE.fullmatch(_SYMBOL.sub("", text)):
            raise DamagedError("it holds a size that is Python code")


def _expressions(value: Any) -> Iterator[str]:
    """Yield every symbolic expression, wherever it stands."""
    if isinstance(value, dict):
        if "expr_str" in value:
            yield value["expr_str"]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _expressions(one)


def _tensors(entries: dict[str, bytes], kind: str) -> dict[str, Tensor]:
    """Return the tensors of one folder, by the network's own names."""
    config = json.loads(entries[f"data/{kind}/model_{kind}_config.json"])["config"]
    tensors = {}
    for name, payload in config.items():
        if payload["use_pickle"] is not False:
            raise DamagedError(f"it holds `{name}` as a pickle: a program in disguise")
        tensors[name] = _tensor(entries[f"data/{kind}/{payload['path_name']}"], payload["tensor_meta"])
    return tensors


def _tensor(data: bytes, meta: Any) -> Tensor:
    """Return raw numbers in the shape they had; a file may hold more than one tensor's."""
    dtype, offset = DTYPES[meta["dtype"]], _whole(meta["storage_offset"])
    sizes, strides = ([_whole(size) for size in meta[key]] for key in ("sizes", "strides"))
    if math.prod(sizes) * dtype.itemsize > len(data):
        raise DamagedError("a tensor is larger than its file")
    if not data:
        return torch.empty(sizes, dtype=dtype)
    # Copied: the numbers of an archive are not aligned, and several tensors may share a file.
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(sizes, strides, offset).clone()


def _whole(size: Any) -> int:
    number = size["as_int"]
    if type(number) is not int or number < 0:
        raise DamagedError(f"it has {number!r} in the place of a size")
    return number

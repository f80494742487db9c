"""Exported models: one network with everything that its use needs, as an object and as a file.

model.safetensors   the network's `state_dict` under its own names, and a description as one string of metadata
model.pt2           a graph that PyTorch runs without fedmate, on raw samples
"""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmate import storage
from fedmate.core import Augmentation
from fedmate.core.metrics import CHUNK
from fedmate.core.tree import DamagedError, pack, unpack
from fedmate.data import Normalisation
from fedmate.data.dataset import ArrayLike, as_numbers
from fedmate.errors import UserError
from fedmate.experiment.build import Signature, make_method
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.priors import NO_CALIBRATION, Calibration, Prior
from fedmate.experiment.sample_files import as_samples, read_array

FORMAT = 1


class Predictions(NamedTuple):
    """Predictions for some samples.

    Attributes:
        labels: `[samples]`, the most probable class.
        class_names: its name, for each sample.
        probabilities: `[samples, classes]`.
        prior: the class shares that the model answers for, `[classes]`; `None` without prior calibration.
        notes: warnings for the user.
    """

    labels: NDArray[np.int64]
    class_names: list[str]
    probabilities: NDArray[Any]
    prior: NDArray[np.float64] | None = None
    notes: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """Return a row for each sample, counted from 0, with its class and the probability of that class."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["sample", "class", "probability"])
        for i, (label, name) in enumerate(zip(self.labels, self.class_names, strict=True)):
            # Names come from a file that somebody else may have written, and go to a terminal.
            printable = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
            rows.writerow([i, printable, f"{self.probabilities[i, label]:.6f}"])
        return text.getvalue()


@final
@dataclass(frozen=True, eq=False, repr=False)
class PortableModel:
    """A network that needs its run no more.

    Attributes:
        module: plain PyTorch, on the CPU, in evaluation mode; it reads normalised samples and returns logits.
        signature: of its inputs and outputs.
        architecture: `name` and `options`, as in the section `[model]` of an experiment; if a method added layers, then
            `method`, with the `name` and the `options` of its section.
        origin: `method`, `dataset`, `client` (a number, `global` or `newcomer`), `round` and the version of `fedmate`.
        calibration: what it needs to answer for other class shares.

    Example:
        >>> signature = Signature((2,), ("cold", "warm"), Normalisation((10.0,), (5.0,)), "float32")
        >>> module = nn.Linear(2, 2).eval()
        >>> model = PortableModel(module, signature, {"name": "given", "options": {}}, {"client": "global"})
        >>> model.predict([[12.0, 14.0], [3.0, 4.0], [0.0, 0.0]]).probabilities.shape
        (3, 2)
    """

    module: nn.Module
    signature: Signature
    architecture: dict[str, Any]
    origin: dict[str, Any]
    calibration: Calibration = NO_CALIBRATION

    def predict(self, x: ArrayLike | str | Path, prior: Prior | None = None) -> Predictions:
        """Return the classes of raw samples; they are normalised here.

        Args:
            x: `[samples, *input_shape]`, one sample, or flattened samples; or the path of a file that holds them.
            prior: the class shares among them, for a calibrated model: `uniform`, `own` (those of its client's
                training samples), `estimated` (from these samples), or a number per class. By default `own`, and
                `uniform` for a global model.

        Raises:
            UserError: the samples do not fit the model, or there is no such prior.
        """
        name, values = ("x", x) if not isinstance(x, str | Path) else (str(x), read_array(Path(x)))
        logits = self._logits(name, as_samples(name, as_numbers(name, values), self.signature.input_shape))
        shares, notes = None, list[str]()
        if prior is not None or self.calibration.tau:
            chosen, shares = self.calibration.choose(prior, logits)
            logits, notes = self.calibration.adjust(logits, chosen, shares, self.signature.class_names)
        labels = logits.argmax(-1).numpy()
        names = [self.signature.class_names[label] for label in labels]
        known = None if shares is None else shares.numpy()
        return Predictions(labels, names, logits.softmax(-1).numpy(), known, tuple(notes))

    def save(self, path: str | Path) -> None:
        """Write it to a new file, `.safetensors` or `.pt2`."""
        path = Path(path)
        check_target(path)
        if path.suffix == ".safetensors":
            data = self.to_safetensors()
        else:
            # The graph normalises by itself.
            note = self._note(replace(self.signature, normalisation=Normalisation()))
            data = to_graph(self.module, self.signature, json.dumps(note, allow_nan=False))
        storage.write_for_user(path, data)

    def to_safetensors(self) -> bytes:
        """Return the content of its file."""
        return pack(dict(self.module.state_dict()), self._note(self.signature))

    def __repr__(self) -> str:
        origin = self.origin
        who = f"client {origin['client']}" if isinstance(origin.get("client"), int) else origin.get("client")
        made = f"{origin.get('method')} on {origin.get('dataset')}, {who}, round {origin.get('round')}"
        return f"PortableModel({self.architecture['name']}: {made})"

    def _logits(self, name: str, samples: NDArray[Any]) -> Tensor:
        """Return the network's answers, in chunks as in a run's evaluation."""
        dtype, normalisation = getattr(torch, self.signature.dtype), self.signature.normalisation
        try:
            with torch.no_grad():
                answers = []
                for start in range(0, len(samples), CHUNK):
                    # Numbers beyond the network's precision show up in its answers.
                    chunk = samples[start : start + CHUNK].astype(np.float64)
                    source = normalisation.source(chunk, Augmentation(), dtype, "cpu")
                    answers.append(self.module(source.read(torch.arange(len(chunk)))))
                logits = torch.cat(answers)
        except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(f"`{name}` makes the model fail ({reason}); give other samples.") from error
        odd = (~torch.isfinite(logits.softmax(-1)).all(1)).nonzero()
        if len(odd):
            raise UserError(
                f"`{name}` makes the network overflow at sample {int(odd[0])}; check the scale of its numbers."
            )
        return logits

    def _note(self, signature: Signature) -> dict[str, Any]:
        note = {"format": FORMAT, "signature": signature.to_dict(), "architecture": self.architecture}
        note["origin"] = self.origin
        return {**note, "calibration": asdict(self.calibration)} if self.calibration.tau else note


class _RawReader(nn.Module):
    """A network that normalises its samples itself."""

    def __init__(self, network: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.network = network
        shape = (-1, *[1] * (len(signature.input_shape) - 1))
        dtype = getattr(torch, signature.dtype)
        mean, std = (torch.tensor(values, dtype=dtype).reshape(shape) for values in signature.normalisation)
        self.mean, self.std = nn.Buffer(mean), nn.Buffer(std)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of raw samples."""
        logits: Tensor = self.network((x - self.mean) / self.std)
        return logits


def to_graph(module: nn.Module, signature: Signature, note: str) -> bytes:
    """Return a network in evaluation mode as an archive that reads raw samples, any number, and returns logits.

    `note` is stored beside it, as `fedmate.json`. `UserError` says that torch cannot export the network.
    """
    # Zeros, never a client's samples: the archive may contain the inputs that a graph is traced with.
    samples = torch.zeros(2, *signature.input_shape, dtype=getattr(torch, signature.dtype))
    with warnings.catch_warnings():
        # torch warns about its own code: signatures it copies, weights of recurrent layers.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
        try:
            exported = torch.export.export(
                _RawReader(module, signature).eval(), (samples,), dynamic_shapes=({0: torch.export.Dim("batch")},)
            ).run_decompositions()
        except Exception as error:
            # A user's `forward` and torch's tracer can raise anything.
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise UserError(
                f"`model` cannot be written as `.pt2`, torch says: {reason.rstrip('.')}; use `.safetensors`."
            ) from error
    exported.example_inputs = None
    for node in exported.graph.nodes:
        # The other entries hold folders of this machine and lines of source code.
        node.meta = {key: value for key, value in node.meta.items() if key == "val"}
    archive = io.BytesIO()
    torch.export.save(exported, archive, extra_files={"fedmate.json": note})
    return archive.getvalue()


def check_target(path: Path) -> None:
    """Raise `UserError` unless a model can be written to a new file of this name."""
    if path.suffix not in (".safetensors", ".pt2"):
        raise UserError(f"`{path}` ends in `{path.suffix}`; name the model `.safetensors` or `.pt2`.")
    storage.check_new(path)


def load_model(path: str | Path, model: nn.Module | None = None) -> PortableModel:
    """Read a model that `fedmate export` wrote; nothing in the file is executed.

    Args:
        path: the file, `.safetensors`.
        model: the layers of a network that came from Python; they are copied.

    Raises:
        UserError: the file is missing, damaged or something else.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        hint = ", or use `torch.export.load`" * (path.suffix == ".pt2")
        raise UserError(f"`{path}` is no model that fedmate reads; give a `.safetensors` file of `export`{hint}.")
    try:
        tensors, note = unpack(path.read_bytes())
        signature, architecture, origin, calibration = _parse(note)
        module = _build(path, signature, architecture, model)
        module.load_state_dict(tensors)
    except OSError as error:
        raise UserError(
            f"`{path}` cannot be read ({error.strerror}); give a file that `fedmate export` wrote."
        ) from None
    except (DamagedError, RuntimeError) as error:
        reason = str(error) if isinstance(error, DamagedError) else "its tensors do not fit its architecture"
        raise UserError(f"`{path}` cannot be used: {reason}; export it again.") from None
    return PortableModel(module.eval(), signature, architecture, origin, calibration)


def _parse(note: Any) -> tuple[Signature, dict[str, Any], dict[str, Any], Calibration]:
    try:
        if note["format"] != FORMAT:
            raise DamagedError(f"it is of format {note['format']}, written by another version of fedmate")
        signature, architecture = Signature.from_dict(note["signature"]), _section(note["architecture"])
        if "method" in note["architecture"]:
            architecture["method"] = _section(note["architecture"]["method"])
        classes = len(signature.class_names)
        sound = signature.dtype in ("float32", "float64") and min(*signature.input_shape, classes) > 0
        if not sound or not all(std > 0 for std in signature.normalisation.std):
            raise DamagedError("its description makes no sense")
        calibration = Calibration.from_dict(note["calibration"], classes) if "calibration" in note else NO_CALIBRATION
        return signature, architecture, dict(note["origin"]), calibration
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"its description is not fedmate's ({type(error).__name__})") from error


def _section(values: Mapping[str, Any]) -> dict[str, Any]:
    name, options = values["name"], values["options"]
    if not isinstance(name, str) or not isinstance(options, dict):
        raise DamagedError("its description makes no sense")
    return {"name": name, "options": dict(options)}


def _build(path: Path, signature: Signature, architecture: dict[str, Any], model: nn.Module | None) -> nn.Module:
    name = architecture["name"]
    if name == "given" and model is None:
        raise UserError(
            f"`{path}` needs the layers of a network that came from Python; load it in Python with "
            "`fedmate.load_model(path, model=...)`, or export it as `.pt2`."
        )
    sections = {"model": {**architecture["options"], "name": name}, "method": {"name": "fedavg"}}
    if "method" in architecture:
        # The method added layers, and adds them again.
        sections["method"] = {**architecture["method"]["options"], "name": architecture["method"]["name"]}
    # As in an experiment, so that a wrong option gets the same error.
    experiment = resolve([ConfigSource(str(path), sections)]).with_general(device="cpu", dtype=signature.dtype)
    given = UserInputs(module=model)
    given.check(experiment)
    try:
        whole = make_method(experiment, signature, given).setup.model
    except (RuntimeError, MemoryError, TypeError) as error:
        raise DamagedError("its network cannot be built") from error
    return whole.to_module(whole.init_params())

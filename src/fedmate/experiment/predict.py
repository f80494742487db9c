"""Exported models: one network with everything that its use needs, as an object and as a file.

model.safetensors   the network's `state_dict` under its own names, and a description as one string of metadata
model.pt2           a graph that PyTorch runs without fedmate, on raw samples
"""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmate import storage
from fedmate.core import Augmentation
from fedmate.core.metrics import CHUNK
from fedmate.core.objective import estimate_prior, prior_adjustment
from fedmate.core.tree import DamagedError, pack, unpack
from fedmate.data import Normalisation
from fedmate.data.dataset import ArrayLike, as_numbers
from fedmate.errors import UserError, nearest
from fedmate.experiment.build import Signature, make_method
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.sample_files import as_number, as_samples, read_array

FORMAT = 1

Prior: TypeAlias = str | ArrayLike
"""Class shares that a user asks for: `own`, `uniform`, `estimated`, or a number per class, also with commas between."""


@final
@dataclass(frozen=True)
class Calibration:
    """The prior calibration of a model's training (`core/objective.py`).

    Attributes:
        tau: the weight of log class shares in its loss, `objective.calibration`; 0 if training was not calibrated.
        shares: class shares of the client that owns the model; `None` for a global model.
    """

    tau: float = 0.0
    shares: tuple[float, ...] | None = None

    def adjust(self, logits: Tensor, prior: Prior | None, names: Sequence[str]) -> tuple[Tensor, Tensor, list[str]]:
        """Return the logits for a prior, its class shares, and warnings about it; or raise `UserError`."""
        name, shares = self._choose(prior, logits)
        if name == "uniform":
            # The model answers for equally likely classes; one number added to all logits would only round.
            rest = "" if self.tau == 1 else f" (calibrated with {self.tau:g}: some class shares of training remain)"
            return logits, shares, [f"the prior is `uniform`: {len(shares)} equally likely classes{rest}."]
        adjusted, samples = logits + prior_adjustment(shares, self.tau).to(logits.dtype), len(logits)
        likely = [k for k in shares.argsort(descending=True, stable=True).tolist() if shares[k] >= 0.0005]
        notes = [f"the prior is `{name}`: {_first([f'`{names[k]}` {100 * shares[k]:.1f} %' for k in likely])}."]
        # An estimate gives each class a bit: less than half a sample says nothing.
        least = 0.5 / samples if name == "estimated" else 0
        unheld = [f"`{names[k]}`" for k, held in enumerate(self.shares or ()) if not held and shares[k] > least]
        if unheld:
            notes.append(f"the model's client has no training sample of {_first(unheld)}.")
        changed = int((adjusted.argmax(-1) != logits.argmax(-1)).sum())
        if name == "estimated" and changed:
            notes.append(
                f"the estimate changed {changed} of {samples} answers against `uniform`; from few samples, or with a "
                "model that is too unsure, as after few rounds, it can be wrong, so compare both."
            )
        return adjusted, shares, notes

    def _choose(self, prior: Prior | None, logits: Tensor) -> tuple[str, Tensor]:
        if not self.tau:
            raise _wrong(
                "is given, but the model is not calibrated: its answers contain the class shares of training; leave it "
                "out, or train with `objective.calibration=1`."
            )
        default, classes = "uniform" if self.shares is None else "own", logits.shape[-1]
        prior = default if prior is None else prior
        name = prior.strip() if isinstance(prior, str) else ""
        if self.tau != 1 and name not in ("own", "uniform"):
            raise _wrong(
                f"cannot be chosen freely, because the model was calibrated with {self.tau:g}, not 1; use `uniform`, "
                "or `own` for a client's model."
            )
        if name == "uniform":
            return name, torch.full((classes,), 1 / classes, dtype=torch.float64)
        if name == "estimated":
            return name, estimate_prior(logits)
        if name != "own":
            return "given", _given_shares(prior, classes)
        if self.shares is None:
            raise _wrong("is `own`, but a global model belongs to no client; use another.")
        return name, torch.tensor(self.shares, dtype=torch.float64)

    @staticmethod
    def from_dict(values: Mapping[str, Any], classes: int) -> Calibration:
        """Return what a file holds; raise `ValueError`, `KeyError` or `TypeError` for anything else."""
        tau, shares = float(values["tau"]), values["shares"]
        if shares is not None:
            shares = tuple(map(float, shares))
            # A NaN is not close to anything.
            if len(shares) != classes or min(shares) < 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
                raise ValueError("not class shares")
        if not 0 < tau < math.inf:
            raise ValueError("not a weight")
        return Calibration(tau, shares)


def _given_shares(prior: Prior, classes: int) -> Tensor:
    """Return a number per class divided by their sum, or raise `UserError` unless that is a distribution."""
    if isinstance(prior, str):
        cells = [as_number(cell) for cell in prior.split(",")]
        if not all(map(math.isfinite, cells)):
            hint = nearest(prior, ("estimated", "own", "uniform"))
            raise _wrong(f"is `{prior:.40}`, neither a word nor finite numbers with commas between; {hint}")
        prior = cells
    numbers = torch.from_numpy(as_numbers("prior", prior).astype(np.float64))
    if numbers.shape != (classes,):
        raise _wrong(f"has the shape {list(numbers.shape)} for {classes} classes; give one number per class.")
    if numbers.min() < 0 or not numbers.any():
        raise _wrong(f"is {numbers.tolist()[:5]}; give numbers of 0 or more, at least one above 0.")
    # First by the largest: the sum of large numbers may be infinite.
    numbers = numbers / numbers.max()
    return numbers / numbers.sum()


def _wrong(reason: str) -> UserError:
    return UserError(f"`{{option}}` {reason}", "prior")


def _first(words: Sequence[str]) -> str:
    return ", ".join(words[:5]) + f", {len(words) - 5} more" * (len(words) > 5)


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
        calibration: that of its training.
    """

    module: nn.Module
    signature: Signature
    architecture: dict[str, Any]
    origin: dict[str, Any]
    calibration: Calibration = Calibration()

    def predict(self, x: ArrayLike | str | Path, prior: Prior | None = None) -> Predictions:
        """Return the classes of raw samples; arguments are those of `fedmate.predict`."""
        name, values = ("x", x) if not isinstance(x, str | Path) else (str(x), read_array(Path(x)))
        logits = self._logits(name, as_samples(name, as_numbers(name, values), self.signature.input_shape))
        shares, notes = None, list[str]()
        if prior is not None or self.calibration.tau:
            logits, shares, notes = self.calibration.adjust(logits, prior, self.signature.class_names)
        labels, known = logits.argmax(-1).numpy(), None if shares is None else shares.numpy()
        names = [self.signature.class_names[label] for label in labels]
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
        method, dataset, who, done = (self.origin.get(key) for key in ("method", "dataset", "client", "round"))
        who = f"client {who}" if isinstance(who, int) else who
        return f"PortableModel({self.architecture['name']}: {method} on {dataset}, {who}, round {done})"

    def _logits(self, name: str, samples: NDArray[Any]) -> Tensor:
        """Return the network's answers, in chunks as in a run's evaluation."""
        answers = []
        for start in range(0, len(samples), CHUNK):
            # Numbers beyond the network's precision show up in its answers.
            chunk, dtype = samples[start : start + CHUNK].astype(np.float64), getattr(torch, self.signature.dtype)
            source = self.signature.normalisation.source(chunk, Augmentation(), dtype, "cpu")
            with torch.no_grad():
                answers.append(self.module(source.read(torch.arange(len(chunk)))))
        logits = torch.cat(answers)
        odd = (~torch.isfinite(logits.softmax(-1)).all(1)).nonzero()
        if len(odd):
            raise UserError(f"`{name}` makes the network overflow at sample {int(odd[0])}; give smaller numbers.")
        return logits

    def _note(self, signature: Signature) -> dict[str, Any]:
        note = {"format": FORMAT, "signature": signature.to_dict(), "architecture": self.architecture}
        calibration = {"calibration": asdict(self.calibration)} if self.calibration.tau else {}
        return {**note, "origin": self.origin, **calibration}


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
        logits: Tensor = self.network((x - self.mean) / self.std)
        return logits


def to_graph(module: nn.Module, signature: Signature, note: str) -> bytes:
    """Return a network as an archive that reads any number of raw samples; `note` is stored in it as `fedmate.json`."""
    # Zeros, never a client's samples: the archive may contain the inputs that a graph is traced with.
    samples = torch.zeros(2, *signature.input_shape, dtype=getattr(torch, signature.dtype))
    with warnings.catch_warnings():
        # torch warns about its own code: signatures it copies, weights of recurrent layers.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", r"The tensor attributes? .* assigned during export", UserWarning)
        try:
            reader, sizes = _RawReader(module, signature).eval(), ({0: torch.export.Dim("batch")},)
            exported = torch.export.export(reader, (samples,), dynamic_shapes=sizes).run_decompositions()
        except Exception as error:
            # A user's `forward` and torch's tracer can raise anything.
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            message = f"`model` cannot be written as `.pt2`, torch says: {reason.rstrip('.')}; use `.safetensors`."
            raise UserError(message) from error
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
        found = _rebuild(path, note, model)
        found.module.load_state_dict(tensors)
    except OSError as error:
        raise UserError(f"`{path}` cannot be read ({error.strerror}); give a file of `fedmate export`.") from None
    except (DamagedError, RuntimeError) as error:
        reason = str(error) if isinstance(error, DamagedError) else "its tensors do not fit its architecture"
        raise UserError(f"`{path}` cannot be used: {reason}; export it again.") from None
    return found


def _rebuild(path: Path, note: Any, model: nn.Module | None) -> PortableModel:
    """Return the model that a file describes, not yet with its parameters."""
    try:
        if note["format"] != FORMAT:
            raise DamagedError(f"it is of format {note['format']}, written by another version of fedmate")
        signature, architecture, origin = Signature.from_dict(note["signature"]), note["architecture"], note["origin"]
        classes = len(signature.class_names)
        sound = signature.dtype in ("float32", "float64") and min(*signature.input_shape, classes) > 0
        if not sound or not all(std > 0 for std in signature.normalisation.std):
            raise DamagedError("its description makes no sense")
        calibration = Calibration.from_dict(note["calibration"], classes) if "calibration" in note else Calibration()
        # A method that added layers adds them again.
        sections = {"model": architecture, "method": architecture.get("method", {"name": "fedavg", "options": {}})}
        sections = {key: {**section["options"], "name": section["name"]} for key, section in sections.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"its description is not fedmate's ({type(error).__name__})") from error
    if architecture["name"] == "given" and model is None:
        raise UserError(
            f"`{path}` needs the layers of a network that came from Python; load it in Python with "
            "`fedmate.load_model(path, model=...)`, or export it as `.pt2`."
        )
    # As in an experiment, so that a wrong option gets the same error.
    experiment = resolve([ConfigSource(str(path), sections)]).with_general(device="cpu", dtype=signature.dtype)
    given = UserInputs(module=model)
    given.check(experiment)
    try:
        whole = make_method(experiment, signature, given).setup.model
    except (RuntimeError, MemoryError, TypeError) as error:
        raise DamagedError("its network cannot be built") from error
    module = whole.to_module(whole.init_params()).eval()
    return PortableModel(module, signature, architecture, origin, calibration)

"""Exported models as objects and as files: they come back as they were, and damage gets one sentence."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.testing import assert_close

import fedmate
from fedmate.core.layers import drop_statistics
from fedmate.core.metrics import CHUNK
from fedmate.core.tree import digest
from fedmate.data import Normalisation
from fedmate.data.mnist import Digits
from fedmate.errors import UserError
from fedmate.experiment.build import Signature
from fedmate.experiment.inputs import structure
from fedmate.experiment.predict import PortableModel, load_model
from fedmate.models import MODELS

ORIGIN = {"method": "fedper", "dataset": "digits", "client": 3, "round": 7, "fedmate": "0.1.0"}
DIGITS = Signature((1, 8, 8), tuple("abcdefghij"), Digits.normalisation, "float32")


def make(signature: Signature = DIGITS) -> PortableModel:
    """Return a model with random weights of one of the package's architectures."""
    options: dict[str, Any] = {"buffers": "shared", "width": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = MODELS["digits_cnn"](**options).build(signature.input_shape, len(signature.class_names))
    module = module.to(getattr(torch, signature.dtype)).eval()
    return PortableModel(module, signature, {"name": "digits_cnn", "options": options}, dict(ORIGIN))


def network() -> nn.Sequential:
    """Return a network with statistics and tied weights, as users bring them."""
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    return nn.Sequential(OrderedDict(first=first, norm=nn.BatchNorm1d(4), again=last, head=nn.Linear(4, 2)))


def make_given(buffers: str = "shared") -> PortableModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = network()
        module(torch.randn(20, 4))
    options = {"buffers": buffers, "layer": "head", "digest": structure(module)}
    if buffers == "dropped":
        drop_statistics(module)
    signature = Signature((4,), ("no", "yes"), Normalisation(), "float32")
    return PortableModel(module.eval(), signature, {"name": "given", "options": options}, dict(ORIGIN))


def pixels(size: int = 6) -> NDArray[np.float64]:
    return np.random.default_rng(0).integers(0, 17, (size, 1, 8, 8)).astype(np.float64)


def refused(function: Any, *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        function(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_raw_samples_are_normalised_before_the_network_reads_them() -> None:
    model = make()
    with torch.no_grad():
        normalised = torch.from_numpy((pixels().astype(np.float32) - np.float32(4.884)) / np.float32(6.017))
        expected = model.module(normalised).softmax(-1).numpy()
    found = model.predict(pixels())
    assert np.array_equal(found.probabilities, expected)
    assert found.labels.tolist() == expected.argmax(1).tolist()
    assert found.class_names == ["abcdefghij"[label] for label in found.labels]
    assert len(set(found.class_names)) > 1


def test_samples_come_in_many_forms() -> None:
    x, model = pixels(), make()
    expected = model.predict(x).probabilities
    for form in (x.astype(">i4"), torch.from_numpy(x).bfloat16(), x.reshape(6, 64), x.reshape(6, 8, 8, 1)):
        assert np.array_equal(model.predict(form).probabilities, expected)


def test_samples_are_predicted_in_chunks() -> None:
    """A network without statistics reads the same batches as in the run's evaluation."""
    model, x = make_given("dropped"), np.random.default_rng(0).normal(size=(CHUNK + 300, 4))
    x[CHUNK:] += 5
    parts = [model.predict(part).probabilities for part in (x[:CHUNK], x[CHUNK:])]
    assert np.array_equal(model.predict(x).probabilities, np.concatenate(parts))


def test_predictions_as_csv() -> None:
    signature = replace(DIGITS, class_names=("a,b", "say \x1b[2J\n", *"cdefghij"))
    found = make(signature=signature).predict(pixels(2))
    found = found._replace(labels=np.array([1, 0]), class_names=["say \x1b[2J\n", "a,b"])
    # No class name reaches a terminal as a control sequence.
    assert found.to_csv().splitlines() == [
        "sample,class,probability",
        f"0,say \ufffd[2J\ufffd,{found.probabilities[0, 1]:.6f}",
        f'1,"a,b",{found.probabilities[1, 0]:.6f}',
    ]


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (np.zeros((5, 8, 7)), "`x` has the shape [5, 8, 7]; give [samples, 1, 8, 8] or [samples, 64]."),
        (np.zeros((5, 65)), "`x` has the shape [5, 65]; give [samples, 1, 8, 8] or [samples, 64], without labels."),
        (np.zeros((0, 64)), "`x` holds no sample; "),
        (np.full((2, 64), np.nan), "`x` is nan at [0, 0]; "),
        (np.full((1, 64), 1e300), "`x` makes the network overflow at sample 0; "),
    ],
)
def test_wrong_samples(x: Any, found: str) -> None:
    assert refused(make().predict, x).startswith(found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_safetensors_come_back_as_they_were(tmp_path: Path, dtype: str) -> None:
    model = make(signature=replace(DIGITS, dtype=dtype))
    for name in ("model.safetensors", "again.safetensors"):
        model.save(tmp_path / name)
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    state = torch.random.get_rng_state()
    again = fedmate.load_model(tmp_path / "model.safetensors")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (again.signature, again.architecture, again.origin) == (model.signature, model.architecture, model.origin)
    assert not again.module.training
    found = fedmate.predict(tmp_path / "model.safetensors", pixels())
    assert np.array_equal(found.probabilities, model.predict(pixels()).probabilities)
    assert found.probabilities.dtype == dtype
    # For plain PyTorch it is a state dict.
    plain = MODELS["digits_cnn"](width=8).build((1, 8, 8), 10)  # type: ignore[call-arg]
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert_close(plain.state_dict(), {**model.module.float().state_dict()}, rtol=0, atol=0)


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_networks_from_python_keep_statistics_and_ties(tmp_path: Path, buffers: str) -> None:
    model = make_given(buffers)
    model.save(tmp_path / "m.safetensors")
    layers = network()
    again = load_model(tmp_path / "m.safetensors", layers)
    x = np.random.default_rng(0).normal(size=(7, 4))
    assert np.array_equal(again.predict(x).probabilities, model.predict(x).probabilities)
    statistics = [name for name in again.module.state_dict() if "running" in name]
    assert len(statistics) == (0 if buffers == "dropped" else 2)
    assert layers.training
    assert not torch.equal(*(one.state_dict()["head.weight"] for one in (layers, model.module)))


def test_layers_are_asked_for_only_where_they_are_needed(tmp_path: Path) -> None:
    make().save(tmp_path / "m.safetensors")
    make_given().save(tmp_path / "given.safetensors")
    assert "leave one of them out" in refused(load_model, tmp_path / "m.safetensors", network())
    assert "load it in Python with `fedmate.load_model(path," in refused(load_model, tmp_path / "given.safetensors")
    assert "another structure" in refused(load_model, tmp_path / "given.safetensors", nn.Linear(4, 2))


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.safetensors"
    target.write_bytes(b"mine")
    assert "exists already and is not overwritten" in refused(make().save, target)
    assert "which does not exist; make it first" in refused(make().save, tmp_path / "no" / "model.pt2")
    target.unlink()

    def slow(self: PortableModel) -> bytes:
        target.write_bytes(b"mine")
        return b"theirs"

    monkeypatch.setattr(PortableModel, "to_safetensors", slow)
    assert "exists already" in refused(make().save, target)
    assert target.read_bytes() == b"mine"


def note(architecture: Any = None, format: int = 1, **signature: Any) -> dict[str, Any]:
    """Return the description of a model with some of its entries changed."""
    model = make()
    described = {"architecture": architecture or model.architecture, "origin": ORIGIN}
    return {"format": format, "signature": {**model.signature.to_dict(), **signature}, **described}


WRONG_NOTES: dict[str, tuple[Any, str]] = {
    "another version": (note(format=2), "it is of format 2"),
    "strange precision": (note(dtype="load"), "its description makes no sense"),
    "other classes": (note(class_names=["a", "b"]), "its tensors do not fit its architecture"),
    "unknown network": (note({"name": "digits_cn", "options": {}}), "did you mean `digits_cnn`?"),
    "huge": (note({"name": "digits_cnn", "options": {"width": 10**15}}), "its network cannot be built"),
    "deep": ("[" * 100_000, "it is not a file of fedmate's"),
}


@pytest.mark.parametrize("case", WRONG_NOTES)
def test_descriptions_that_make_no_sense(tmp_path: Path, case: str) -> None:
    content, found = WRONG_NOTES[case]
    text, tensors = content if isinstance(content, str) else json.dumps(content), dict(make().module.state_dict())
    signed = json.dumps({"note": text, "digest": digest(tensors, text)})
    (tmp_path / "m.safetensors").write_bytes(save(tensors, {"fedmate": signed}))
    assert found in refused(load_model, tmp_path / "m.safetensors")


# Graphs that PyTorch runs without fedmate, on raw samples.

IMAGES = Signature((2, 6, 6), ("no", "yes", "maybe"), Normalisation((3.0, -1.0), (2.0, 0.5)), "float32")


def make_image(*head: nn.Module) -> PortableModel:
    """Return a trained network with normalisation layers and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Dropout(), nn.Flatten(), nn.Linear(64, 3)]
        module = nn.Sequential(*layers, *head)
        with torch.no_grad():
            module.train()(torch.randn(8, 2, 6, 6))
    return PortableModel(module.eval(), IMAGES, {"name": "given", "options": {}}, dict(ORIGIN))


def test_pytorch_runs_it_on_raw_samples_and_it_names_its_origin_alone(tmp_path: Path) -> None:
    model = make_image()
    for name in ("a.pt2", "b.pt2"):
        model.save(tmp_path / name)
    data = (tmp_path / "a.pt2").read_bytes()
    assert data == (tmp_path / "b.pt2").read_bytes()
    graph = torch.export.load(tmp_path / "a.pt2").module()
    mean, std = torch.tensor([3.0, -1.0])[:, None, None], torch.tensor([2, 0.5])[:, None, None]
    for size in (1, 5):
        x = torch.randn(size, 2, 6, 6) + 1
        with torch.no_grad():
            expected = model.module((x - mean) / std)
        assert torch.allclose(graph(x).detach(), expected, atol=1e-5)
        assert torch.allclose(torch.from_numpy(model.predict(x).probabilities), expected.softmax(-1), atol=1e-5)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}
    assert not [word for word in ("test_predict", sys.prefix) if word.encode() in data]
    assert b"/" not in entries["models/model.json"]
    # A pickle of the samples it was traced with, if there were any.
    assert entries["data/sample_inputs/model.pt"] == b""
    assert json.loads(entries["extra/fedmate.json"])["origin"] == ORIGIN


def test_a_network_that_torch_cannot_export(tmp_path: Path) -> None:
    class Fickle(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(UserError, match=r"^`model` cannot be written as `\.pt2`, torch says: .*; use `\.safetensors`"):
        make_image(Fickle()).save(tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())

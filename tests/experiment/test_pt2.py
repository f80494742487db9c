"""Networks as graphs that PyTorch runs without fedmate, on raw samples."""

from __future__ import annotations

import io
import json
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedmate.core.layers import drop_statistics
from fedmate.data import Normalisation
from fedmate.errors import UserError
from fedmate.experiment.predict import PortableModel, load_model
from fedmate.experiment.signature import Signature

SIGNATURE = Signature((2, 6, 6), ("no", "yes", "maybe"), Normalisation((3.0, -1.0), (2.0, 0.5)), "float32")
ORIGIN = {"method": "fedper", "dataset": "own", "client": "global", "round": 7, "fedmate": "0.1.0"}


def make(*, statistics: bool = True, head: nn.Module | None = None) -> PortableModel:
    """Return a trained network with normalisation layers and dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Dropout(), nn.Flatten(), nn.Linear(64, 3)]
        module = nn.Sequential(*layers, *([head] if head else []))
        if not statistics:
            drop_statistics(module)
        with torch.no_grad():
            module.train()(torch.randn(8, 2, 6, 6))
    return PortableModel(module.eval(), SIGNATURE, {"name": "given", "options": {}}, dict(ORIGIN))


def run_graph(path: Path, x: Tensor) -> Tensor:
    """Run a file as users do who have PyTorch only."""
    with warnings.catch_warnings():
        # torch 2.11 warns about its own reader.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        answer: Tensor = torch.export.load(path).module()(x)
    return answer.detach()


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_pytorch_runs_it_on_raw_samples(tmp_path: Path, size: int, statistics: bool) -> None:
    model, x = make(statistics=statistics), torch.randn(size, 2, 6, 6) + 1
    model.save(tmp_path / "m.pt2")
    mean, std = torch.tensor([3.0, -1.0])[:, None, None], torch.tensor([2, 0.5])[:, None, None]
    with torch.no_grad():
        expected = model.module((x - mean) / std)
    assert torch.allclose(run_graph(tmp_path / "m.pt2", x), expected, atol=1e-5)
    found = model.predict(x).probabilities
    assert torch.allclose(torch.from_numpy(found), expected.softmax(-1), atol=1e-5)


def test_it_names_its_origin_and_nothing_of_this_machine(tmp_path: Path) -> None:
    for name in ("a.pt2", "b.pt2"):
        make().save(tmp_path / name)
    data = (tmp_path / "a.pt2").read_bytes()
    assert data == (tmp_path / "b.pt2").read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name.removeprefix("archive/"): archive.read(name) for name in archive.namelist()}
    assert b"test_pt2" not in data
    assert b"/" not in entries["models/model.json"]
    # A pickle of the samples it was traced with, if there were any.
    assert entries["data/sample_inputs/model.pt"] == b""
    note = json.loads(entries["extra/fedmate.json"])
    assert note["origin"] == ORIGIN
    assert sys.prefix.encode() not in data


def test_a_network_that_torch_cannot_export(tmp_path: Path) -> None:
    class Fickle(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(UserError, match=r"^`model` cannot be written as `\.pt2`, torch says: .*; use `\.safetensors`"):
        make(head=Fickle()).save(tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_fedmate_does_not_read_it(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"anything")
    with pytest.raises(
        UserError, match=r"^`.*m\.pt2` is a graph for PyTorch, .*; use `torch\.export\.load`, or export"
    ):
        load_model(tmp_path / "m.pt2")

"""The example of a method from another package: what its guide promises, and what it computes.

The contract tests try it like every other method; what it is meant to compute they cannot know.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.installed import EXAMPLES, installed_example
from torch import nn
from torch.testing import assert_close

import fedmate
from fedmate.catalogue import catalogue
from fedmate.core import Model, Setup, Training, make_key, stack, tree_map
from fedmate.methods import METHODS
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS

SOURCE = (EXAMPLES / "new_method.py").read_text()
PROJECT = (EXAMPLES / "pyproject.toml").read_text()
GUIDE = (EXAMPLES.parent / "docs" / "add-a-method.md").read_text()


@pytest.fixture
def installed() -> Iterator[None]:
    with installed_example():
        yield


def test_it_is_as_short_as_promised_and_uses_public_names_only() -> None:
    assert len(SOURCE.splitlines()) < 60
    for node in ast.walk(ast.parse(SOURCE)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedmate"):
            public = ("fedmate", "fedmate.core", "fedmate.methods.base")
            assert node.module in public or (node.module or "").startswith("fedmate.components.")
            assert not [alias.name for alias in node.names if alias.name.startswith("_")]


def test_the_guide_shows_the_files_as_they_are() -> None:
    code, project = (re.findall(rf"```{kind}\n(.*?)```", GUIDE, flags=re.DOTALL) for kind in ("python", "toml"))
    assert "".join(code).split() == SOURCE[SOURCE.index("class FedAvgM") :].split()
    assert [tomllib.loads(block) for block in project] == [tomllib.loads(PROJECT)]


def test_the_guide_names_tests_and_files_that_exist() -> None:
    contract = "\n".join(path.read_text() for path in (EXAMPLES.parent / "tests" / "contract").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", GUIDE))
    assert len(named) > 5
    assert not [name for name in named if f"def {name}(" not in contract]


@pytest.mark.usefixtures("installed")
def test_it_is_found_and_runs_by_name(tmp_path: Path) -> None:
    assert any(line.startswith("  fedavgm ") for line in catalogue("methods"))
    settings = {"rounds": 1, "partition.clients": 2, "training.epochs": 1}
    assert fedmate.run(method="fedavgm", set=settings, out=tmp_path / "run").summary["method"] == "fedavgm"


@pytest.mark.usefixtures("installed")
def test_the_server_keeps_a_share_of_its_last_move() -> None:
    """Two rounds by hand: v <- beta v + (mean - w), w <- w + v; BatchNorm's statistics are the mean itself."""
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    setup = Setup(Model(module, classifier="2"), 2, 3, Training(epochs=1))
    method = METHODS["fedavgm"](setup=setup, server_momentum=0.75)  # type: ignore[call-arg]
    params = method.setup.model.init_params()
    server, w, v = method.init_server(params, 2, make_key(0)), params["classifier"]["bias"].numpy(), np.zeros(2)
    for numbers, sizes in (((1.0, 4.0), (2, 1)), ((-1.0, 2.0), (1, 3))):
        parts = [tree_map(lambda leaf, number=number: torch.full_like(leaf, number), params) for number in numbers]
        uploads = {**stack(parts), "num_samples": torch.tensor(sizes)}
        server = method.aggregate(server, uploads, torch.arange(2), torch.ones(2, dtype=torch.bool), make_key(0))
        mean = np.dot(numbers, sizes) / sum(sizes)
        v = 0.75 * v + (mean - w)
        w = w + v
        np.testing.assert_allclose(server["classifier"]["bias"], w, rtol=0, atol=1e-12)
        assert_close(server["buffers"]["1.running_mean"], torch.full((3,), mean, dtype=torch.float64))


# -------------------- the server's step


def test_the_guide_shows_examples_as_they_are() -> None:
    source = "".join((EXAMPLES / name).read_text() for name in ("new_server.py", "new_metric.py"))
    guide = (EXAMPLES.parent / "docs" / "extend.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    assert len(blocks) == 3
    assert all(block.strip() in source for block in blocks)


@pytest.mark.usefixtures("installed")
def test_a_metric_of_another_package_is_in_the_record(tmp_path: Path) -> None:
    rng, settings = np.random.default_rng(0), {"rounds": 1, "evaluation.metrics": ["worst_class"], "device": "cpu"}
    y = rng.integers(0, 3, 60)
    x = rng.normal(size=(60, 4)) + 2 * np.eye(3, 4)[y]
    data = fedmate.Sites([(x[:40], y[:40])], test=(x[40:], y[40:]))
    record = fedmate.run(method="fedavg", data=data, set=settings, out=tmp_path / "run")
    classes = record.metrics[-1]["accuracy"]["post"]["balanced"]["per_class"]
    assert record.metric("worst_class", "post", "balanced") == pytest.approx(min(classes), abs=1e-9)
    assert min(classes) < max(classes)


@pytest.mark.usefixtures("installed")
def test_the_servers_step_by_hand() -> None:
    uploads = {"w": torch.tensor([[1.0], [4.0], [torch.nan]])}
    tempered = AGGREGATORS["tempered"](power=0.5)  # type: ignore[call-arg]
    assert tempered(uploads, torch.tensor([1, 4, 0]))["w"].item() == pytest.approx((1 + 2 * 4) / 3)
    alike = AGGREGATORS["tempered"](power=0.0)  # type: ignore[call-arg]
    assert alike(uploads, torch.tensor([1, 4, 0]))["w"].item() == pytest.approx(2.5)
    lion, model = SERVER_OPTIMISERS["lion"](), {"w": torch.zeros(1)}
    state = lion.init(model)
    for target, place, moment in ((1.0, 0.01, 0.01), (0.0, 0.02, 0.0098), (-1.0, 0.01, -0.000498)):
        model, state = lion.step(model, {"w": torch.tensor([target])}, state)
        assert (model["w"].item(), state["moment"]["w"].item()) == pytest.approx((place, moment), abs=1e-6)


@pytest.mark.usefixtures("installed")
def test_the_servers_step_is_chosen_by_name(tmp_path: Path) -> None:
    chosen = {"server.aggregator": "tempered", "server.power": 0.0, "server.optimiser": "lion"}
    values = {"rounds": 1, "partition.clients": 2, "training.epochs": 1, **chosen}
    record = fedmate.run(method="fedavg", set=values, out=tmp_path / "run", dataset="digits")
    section = record.config["server"]
    assert (section["aggregator"], section["power"], section["beta2"]) == ("tempered", 0.0, 0.99)

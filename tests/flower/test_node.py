"""A node of the app: a site with its own data, or a client of the experiment's data set; and what it never tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedmate.backends.client import accuracies
from fedmate.core import class_counts, flatten
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.predict import load_model
from fedmate.experiment.request import compose
from fedmate.flower import node
from fedmate.flower.client import Client
from fedmate.flower.messages import Request
from fedmate.flower.node import SiteDataError, open_client
from fedmate.flower.run_config import request_of

TOKEN = "ab" * 16
USUAL = {"set": "", "out": "", "min-clients": 0, "patience": 0.0}

DIGITS = """
rounds = 2
device = "cpu"
[partition]
clients = 3
[method]
name = "fedper"
"""

SITES = """
rounds = 2
device = "cpu"
[dataset]
name = "sites"
classes = ["ant", "bee", "cat"]
shape = [1, 4, 4]
[partition]
clients = 3
[method]
name = "fedavg"
own_prior = true
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of experiments, and a site's."""
    node._plan.cache_clear()
    for name, text in (("digits", DIGITS), ("sites", SITES)):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    for folder in ("sets", "site"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("FEDMATE_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("FEDMATE_STATE", str(tmp_path / "states"))
    rng, labels = np.random.default_rng(0), np.repeat([0, 1], [20, 60])
    x = rng.integers(0, 100, (80, 1, 4, 4)) + 80 * labels[:, None, None, None]
    np.savez(tmp_path / "site" / "own.npz", train_x=x.astype(np.uint8), train_y=labels)
    write_site(tmp_path, 'class_names = ["bee", "cat"]')
    return tmp_path


def write_site(app: Path, more: str) -> None:
    text = f'state = "kept"\n[data]\nloader = "npz"\npath = "own.npz"\n{more}\n'
    (app / "site" / "site.toml").write_text(text, encoding="utf-8")


def opened(app: Path, experiment: str, **node_config: Any) -> Client:
    told = {key.replace("_", "-"): value for key, value in node_config.items()}
    return open_client({"experiment": experiment, **USUAL}, told, TOKEN, app)


def request(site: Client, **fields: Any) -> Request:
    params = site.method.setup.model.init_params()
    server = site.method.init_server(params, site.num_clients, site.key)
    down = site.method.download(server, torch.tensor(site.number))
    parts = site.method.wire(0).down
    asked = Request("train", 0, True, flatten({part: down[part] for part in parts}))
    return asked._replace(**fields)


# -------------------- a share of the experiment's own data set


def test_a_node_without_a_file_takes_its_share(app: Path) -> None:
    """The one that every back end deals."""
    asked = request_of({"experiment": "digits", **USUAL}, app)
    (experiment,) = compose(asked)
    expected = build(experiment.with_general(backend="sequential"))
    site = opened(app, "digits", partition_id=1)
    assert (site.number, site.num_clients, site.reports_own) == (1, 3, False)
    assert_close(site.data.x, expected.federation.clients[1].x)
    assert_close(site.test.x, expected.federation.test.x)
    assert_close(flatten(site.method.setup.model.init_params()), flatten(expected.method.setup.model.init_params()))
    answer = site.answer(request(site))
    assert len(answer.metrics["post"]) == 2 * 10


def test_its_state_lies_where_its_owner_says(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(app / "home"))
    named = opened(app, "digits", partition_id=0, state=str(app / "mine")).state.folder
    assert named == app / "mine" / TOKEN[:16] / "0"
    assert opened(app, "digits", partition_id=0).state.folder == app / "states" / TOKEN[:16] / "0"
    monkeypatch.delenv("FEDMATE_STATE")
    usual = opened(app, "digits", partition_id=0).state.folder
    assert usual == app / "home" / ".local" / "state" / "fedmate" / TOKEN[:16] / "0"


# -------------------- a site's own data


def test_a_site_trains_on_its_own_data_and_tells_one_number(app: Path) -> None:
    site = opened(app, "sites", partition_id=2, site=str(app / "site" / "site.toml"))
    assert (site.number, site.num_clients, site.reports_own) == (2, 3, True)
    assert site.state.folder == app / "site" / "kept" / TOKEN[:16] / "2"
    assert class_counts(site.data, 3).tolist() == [0, 16, 48]
    assert class_counts(site.test, 3).tolist() == [0, 4, 12]
    answer = site.answer(request(site))
    assert answer.metrics.keys() == {"losses", "valid", "post"}
    assert len(answer.metrics["post"]) == 1
    view = site.answer(request(site, kind="view"))
    assert view.upload == {}
    assert all(len(numbers) == 1 for numbers in view.metrics.values())


def test_a_site_keeps_its_own_model_for_its_own_use(app: Path) -> None:
    site = opened(app, "sites", partition_id=2, site=str(app / "site" / "site.toml"))
    kept = site.state.folder / "model.safetensors"
    site.answer(request(site))
    assert not kept.exists()
    told = site.answer(request(site, kind="view")).metrics["pre"][0]
    model = load_model(kept)
    assert (model.origin["client"], model.origin["round"]) == (2, 1)
    raw = site.test.source.samples[site.test.rows].numpy()
    right = model.predict(raw, prior="own").labels == site.test.y.numpy()
    assert told == pytest.approx(right.mean())


def test_the_number_is_the_accuracy_on_a_test_distributed_as_its_samples(app: Path) -> None:
    """By hand: of the model adjusted to the client's prior, classes as they are held, those tested at all."""
    site = opened(app, "sites", partition_id=0, site=str(app / "site" / "site.toml"))
    told = site.answer(request(site, kind="view")).metrics["pre"][0]
    params = site.method.setup.model.init_params()
    plain, own = accuracies(site.method, params, site.data, site.test, is_global=True).tolist()
    assert own[1:] != plain[1:]
    assert np.isnan(own[0])
    assert told == pytest.approx((16 * own[1] + 48 * own[2]) / 64)


def test_nothing_of_its_data_is_told_when_it_cannot_be_used(app: Path) -> None:
    write_site(app, 'class_names = ["secret disease", "cat"]')
    with pytest.raises(SiteDataError) as caught:
        opened(app, "sites", partition_id=0, site=str(app / "site" / "site.toml"))
    assert str(caught.value) == "the site cannot use its own data, and its own log says why"
    # The log has it.
    assert "secret disease" in str(caught.value.__cause__)


# -------------------- mistakes


@pytest.mark.parametrize(
    ("experiment", "node_config", "sentence"),
    [
        ("digits", {}, "`partition-id` of the node config is None, but the experiment's clients are 0 to 2;"),
        ("digits", {"partition_id": 3}, "`partition-id` of the node config is 3, but"),
        ("digits", {"partition_id": True}, "`partition-id` of the node config is True, but"),
        ("digits", {"partition_id": 0, "site": "x.toml"}, "names a `site`, but the experiment is on `digits`"),
        ("digits", {"partition_id": 0, "state": 3}, "`state` of the node config is 3; give a path."),
        ("sites", {"partition_id": 0}, "the node config has no `site`; name its file."),
        ("sites", {"partition_id": 0, "site": ""}, "`site` of the node config is ''; give a path."),
        ("other", {"partition_id": 0}, "`experiment` of the run config is `other`"),
    ],
)
def test_a_mistake_in_a_config_is_one_sentence(
    app: Path, experiment: str, node_config: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        opened(app, experiment, **node_config)
    assert sentence in str(caught.value)

"""What a local update takes is counted without running it, and is what it takes when it is run."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fedmate.studies.workload import flops_of_update
from tests.methods.small import CLIENTS, TRAINING, normed_model
from torch import Tensor, nn

from fedmate.core import (
    Augmentation,
    ClientData,
    Method,
    Model,
    Setup,
    Source,
    Training,
    Tree,
    client_data,
    make_key,
    remembered_features,
    rows_of,
    select,
    unmapped,
)
from fedmate.core.shapes import META, count_flops
from fedmate.methods import METHODS
from fedmate.models import MODELS


def make(name: str, model: Model, training: Training = TRAINING, classes: int = 3) -> tuple[Method, Tree]:
    """Return a method and its server before the first round."""
    setup = Setup(model, classes, 4, training)
    method = METHODS[name](setup=setup)
    method = replace(method, setup=replace(setup, model=method.prepare(model)))
    return method, method.init_server(method.setup.model.init_params(), 3, make_key(0))


def flops_when_run(method: Method, server: Tree, data: ClientData) -> int:
    """Run a local update as the reference does, on real numbers, and count every step."""
    key = make_key(5)
    client = method.init_client(method.setup.model.init_params(), key)
    download = select(method.download(server, torch.tensor(0)), method.wire(0).down)

    def update() -> None:
        with unmapped(), remembered_features():
            method.local_update(client, download, data, key)

    return count_flops(update)


@pytest.mark.parametrize("name", METHODS.names())
def test_it_is_what_a_run_takes(name: str) -> None:
    """Five samples in batches of two: the last of each pass is short."""
    method, server = make(name, normed_model())
    found = flops_of_update(method, server, CLIENTS[0])
    assert found == flops_when_run(method, server, CLIENTS[0])
    assert found > 0


@pytest.mark.parametrize("name", ["fedrep", "fedmate", "fedpac"])
def test_features_of_varied_samples_are_computed_in_every_pass(name: str) -> None:
    """A frozen extractor looks once at samples that stay, and in each of two passes at those that do not."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3)]
    method, server = make(name, Model(nn.Sequential(*layers).double(), classifier="3"))
    method = replace(method, classifier_epochs=2)  # type: ignore[call-arg]
    images, scale = torch.zeros(5, 1, 4, 4, dtype=torch.uint8), torch.ones((), dtype=torch.float64)
    found = {}
    for augmentation in (Augmentation(), Augmentation(crop=1, flip=True)):
        source = Source(images, scale, scale, augmentation)
        data = rows_of(source, torch.arange(5), torch.tensor([0, 1, 2, 0, 1]))
        # A network is tried with a few samples when it first sees images, which is no part of the update.
        flops_when_run(method, server, data)
        found[augmentation] = flops_of_update(method, server, data)
        assert found[augmentation] == flops_when_run(method, server, data)
    assert len({*found.values()}) == 2


def test_phases_are_told_apart_where_batches_look_alike() -> None:
    """Features are as wide as inputs, but training a classifier takes less than training what is below it."""
    torch.manual_seed(0)
    model = Model(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double(), classifier="2")
    method, server = make("fedrep", model)
    data = client_data(torch.ones(5, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]))
    assert flops_of_update(method, server, data) == flops_when_run(method, server, data)


def test_fedavg_on_cifar_by_hand() -> None:
    """Multiply-adds for one sample, layer by layer; backward takes each twice, but for the images' own gradient."""
    conv1, conv2, conv3 = 28 * 28 * 16 * 3 * 5 * 5, 12 * 12 * 32 * 16 * 5 * 5, 6 * 6 * 64 * 32 * 3 * 3
    linear = 3 * 3 * 64 * 128 + 128 * 10
    sample = 2 * (2 * conv1 + 3 * (conv2 + conv3 + linear))
    size, epochs = 2_499, 5
    model = Model(MODELS["cifar_cnn"]().build((3, 32, 32), 10), classifier="classifier")
    method, server = make("fedavg", model, Training(batch_size=50, epochs=epochs), 10)
    data = client_data(torch.empty(size, 3, 32, 32, device=META), torch.empty(size, dtype=torch.int64, device=META))
    assert flops_of_update(method, server, data) == size * epochs * sample == 240_575_731_200


def test_only_the_first_step_of_a_kind_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    method, server = make("fedavg", normed_model(), replace(TRAINING, epochs=10))
    model, taken = method.setup.model, list[int]()
    features = model.features

    def watched(params: Tree, x: Tensor, *, train: bool = False) -> tuple[Tensor, Tree]:
        taken.append(len(x))
        return features(params, x, train=train)

    monkeypatch.setattr(model, "features", watched)
    assert flops_of_update(method, server, CLIENTS[0]) > 0
    assert taken == [2, 1]

"""MOON: two rounds by hand, what it reduces to, what it compares with, and the projection on its way in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.methods.small import CLIENTS, TRAINING, normed_model
from torch import Tensor, nn
from torch.testing import assert_close

from fedmate.backends.base import Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    Augmentation,
    BufferPolicy,
    ClientData,
    Federation,
    Method,
    Model,
    Setup,
    Source,
    Training,
    batches,
    client_data,
    gradient,
    make_key,
    random_bits,
    rows_of,
    tree_map,
    unmapped,
)
from fedmate.core.layers import sample_context
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedprox import FedProx
from fedmate.methods.moon import MOON, _cosine, _frozen_features


def run(method: Method, schedule: tuple[tuple[int, ...], ...]) -> tuple[Sequential, list[RoundResult]]:
    backend = Sequential(method, Federation(CLIENTS, CLIENTS[0], 3), make_key(4), workers=1)
    server = method.init_server(method.setup.model.init_params(), 3, make_key(4))
    results = []
    for t, present in enumerate(schedule):
        results.append(backend.run_round(server, Round(t, present, evaluate=True)))
        server = results[-1].server
    return backend, results


def leaf(array: Any) -> Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float64)


# -------------------- two rounds by hand

ETA, MOMENTUM, DECAY, MU, TAU = 0.3, 0.6, 0.05, 2.0, 0.4
Matrix = NDArray[np.float64]


def pull(z: Matrix, other: Matrix) -> tuple[Matrix, Matrix]:
    """Return the cosine of each pair of columns and its slope in z: (o / |o| - cos z / |z|) / |z|."""
    length, unit = np.linalg.norm(z, axis=0), other / np.linalg.norm(other, axis=0)
    cosine = (z * unit).sum(0) / length
    return cosine, (unit - cosine * z / length) / length


def train_by_hand(
    w: Matrix, v: Matrix, x: Matrix, y: NDArray[np.int64], previous: Matrix | None
) -> tuple[Matrix, Matrix]:
    """Two full-batch steps of z = W x, logits V z; all samples are columns.

    The contrastive loss of a sample is log(1 + exp((cos_p - cos_g) / TAU)): with q = sigmoid((cos_p - cos_g) / TAU) its
    slope in z is q / TAU (d cos_p - d cos_g).
    """
    received, moving = w, (np.zeros_like(w), np.zeros_like(v))
    for _ in range(2):
        z = w @ x
        logits = v @ z
        e = (np.exp(logits) / np.exp(logits).sum(0) - np.stack([y == 0, y == 1])) / len(y)
        slope = v.T @ e
        if previous is not None:
            (to_global, d_global), (to_previous, d_previous) = pull(z, received @ x), pull(z, previous @ x)
            q = 1 / (1 + np.exp((to_global - to_previous) / TAU))
            slope = slope + MU * q / TAU * (d_previous - d_global) / len(y)
        moving = (MOMENTUM * moving[0] + slope @ x.T + DECAY * w, MOMENTUM * moving[1] + e @ z.T + DECAY * v)
        w, v = w - ETA * moving[0], v - ETA * moving[1]
    return w, v


def test_two_rounds_by_hand() -> None:
    """Sizes 1, 3 and 2; the third client comes in the second round, and has nothing to be kept away from."""
    w, v = np.array([[0.8, -0.2], [0.3, 0.5]]), np.array([[0.5, -0.4], [-0.3, 0.2]])
    inputs = [np.array([[1.5], [0.2]]), np.array([[-0.7, 2.0, 0.4], [0.9, 0.1, -1.2]]), np.array([[1.1, 0.3], [0, 2]])]
    labels = [np.array([0]), np.array([1, 0, 1]), np.array([1, 0])]
    first = [train_by_hand(w, v, inputs[i], labels[i], None) for i in (0, 1)]
    middle = (0.25 * first[0][0] + 0.75 * first[1][0], 0.25 * first[0][1] + 0.75 * first[1][1])
    known = [first[0][0], first[1][0], None]
    second = [train_by_hand(*middle, inputs[i], labels[i], known[i]) for i in (0, 1, 2)]
    last = tuple((1 * second[0][k] + 3 * second[1][k] + 2 * second[2][k]) / 6 for k in (0, 1))

    extractor, classifier = nn.Linear(2, 2, bias=False).double(), nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.copy_(leaf(w))
        classifier.weight.copy_(leaf(v))
    model = Model(nn.Sequential(extractor, classifier), classifier="1")
    training = Training(batch_size=3, epochs=2, learning_rate=ETA, momentum=MOMENTUM, weight_decay=DECAY)
    method = MOON(setup=Setup(model, 2, 2, training), contrastive_weight=MU, temperature=TAU)
    data = tuple(client_data(leaf(x.T), torch.tensor(y)) for x, y in zip(inputs, labels, strict=True))
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 3, make_key(0))
    for t, (present, expected) in enumerate([((0, 1), middle), ((0, 1, 2), last)]):
        server = backend.run_round(server, Round(t, present, evaluate=False)).server
        found = (server["extractor"]["0.weight"], server["classifier"]["weight"])
        assert_close(found, tuple(map(leaf, expected)), rtol=0, atol=1e-12)
    for client, (own, _) in zip(backend.clients, second, strict=True):
        assert_close(client["previous_model"]["extractor"]["0.weight"], leaf(own), rtol=0, atol=1e-12)


# -------------------- reductions

PARTIAL = ((1, 2), (0, 2), (0, 1))


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_without_weight_it_is_fedavg_and_fedprox_bit_for_bit(buffers: BufferPolicy) -> None:
    setup = Setup(normed_model(buffers), 3, 3, TRAINING)
    ours, mine = run(MOON(setup=setup, contrastive_weight=0), PARTIAL)
    for method in (FedAvg(setup=setup), FedProx(setup=setup, proximal_weight=0)):
        theirs, other = run(method, PARTIAL)
        kept = [{"buffers": client["previous_model"]["buffers"]} for client in ours.clients]
        assert_close(kept, list(theirs.clients), rtol=0, atol=0)
        for a, b in zip(mine, other, strict=True):
            assert_close(a.server, b.server, rtol=0, atol=0)
            assert_close(a.reports, b.reports, rtol=0, atol=0)
            assert set(a.views) == {"pre", "post", "global"}
            assert_close(a.views, {name: b.views[name] for name in a.views}, rtol=0, atol=0)


# -------------------- what is compared


def images(labels: list[int]) -> ClientData:
    """Bytes that are cropped and mirrored in training."""
    mean, std = torch.full((2, 1, 1, 1), 110.0, dtype=torch.float64)
    samples = random_bits(make_key(3), (len(labels), 1, 2, 4)).to(torch.uint8)
    source = Source(samples, mean, std, Augmentation(crop=1, flip=True))
    return rows_of(source, torch.arange(len(labels)), torch.tensor(labels))


@pytest.mark.parametrize("buffers", ["shared", "dropped"])
@pytest.mark.parametrize("varied", [False, True])
def test_models_are_compared_on_the_very_batch_in_evaluation_mode(buffers: BufferPolicy, varied: bool) -> None:
    if varied:
        layers = [nn.Flatten(2), nn.BatchNorm1d(1), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 3), nn.Linear(3, 3)]
        model = Model(nn.Sequential(*layers).double(), classifier="5", buffers=buffers)
        data = images([0, 1, 2, 0, 1])
    else:
        model, data = normed_model(buffers), CLIENTS[0]
    params = model.init_params()
    if buffers == "shared":
        params["buffers"] = tree_map(lambda stored: stored + 0.3, params["buffers"])
    look = _frozen_features(model, params, data)
    for batch in batches(data, 2, 2, make_key(8)):
        with sample_context(batch):
            assert_close(look(batch), model.features(params, batch.x, train=False)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_feature_vector_of_zeros_has_no_direction_and_does_no_harm(mapped: bool) -> None:
    z = torch.stack([torch.zeros(3), torch.tensor([1.0, 2.0, 2.0]), torch.full((3,), 1e-30)])
    other = torch.tensor([[0.0, 3.0, 4.0]]).expand(3, 3)

    def slope(rows: Tensor) -> Tensor:
        found: Tensor = gradient(lambda v: (_cosine(v["z"], other[: len(v["z"])]).sum(), {}), {"z": rows})[0]["z"]
        return found

    assert_close(_cosine(z, other), torch.tensor([0.0, 14 / 15, 0.0]), rtol=0, atol=1e-6)
    if mapped:
        slopes = torch.func.vmap(slope)(z[:, None])[:, 0]
    else:
        with unmapped():
            slopes = slope(z)
    assert torch.isfinite(slopes).all()
    assert slopes.abs().max() <= 1
    assert_close(_cosine(other, torch.zeros_like(other)), torch.zeros(3))


# -------------------- the projection


def official(model: Model) -> Model:
    return MOON(setup=Setup(model, 3, 2, TRAINING), projection="official").prepare(model)


def test_the_classifier_reads_what_two_layers_make_of_the_features() -> None:
    plain, x = normed_model("shared"), CLIENTS[0].x
    model = official(plain)
    params, own = model.init_params(), plain.init_params()
    shapes = {name: tuple(tensor.shape) for name, tensor in params["extractor"].items() if name not in own["extractor"]}
    assert shapes == {"5.0.weight": (16, 16), "5.0.bias": (16,), "5.2.weight": (256, 16), "5.2.bias": (256,)}
    assert (model.width, params["classifier"]["weight"].shape) == (256, (3, 256))
    for name, tensor in own["extractor"].items():
        assert torch.equal(params["extractor"][name], tensor)
    assert_close(params["buffers"], own["buffers"])
    z = plain.features(own, x)[0]
    hidden = (z @ params["extractor"]["5.0.weight"].T + params["extractor"]["5.0.bias"]).clamp(min=0)
    expected = hidden @ params["extractor"]["5.2.weight"].T + params["extractor"]["5.2.bias"]
    assert_close(model.features(params, x)[0], expected)
    model.check(x, 3)

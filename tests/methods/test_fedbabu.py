"""FedBABU: a round and its fine-tuning by hand, a classifier that nobody trains, and what crosses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.methods.small import CLIENTS, TRAINING, normed_model, run
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import (
    BufferPolicy,
    Federation,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    make_key,
)
from fedmate.errors import UserError
from fedmate.methods.fedavg import FedAvg
from fedmate.methods.fedbabu import FedBABU

Array = NDArray[np.float64]


def make(model: Model, training: Training = TRAINING, **options: Any) -> FedBABU:
    return FedBABU(setup=Setup(model, 3, 3, training), **options)


# -------------------- by hand


def scalar_model(w: float, v: Array) -> Model:
    """Logits (v_0 w x, v_1 w x): an extractor w and a classifier v, three numbers in all."""
    extractor, classifier = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        extractor.weight.fill_(w)
        classifier.weight.copy_(torch.from_numpy(v)[:, None])
    return Model(nn.Sequential(extractor, classifier), classifier="1")


def gradients(w: float, v: Array, x: Array, y: Array) -> tuple[float, Array]:
    """With e_k = p_k - [y = k]: d/dw = mean((e_0 v_0 + e_1 v_1) x), d/dv_k = mean(e_k w x)."""
    exponentials = np.exp(v[:, None] * w * x)
    e = exponentials / exponentials.sum(0) - np.stack([y == 0, y == 1])
    return float(((e * v[:, None]).sum(0) * x).mean()), (e * w * x).mean(1)


def test_a_round_and_the_models_made_of_it_by_hand() -> None:
    """Two full-batch steps on w alone, sizes 1 and 3, averaged 1 : 3; then two steps on a copy, at another rate.

    Fine-tuning moves w and v together, from the average and the classifier of the beginning; `classifier_tuned` moves
    v alone. Each starts with velocity 0 and decays what it trains.
    """
    eta, slow, m, decay, start, v = 0.3, 0.2, 0.6, 0.05, 0.8, np.array([0.5, -0.3])
    inputs, labels = ([1.5], [-0.7, 2.0, 0.4]), ([0], [1, 0, 1])
    trained = []
    for x, y in zip(map(np.array, inputs), map(np.array, labels), strict=True):
        w, speed = start, 0.0
        for _ in range(2):
            speed = m * speed + gradients(w, v, x, y)[0] + decay * w
            w -= eta * speed
        trained.append(w)
    average = 0.25 * trained[0] + 0.75 * trained[1]

    x, y = np.array(inputs[1]), np.array(labels[1])
    w, tuned, speed, velocity = average, v, 0.0, np.zeros(2)
    alone, pace = v, np.zeros(2)
    for _ in range(2):
        by_w, by_v = gradients(w, tuned, x, y)
        speed, velocity = m * speed + by_w + decay * w, m * velocity + by_v + decay * tuned
        w, tuned = w - slow * speed, tuned - slow * velocity
        pace = m * pace + gradients(average, alone, x, y)[1] + decay * alone
        alone = alone - slow * pace

    model = scalar_model(start, v)
    training = Training(batch_size=3, epochs=2, learning_rate=eta, momentum=m, weight_decay=decay)
    method = FedBABU(setup=Setup(model, 2, 1, training), tuning_epochs=2, tuning_learning_rate=slow)
    data = tuple(
        client_data(torch.tensor(a, dtype=torch.float64)[:, None], torch.tensor(b))
        for a, b in zip(inputs, labels, strict=True)
    )
    backend = Sequential(method, Federation(data, data[1], 2), make_key(0), workers=1)
    server = method.init_server(model.init_params(), 2, make_key(0))
    server = backend.run_round(server, Round(0, (0, 1), evaluate=False)).server

    def params(w: float, v: Array) -> Tree:
        weight = torch.tensor([[w]], dtype=torch.float64)
        return {
            "extractor": {"0.weight": weight},
            "classifier": {"weight": torch.from_numpy(v)[:, None]},
            "buffers": {},
        }

    assert_close(server, params(average, v), rtol=0, atol=1e-12)
    client, download = backend.clients[1], method.download(server, torch.tensor(1))
    pre = method.personalise(method.personal_params(client, download), data[1], make_key(1))
    assert_close(pre, params(w, tuned), rtol=0, atol=1e-12)
    views = method.extra_views(client, download, data[1], make_key(1))
    assert_close(views, {"classifier_tuned": params(average, alone)}, rtol=0, atol=1e-12)


# -------------------- reductions


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_fine_tuning_with_the_rate_of_training_is_a_round_of_fedavg(buffers: BufferPolicy) -> None:
    """It trains everything, as FedAvg does: the same batches, the same steps."""
    model = normed_model(buffers)
    method, average = make(model, tuning_epochs=TRAINING.epochs), FedAvg(setup=Setup(model, 3, 3, TRAINING))
    params = model.init_params()
    result = average.local_update({"buffers": params["buffers"]}, params, CLIENTS[0], make_key(1))
    assert_close(method.personalise(params, CLIENTS[0], make_key(1)), result.params, rtol=0, atol=0)


# -------------------- the classifier


def test_the_classifier_is_the_same_bits_all_over_training() -> None:
    """Weight decay and momentum are on, and models are tuned after every round."""
    model = normed_model()
    method = make(model)
    backend, results = run(method, CLIENTS, 3)
    initial = model.init_params()["classifier"]
    for state in (*backend.clients, *(result.server for result in results)):
        assert_close(state["classifier"], initial, rtol=0, atol=0)
    update = method.local_update(
        backend.clients[0], method.download(results[-1].server, torch.tensor(0)), CLIENTS[0], make_key(1)
    )
    assert_close(update.params["classifier"], initial, rtol=0, atol=0)
    assert not torch.equal(results[-1].server["extractor"]["0.weight"], model.init_params()["extractor"]["0.weight"])


def test_a_classifier_of_zeros_is_refused() -> None:
    classifier = nn.Linear(2, 3)
    nn.init.zeros_(classifier.weight)
    model = Model(nn.Sequential(nn.Linear(8, 2), classifier), classifier="1")
    with pytest.raises(UserError, match=r"`model` starts with a classifier of zeros.*; initialise it at random\.$"):
        make(model).prepare(model)
    fine = normed_model()
    assert make(fine).prepare(fine) is fine

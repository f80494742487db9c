"""Local: two steps by hand, and nobody hears of anybody."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.testing import assert_close

from fedmate.backends.base import Round
from fedmate.backends.sequential import Sequential
from fedmate.core import ClientData, Federation, Model, Setup, Training, client_data, make_key, normal
from fedmate.methods.local import Local

Array = NDArray[np.float64]


def linear_model() -> Model:
    """A linear extractor and a linear classifier, 3 -> 2 -> 3, with biases, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return Model(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 3)).double(), classifier="1")


def samples(seed: int, labels: list[int]) -> ClientData:
    return client_data(normal(make_key(seed), (len(labels), 3), torch.float64), torch.tensor(labels))


def loss_gradient(params: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
    """Differentiate the mean cross-entropy of softmax(V (W x + b) + c) by hand.

    With z = W x + b, logits g = V z + c, p = softmax(g) and n samples, d loss / d g = (p - onehot(y)) / n =: e. Then
    dV = e^T z, dc = sum e, and through dz = e V: dW = dz^T x, db = sum dz.
    """
    z = x @ params["W"].T + params["b"]
    logits = z @ params["V"].T + params["c"]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    e = (p - np.eye(3)[y.astype(int)]) / len(y)
    dz = e @ params["V"]
    return {"W": dz.T @ x, "b": dz.sum(0), "V": e.T @ z, "c": e.sum(0)}


def test_two_steps_by_hand() -> None:
    """SGD: g <- gradient + decay * p, v <- m v + g, p <- p - eta v, on weights and biases alike, v = 0 each round."""
    eta, m, decay = 0.3, 0.6, 0.05
    model, data = linear_model(), samples(1, [0, 2, 1, 0])
    training = Training(batch_size=4, epochs=2, learning_rate=eta, momentum=m, weight_decay=decay)
    method = Local(setup=Setup(model, 3, 2, training))
    backend = Sequential(method, Federation((data,), data, 3), make_key(0), workers=1)

    initial = model.init_params()
    params = {
        "W": initial["extractor"]["0.weight"].numpy().copy(),
        "b": initial["extractor"]["0.bias"].numpy().copy(),
        "V": initial["classifier"]["weight"].numpy().copy(),
        "c": initial["classifier"]["bias"].numpy().copy(),
    }
    for t in range(2):
        velocity = {name: np.zeros_like(value) for name, value in params.items()}
        for _ in range(2):
            gradient = loss_gradient(params, data.x.numpy(), data.y.numpy())
            velocity = {n: m * velocity[n] + gradient[n] + decay * params[n] for n in params}
            params = {n: params[n] - eta * velocity[n] for n in params}
        backend.run_round({}, Round(t, (0,), evaluate=False))
        expected = {
            "extractor": {"0.weight": torch.from_numpy(params["W"]), "0.bias": torch.from_numpy(params["b"])},
            "classifier": {"weight": torch.from_numpy(params["V"]), "bias": torch.from_numpy(params["c"])},
            "buffers": {},
        }
        assert_close(backend.clients[0], expected, rtol=0, atol=1e-12)

"""Every method learns a task that it does not know: one class for each pixel, on all back ends alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch
from tests.contract.conftest import NUM_CLASSES
from torch import Tensor, nn
from torch.testing import assert_close

from fedmate.core import (
    ClientData,
    Federation,
    Instances,
    Model,
    Task,
    Tree,
    client_data,
    fold,
    leaves,
    make_key,
    normal,
)
from fedmate.core.random import random_bits
from fedmate.tasks.classification import Classification

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab

HEIGHT, WIDTH = 3, 2
SAMPLES = (5, 1, 3, 4, 2)
"""By client."""


class LabelMaps(Task):
    """A class for each pixel, of which nothing is told but how it becomes instances."""

    primary_metric: ClassVar[str] = "accuracy"
    pixels = Classification()

    def loss(self, logits: Tensor, y: Tensor, mask: Tensor | None, weights: Tensor | None = None) -> Tensor:
        counted = torch.ones_like(y[:, 0, 0], dtype=torch.bool) if mask is None else mask
        return self.pixels.loss(*self.instances(logits, y, counted), weights)

    def instances(self, z: Tensor, y: Tensor, mask: Tensor) -> Instances:
        counted = mask[:, None, None].expand(y.shape).flatten()
        return Instances(z.movedim(1, -1).flatten(0, -2), y.flatten(), counted)

    def statistics(self, logits: Tensor, y: Tensor, mask: Tensor, num_classes: int) -> Tree:
        return self.pixels.statistics(*self.instances(logits, y, mask), num_classes)

    def summary(self, statistics: Tree, weights: Tensor | None, *, whole: bool = False) -> Tree:
        return self.pixels.summary(statistics, weights, whole=whole)

    def class_counts(self, y: Tensor, mask: Tensor, num_classes: int) -> Tensor:
        return self.pixels.class_counts(y.flatten(), mask[:, None, None].expand(y.shape).flatten(), num_classes)

    def answer_shape(self, x: Tensor, num_classes: int) -> tuple[int, ...]:
        return len(x), num_classes, *x.shape[2:]


def maps(samples: int, *path: int | str) -> ClientData:
    """Return images whose pixels are brighter the higher their class is; nobody but the test holds the last class."""
    key = fold(make_key(17), *path)
    y = random_bits(key, (samples, HEIGHT, WIDTH)) % (NUM_CLASSES - (path[0] == "client"))
    x = y[:, None] + 0.3 * normal(fold(key, "noise"), (samples, 1, HEIGHT, WIDTH), torch.float64)
    return client_data(x, y)


def dense(lab: Lab) -> Lab:
    """Return the same method on label maps."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1), nn.Tanh(), nn.Conv2d(3, NUM_CLASSES, 1)]
        model = Model(nn.Sequential(*layers).double(), classifier="4", task=LabelMaps())
    clients = tuple(maps(count, "client", i) for i, count in enumerate(SAMPLES))
    tests = tuple(maps(2, "local", i) for i in range(len(SAMPLES)))
    federation = Federation(clients, maps(6, "test"), NUM_CLASSES, local_tests=tests)
    model.check(federation.test.x[:2], NUM_CLASSES)
    setup = lab.method.setup
    setup = replace(setup, training=replace(setup.training, epochs=1), model=lab.method.prepare(model))
    return replace(lab, method=replace(lab.method, setup=setup), federation=federation)


def test_label_maps(make_lab: MakeLab, method_name: str) -> None:
    lab = dense(make_lab(method_name, "plain"))
    one, other = lab.history("sequential"), lab.history("vectorised")
    assert_close(other.state(), one.state(), rtol=0, atol=1e-9)
    start, end = lab.server(), one.rounds[-1]
    assert all(report.valid for result in one.rounds for report in result.reports)
    assert not end.server or any(not torch.equal(a, b) for a, b in zip(leaves(start), leaves(end.server), strict=True))
    for name, view in end.views.items():
        if view is not None:
            assert_close(view.tests, other.rounds[-1].views[name].tests, rtol=0, atol=1e-9)  # type: ignore[union-attr]
            labels = [int(statistics["tally"][0, 1].sum()) for statistics in view.tests.values()]
            assert labels == [count * HEIGHT * WIDTH for count in (6, 6, 2)]


@pytest.mark.parametrize("samples", [1, 4])
def test_loss_and_counts_are_of_pixels(samples: int) -> None:
    """As a plain loop over pixels has them; padding adds nothing."""
    data, task = maps(samples, "client", 0), LabelMaps()
    logits = normal(make_key(1), (samples + 1, NUM_CLASSES, HEIGHT, WIDTH), torch.float64)
    y, mask = torch.cat([data.y, data.y[:1]]), torch.arange(samples + 1) < samples
    losses = [
        nn.functional.cross_entropy(logits[i, :, h, w], y[i, h, w])
        for i in range(samples)
        for h in range(HEIGHT)
        for w in range(WIDTH)
    ]
    assert_close(task.loss(logits, y, mask), torch.stack(losses).mean())
    assert_close(task.loss(logits[:samples], data.y, None), torch.stack(losses).mean())
    assert task.class_counts(y, mask, NUM_CLASSES).tolist() == torch.bincount(data.y.flatten(), minlength=4).tolist()

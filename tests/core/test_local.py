"""Local training is torch's own, with or without leaves, padding and company."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedmate.core.data import Batch, ClientData, batches, client_data
from fedmate.core.execution import unmapped
from fedmate.core.local import SGD, fit, gradient, move_at_once, supervised_loss
from fedmate.core.model import Model
from fedmate.core.random import make_key
from fedmate.core.task import cross_entropy
from fedmate.core.tree import Tree, flatten

CLASSES = 3


def make_module(kind: str = "plain", seed: int = 0) -> nn.Module:
    extras: dict[str, list[nn.Module]] = {
        "plain": [],
        "norm": [nn.BatchNorm2d(4)],
        "channel dropout": [nn.BatchNorm2d(4), nn.Dropout2d(0.3)],
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), *extras[kind], nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 6)
        )
        return nn.Sequential(body, nn.Tanh(), nn.Linear(6, CLASSES)).double()


def make_model(kind: str = "plain") -> Model:
    return Model(make_module(kind), classifier="2")


def make_data(samples: int, seed: int = 0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 4, 4, dtype=torch.float64, generator=generator)
    return client_data(x, torch.randint(CLASSES, (samples,), generator=generator))


def assert_close(found: Tree, expected: Tree, tolerance: float = 1e-12) -> None:
    mine, other = flatten(found), flatten(expected)
    assert list(mine) == list(other)
    torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)


def plain_move(optimiser: SGD, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The formula, leaf by leaf."""
    third = len(tensors) // 3
    moved, velocities = [], []
    for p, g, v in zip(tensors[:third], tensors[third : 2 * third], tensors[2 * third :], strict=True):
        velocities.append(optimiser.momentum * v + (g + optimiser.weight_decay * p))
        moved.append(p - optimiser.learning_rate * velocities[-1])
    return (*moved, *velocities)


class TestMoveAtOnce:
    """The step a GPU takes; here on a CPU."""

    SHAPES = ((3, 2), (4,), ())

    def make(self, clients: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        return tuple(torch.randn((*clients, *shape), dtype=dtype, generator=generator) for shape in self.SHAPES * 3)

    def test_a_step_that_depends_on_no_client_and_two_axes_of_clients(self) -> None:
        optimiser, tensors = SGD(0.1, 0.5, 0.05), self.make((2, 5))
        twice = torch.func.vmap(torch.func.vmap(lambda *t: move_at_once(optimiser, t)))(*tensors)
        torch.testing.assert_close(twice, plain_move(optimiser, tensors), rtol=0, atol=1e-12)
        alone = self.make()
        found = torch.func.vmap(lambda _: move_at_once(optimiser, alone))(torch.zeros(3))
        torch.testing.assert_close([leaf[2] for leaf in found], list(plain_move(optimiser, alone)), rtol=0, atol=1e-12)


class TestCrossEntropy:
    @pytest.mark.parametrize("plain", [True, False])
    @pytest.mark.parametrize("poison", [1e300, math.inf, math.nan])
    def test_what_does_not_count_may_hold_anything(self, poison: float, plain: bool) -> None:
        logits = torch.tensor([[1.0, 2.0], [poison, -poison], [0.0, 3.0]], dtype=torch.float64)
        labels, mask = torch.tensor([0, 0, 1]), torch.tensor([True, False, True])
        with unmapped() if plain else nullcontext():
            found, extra = gradient(
                lambda v: ((loss := cross_entropy(v["logits"], labels, mask)), {"loss": loss}), {"logits": logits}
            )
            expected, _ = gradient(lambda v: (functional.cross_entropy(v["z"], labels[mask]), {}), {"z": logits[mask]})
        assert float(extra["loss"]) == pytest.approx(float(functional.cross_entropy(logits[mask], labels[mask])))
        assert found["logits"][1].tolist() == [0.0, 0.0]
        torch.testing.assert_close(found["logits"][mask], expected["z"], rtol=0, atol=1e-15)


def reference(module: nn.Module, steps: list[Batch], momentum: float, weight_decay: float) -> dict[str, Tensor]:
    """A training loop as anybody would write it in torch."""
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for batch in steps:
        optimiser.zero_grad()
        functional.cross_entropy(module(batch.x), batch.y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


class TestFit:
    @pytest.mark.parametrize("plain", [True, False])
    @pytest.mark.parametrize("kind", ["plain", "norm"])
    def test_is_a_training_loop(self, kind: str, plain: bool) -> None:
        module, model, data = make_module(kind), make_model(kind), make_data(20)
        with unmapped() if plain else nullcontext():
            trained = fit(
                supervised_loss(model),
                model.init_params(),
                batches(data, 8, 3, make_key(0)),
                SGD(0.1, 0.5, 0.01),
                ("extractor", "classifier"),
            )
        expected = reference(module, list(batches(data, 8, 3, make_key(0))), 0.5, 0.01)
        mine = {**trained["extractor"], **trained["buffers"]}
        mine |= {f"2.{name}": tensor for name, tensor in trained["classifier"].items()}
        names = {name for name in expected if not name.endswith("num_batches_tracked")}
        assert set(mine) == names
        assert_close(mine, {name: expected[name] for name in mine}, 1e-11)

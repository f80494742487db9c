"""A model computes what the user's module computes, and refuses what it cannot split."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmate.core.data import Batch
from fedmate.core.layers import sample_context
from fedmate.core.local import gradient
from fedmate.core.model import Model
from fedmate.core.random import make_key
from fedmate.core.tree import Tree, flatten, tree_map
from fedmate.errors import UserError


class Nested(nn.Module):
    """A network whose last layer is inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.head = nn.ModuleDict({"norm": nn.LayerNorm(12), "fc": nn.Linear(12, 5)})

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head["fc"](self.head["norm"](self.body(x)))
        return logits


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.second(self.first(x)))
        return logits


def images(samples: int = 4) -> Tensor:
    return torch.randn(samples, 1, 4, 4, generator=torch.Generator().manual_seed(1))


def vectors(samples: int = 4) -> Tensor:
    return torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))


def a_batch(x: Tensor) -> Batch:
    ids = torch.arange(len(x))
    return Batch(x, ids, torch.ones(len(x), dtype=torch.bool), ids, make_key(0))


def moved(params: Tree) -> Tree:
    """Other parameters than the module came with; variances stay positive."""
    return tree_map(lambda leaf: leaf * 1.25 + 0.5, params)


def as_state(params: Tree, classifier: str) -> dict[str, Tensor]:
    named = {f"{classifier}.{name}": tensor for name, tensor in params["classifier"].items()}
    return {**params["extractor"], **params["buffers"], **named}


class TestSplit:
    def test_features_and_classify_are_the_module(self) -> None:
        module, x = Nested(), images()
        model = Model(module, classifier="head.fc")
        params = moved(model.init_params())
        z, buffers = model.features(params, x)
        assert z.shape == (4, 12)
        assert list(flatten(buffers)) == list(flatten(params["buffers"]))
        expected = functional_call(module.eval(), as_state(params, "head.fc"), (x,))
        torch.testing.assert_close(model.classify(params, z), expected)
        assert torch.equal(model.logits(params, x), model.classify(params, z))

    def test_layers_that_share_a_weight_keep_sharing_it(self) -> None:
        module, x = Tied(), vectors()
        model = Model(module, classifier="last")
        params = moved(model.init_params())
        state = as_state(params, "last")
        torch.testing.assert_close(model.logits(params, x), functional_call(module, state, (x,)))

        def loss(variables: Tree) -> tuple[Tensor, Tree]:
            return model.logits({**params, **variables}, x).square().sum(), {}

        expected = torch.func.grad(lambda s: functional_call(module, s, (x,)).square().sum())(state)
        found, _ = gradient(loss, {"extractor": params["extractor"]})
        torch.testing.assert_close(found["extractor"]["first.weight"], expected["first.weight"])

    def test_the_users_module_is_never_changed(self) -> None:
        module, x = Nested().train(), images(8)
        module.body.append(nn.Dropout(0.5))
        before = copy.deepcopy(module.state_dict())
        layers = list(module.modules())
        model = Model(module, classifier="head.fc")
        model.check(x, 5)
        params = model.init_params()
        with sample_context(a_batch(x)):
            model.features(params, x, train=True)
        model.logits(moved(params), x)
        assert list(module.modules()) == layers
        assert all(layer.training for layer in layers)
        assert all(p.requires_grad for p in module.parameters())
        torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


class FunctionalDropout(nn.Module):
    """A network that drops values without a layer to swap."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 50), nn.Linear(50, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(nn.functional.dropout(self.fc1(x), training=self.training))
        return logits


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5))


def frozen(layer: int = 0) -> nn.Sequential:
    module = pair()
    module[layer].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("module", "classifier", "x", "phrase"),
    [
        (pair(), "3", vectors(), "names no layer of the module; it has `0`, `1`, `2`"),
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU()), "1", vectors(), "has no parameters"),
        (nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.BatchNorm1d(5))), "1", vectors(), "holds BatchNorm"),
        (pair(), "0", vectors(), "it is not the last"),
        (nn.Sequential(nn.Linear(6, 4)), "0", vectors(), "one logit for each of the 5 classes"),
        (pair(), "2", torch.zeros(4, 8), "cannot read samples of shape (8,)"),
        (pair(), "2", torch.full((4, 6), torch.inf), "numbers that are not finite"),
        (FunctionalDropout(), "fc2", vectors(), "functional form"),
        (frozen(2), "2", vectors(), "`classifier` is `2`, which has `requires_grad=False`"),
    ],
)
def test_what_cannot_be_split_or_trained_is_refused(module: nn.Module, classifier: str, x: Tensor, phrase: str) -> None:
    with pytest.raises(UserError) as error:
        Model(module, classifier=classifier).check(x, 5)
    assert phrase in str(error.value)


def test_what_is_frozen_is_in_no_tree_held_once_and_exported() -> None:
    module = frozen()
    model = Model(module, classifier="2")
    params, kept = model.init_params(), model.frozen["frozen"]
    assert (params["extractor"], set(kept), model.num_parameters) == ({}, {"0.weight", "0.bias"}, 25)
    skeletons = [network for pair in model._skeletons().values() for network in pair[:1]]
    held = {p.data_ptr() for network in skeletons for p in network.parameters()}
    assert held == {t.data_ptr() for t in kept.values()} != {p.data_ptr() for p in module[0].parameters()}
    other = model.starting_from({**params, "frozen": {name: 2 * t for name, t in kept.items()}})
    x = vectors()
    for one, factor in ((model, 1), (other, 2)):
        exported = one.to_module(one.init_params())
        torch.testing.assert_close(exported.get_parameter("0.weight"), factor * module.get_parameter("0.weight"))
        torch.testing.assert_close(exported(x), one.logits(params, x))
    assert not torch.allclose(model.logits(params, x), other.logits(params, x))

"""A model computes what the user's module computes, and refuses what it cannot split."""

from __future__ import annotations

import copy
import doctest
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

import fedmate.core.model
from fedmate.core.data import Batch
from fedmate.core.execution import unmapped
from fedmate.core.layers import sample_context
from fedmate.core.local import gradient
from fedmate.core.model import Model
from fedmate.core.random import make_key
from fedmate.core.tree import Tree, flatten, tree_map
from fedmate.errors import UserError


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small operations lose more than they gain by being split."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Nested(nn.Module):
    """A network whose last layer is inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.head = nn.ModuleDict({"norm": nn.LayerNorm(12), "fc": nn.Linear(12, 5)})

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head["fc"](self.head["norm"](self.body(x)))
        return logits


class Afterthought(nn.Module):
    """A network that changes what its last layer says."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), dim=-1)


class Pair(nn.Module):
    """Two layers of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(functional.relu(self.fc1(x)))
        return logits


class FunctionalDropout(nn.Module):
    """A network that drops values without a layer to swap."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always
        self.fc1, self.fc2 = nn.Linear(6, 50), nn.Linear(50, 5)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(functional.dropout(self.fc1(x), training=self.always or self.training))
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


class Slow(nn.Module):
    """A layer during which other threads get their turn."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.001)
        return x


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

    def test_features_enter_the_classifier(self) -> None:
        module, x = Pair(), vectors()
        seen: list[Tensor] = []
        module.fc2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        expected = module(x)
        model = Model(Pair(), classifier="fc2")
        params = {
            "extractor": {f"fc1.{name}": p.detach() for name, p in module.fc1.named_parameters()},
            "classifier": {name: p.detach() for name, p in module.fc2.named_parameters()},
            "buffers": {},
        }
        z, _ = model.features(params, x)
        torch.testing.assert_close(z, seen[0])
        torch.testing.assert_close(model.classify(params, z), expected)

    def test_parameters_keep_their_names_and_values(self) -> None:
        module = Nested()
        params = Model(module, classifier="head.fc").init_params()
        assert list(params) == ["extractor", "classifier", "buffers"]
        assert list(params["classifier"]) == ["weight", "bias"]
        assert set(params["buffers"]) == {"body.1.running_mean", "body.1.running_var"}
        state = module.state_dict()
        assert set(as_state(params, "head.fc")) == {n for n in state if not n.endswith("num_batches_tracked")}
        for name, tensor in as_state(params, "head.fc").items():
            assert torch.equal(tensor, state[name]), name

    def test_modes(self) -> None:
        module = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 5))
        model, x = Model(module, classifier="2"), vectors()
        params = model.init_params()
        with sample_context(a_batch(x)):
            trained, _ = model.features(params, x, train=True)
        evaluated, _ = model.features(params, x)
        assert float((trained == 0).float().mean()) > 0.2
        torch.testing.assert_close(evaluated, module[0](x))

    def test_training_returns_new_buffers_and_leaves_the_old(self) -> None:
        model, x = Model(Nested(), classifier="head.fc"), images(8)
        params = model.init_params()
        before = {name: tensor.clone() for name, tensor in params["buffers"].items()}
        with sample_context(a_batch(x)):
            _, buffers = model.features(params, x, train=True)
        assert list(buffers) == list(before)
        for name, tensor in before.items():
            assert torch.equal(params["buffers"][name], tensor)
            assert not torch.equal(buffers[name], tensor)
        _, kept = model.features(params, x)
        assert all(torch.equal(kept[name], tensor) for name, tensor in before.items())

    def test_a_layer_that_counts_in_place_stays_inside_its_copy(self) -> None:
        class Counter(nn.Module):
            calls: Tensor

            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x: Tensor) -> Tensor:
                self.calls += 1
                return x

        model = Model(nn.Sequential(Counter(), nn.Linear(6, 5)), classifier="1")
        params = model.init_params()
        with sample_context(a_batch(vectors())):
            _, once = model.features(params, vectors(), train=True)
            _, twice = model.features({**params, "buffers": once}, vectors(), train=True)
        assert [float(b["0.calls"]) for b in (params["buffers"], once, twice)] == [0.0, 1.0, 2.0]

    @pytest.mark.parametrize("plain", [True, False])
    def test_layers_that_share_a_weight_keep_sharing_it(self, plain: bool) -> None:
        module, x = Tied(), vectors()
        model = Model(module, classifier="last")
        params = moved(model.init_params())
        state = as_state(params, "last")
        torch.testing.assert_close(model.logits(params, x), functional_call(module, state, (x,)))

        def loss(variables: Tree) -> tuple[Tensor, Tree]:
            return model.logits({**params, **variables}, x).square().sum(), {}

        expected = torch.func.grad(lambda s: functional_call(module, s, (x,)).square().sum())(state)
        if plain:
            with unmapped():
                found, _ = gradient(loss, {"extractor": params["extractor"]})
        else:
            found, _ = gradient(loss, {"extractor": params["extractor"]})
        torch.testing.assert_close(found["extractor"]["first.weight"], expected["first.weight"])

    def test_the_users_module_is_never_changed(self) -> None:
        module, x = Nested().train(), images(8)
        module.body.append(nn.Dropout(0.5))
        before = copy.deepcopy(module.state_dict())
        layers = list(module.named_modules())
        gradients = [p.requires_grad for p in module.parameters()]
        model = Model(module, classifier="head.fc")
        model.check(x, 5)
        params = model.init_params()
        with sample_context(a_batch(x)):
            model.features(params, x, train=True)
        model.logits(moved(params), x)
        after = list(module.named_modules())
        assert [name for name, _ in after] == [name for name, _ in layers]
        assert all(a is b for (_, a), (_, b) in zip(after, layers, strict=True))
        assert all(layer.training for _, layer in after)
        assert [p.requires_grad for p in module.parameters()] == gradients
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, before[name]), name

    def test_doctest(self) -> None:
        result = doctest.testmod(fedmate.core.model)
        assert result.attempted > 0
        assert result.failed == 0


class TestThreads:
    def test_two_threads_get_what_one_gets(self) -> None:
        module = nn.Sequential(nn.Linear(6, 8), Slow(), nn.BatchNorm1d(8), Slow(), nn.Tanh(), nn.Linear(8, 5)).double()
        model, x = Model(module, classifier="5"), vectors(16).double()
        params = [tree_map(lambda leaf, i=i: leaf + 0.3 * i, model.init_params()) for i in range(2)]
        barrier = Barrier(2)

        def loss(variables: Tree) -> tuple[Tensor, Tree]:
            z, buffers = model.features(variables, x, train=True)
            return model.classify(variables, z).square().sum(), buffers

        def work(i: int) -> list[tuple[Tree, Tree]]:
            barrier.wait(timeout=30)
            with sample_context(a_batch(x)):
                return [gradient(loss, params[i]) for _ in range(10)]

        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(work, range(2)))
        for i in range(2):
            with sample_context(a_batch(x)):
                expected = gradient(loss, params[i])
            for found in together[i]:
                for mine, other in zip(found, expected, strict=True):
                    for name, tensor in flatten(other).items():
                        assert torch.equal(flatten(mine)[name], tensor), name


class TestRefusals:
    @pytest.mark.parametrize("name", ["fc3", "", "fc2.weight", "fc2.inner"])
    def test_a_name_that_is_no_layer(self, name: str) -> None:
        with pytest.raises(UserError) as error:
            Model(Pair(), classifier=name)
        assert str(error.value) == (
            f"`classifier` is `{name}`, which names no layer of the module; it has `fc1`, `fc2`."
        )

    def test_a_layer_without_parameters(self) -> None:
        module = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
        with pytest.raises(UserError) as error:
            Model(module, classifier="1")
        assert str(error.value) == ("`classifier` is `1`, which has no parameters; name the last layer that has.")

    def test_a_classifier_with_batch_norm(self) -> None:
        module = nn.Sequential(nn.Linear(6, 5), nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 5)))
        with pytest.raises(UserError) as error:
            Model(module, classifier="1")
        assert str(error.value) == (
            "`classifier` is `1`, which holds BatchNorm, dropout or buffers; name the last layer alone."
        )

    @pytest.mark.parametrize("classifier", ["fc1", "fc2"])
    def test_a_layer_that_is_not_the_last(self, classifier: str) -> None:
        module = Afterthought()
        with pytest.raises(UserError) as error:
            Model(module, classifier=classifier).check(vectors(), 6)
        assert str(error.value) == (
            "`classifier` must name the layer whose output is the module's output; it is not the last."
        )

    @pytest.mark.parametrize("classifier", ["fc1", "fc2"])
    def test_samples_the_module_cannot_read(self, classifier: str) -> None:
        """The module itself fails: whether the classifier is well chosen cannot be known."""
        with pytest.raises(UserError) as error:
            Model(Pair(), classifier=classifier).check(torch.zeros(4, 8), 5)
        assert str(error.value) == (
            "`model` cannot read samples of shape (8,): mat1 and mat2 shapes cannot be multiplied (4x8 and 6x4); give "
            "a network that reads [4, 8] for 4 samples, or samples of the shape it reads."
        )

    @pytest.mark.parametrize(
        ("scale", "dtype", "found"),
        [
            (float("inf"), torch.float32, "are too large for float32"),
            (3e38, torch.float32, "reach 3e+38 in float32"),
            (1.5e308, torch.float64, "reach 1.5e+308 in float64"),
        ],
    )
    @pytest.mark.parametrize("classifier", ["0", "1"])
    def test_numbers_without_an_end(self, classifier: str, scale: float, dtype: torch.dtype, found: str) -> None:
        layers = nn.Linear(6, 5), nn.Linear(5, 5)
        for layer in layers:
            nn.init.ones_(layer.weight)
        module = nn.Sequential(*layers).to(dtype)
        with pytest.raises(UserError) as error:
            Model(module, classifier=classifier).check(torch.full((4, 6), scale, dtype=dtype), 5)
        assert str(error.value) == (
            f"`model` computes numbers that are not finite from samples that {found}; bring the samples to a scale "
            "near 1, or check the weights it starts from."
        )

    @pytest.mark.parametrize("classes", [4, 6])
    def test_the_wrong_number_of_classes(self, classes: int) -> None:
        module = Pair()
        with pytest.raises(UserError) as error:
            Model(module, classifier="fc2").check(vectors(), classes)
        assert str(error.value) == (
            "`model` answers 4 samples with shape (4, 5); its classifier must give one logit for each of the "
            f"{classes} classes."
        )

    @pytest.mark.parametrize("always", [False, True])
    def test_functional_dropout(self, always: bool) -> None:
        module = FunctionalDropout(always)
        with pytest.raises(UserError) as error:
            Model(module, classifier="fc2").check(vectors(), 5)
        assert str(error.value) == (
            "`model` draws random numbers in its own `forward`, which would make results depend on the order of "
            "clients; use `nn.Dropout` layers instead of the functional form."
        )

    def test_checking_leaves_torchs_generator_alone(self) -> None:
        module = Pair()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            expected = torch.rand(3)
            torch.manual_seed(3)
            Model(module, classifier="fc2").check(vectors(), 5)
            assert torch.equal(torch.rand(3), expected)


def test_frozen_parameters_are_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    module[0].bias.requires_grad_(False)
    with pytest.raises(UserError, match=r"`0\.bias` has `requires_grad=False`"):
        Model(module, classifier="1")

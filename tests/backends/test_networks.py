"""A faster network is used only where it computes the same, and says so where it does not."""

from __future__ import annotations

import pytest
import torch
from tests.backends.plain_kernels import PlainKernels
from torch import Tensor, nn
from torch.testing import assert_close

from fedmate.backends.blocks import Block, Gradients, Kernels, Pooled
from fedmate.backends.networks import accelerate, computed_with, has_blocks
from fedmate.backends.precision import arithmetic
from fedmate.core import ClientData, Federation, Model, Setup, Training, client_data
from fedmate.methods import METHODS


def model(module: nn.Module | None = None) -> Model:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3), nn.Linear(3, 2))
    return Model(module or nn.Sequential(*layers), classifier="5")


@pytest.fixture
def data() -> ClientData:
    torch.manual_seed(1)
    return client_data(torch.randn(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64))


class CountingKernels(Kernels):
    """Count how often they are asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __deepcopy__(self, memo: object) -> CountingKernels:
        return self

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        self.asked += 1
        return PlainKernels().forward(x, weight, bias, block)

    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        return PlainKernels().backward(grad, weight, pooled, block, wants_x=wants_x)


class WrongKernels(CountingKernels):
    """Lose half of the gradient of the weights."""

    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        found = super().backward(grad, weight, pooled, block, wants_x=wants_x)
        return found._replace(weight=found.weight / 2)


class FailingKernels(CountingKernels):
    """Do not compile."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        raise RuntimeError("out of resource: shared memory\nmore")


def test_a_network_with_blocks_runs_through_the_kernels(data: ClientData) -> None:
    kernels = CountingKernels()
    plain = model()
    faster = computed_with(plain, kernels, data, "tf32", pytest.fail)
    asked = kernels.asked
    params = faster.init_params()
    assert_close(faster.logits(params, data.x), plain.logits(params, data.x))
    assert kernels.asked == asked + 1


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [(WrongKernels(), "its gradients differ by "), (FailingKernels(), "out of resource: shared memory)")],
)
def test_kernels_that_give_something_else_are_not_used(kernels: CountingKernels, reason: str, data: ClientData) -> None:
    said: list[str] = []
    plain = model()
    faster = computed_with(plain, kernels, data, "tf32", said.append)
    asked = kernels.asked
    assert_close(faster.logits(plain.init_params(), data.x), plain.logits(plain.init_params(), data.x), rtol=0, atol=0)
    assert kernels.asked == asked
    assert len(said) == 1
    assert reason in said[0]


def test_a_cpu_fuses_blocks_and_rounds_nothing(data: ClientData) -> None:
    method = METHODS["fedavg"](setup=Setup(model(), 2, 1, Training()))
    accelerated = accelerate(method, Federation((data,), data, 2), "bf16", pytest.fail)
    assert has_blocks(accelerated.setup.model)
    faster, plain = accelerated.setup.model, method.setup.model
    params = plain.init_params()
    assert_close(faster.logits(params, data.x), plain.logits(params, data.x), rtol=1e-5, atol=1e-6)


def test_settings_of_a_gpu_hold_inside_and_are_put_back() -> None:
    settings = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [setting.fp32_precision for setting in settings]
    seen = []

    def stop(precision: str) -> None:
        with arithmetic(precision, torch.device("cuda")):  # type: ignore[arg-type]
            seen.append([setting.fp32_precision for setting in settings])
            raise KeyError

    for precision in ("strict", "tf32", "bf16"):
        with pytest.raises(KeyError):
            stop(precision)
        assert [setting.fp32_precision for setting in settings] == before
    assert seen == [["ieee"] * 2, ["tf32"] * 2, ["tf32"] * 2]

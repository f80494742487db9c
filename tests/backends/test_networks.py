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


def model() -> Model:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3), nn.Linear(3, 2))
    return Model(nn.Sequential(*layers), classifier="5")


@pytest.fixture
def data() -> ClientData:
    torch.manual_seed(1)
    return client_data(torch.randn(6, 1, 8, 8), torch.zeros(6, dtype=torch.int64))


class WrongKernels(Kernels):
    """Lose half of the gradient of the weights."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        return PlainKernels().forward(x, weight, bias, block)

    def backward(self, grad: Tensor, weight: Tensor, pooled: Pooled, block: Block, *, wants_x: bool) -> Gradients:
        found = PlainKernels().backward(grad, weight, pooled, block, wants_x=wants_x)
        return found._replace(weight=found.weight / 2)


class FailingKernels(WrongKernels):
    """Do not compile."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor, block: Block) -> Pooled:
        raise RuntimeError("out of resource: shared memory\nmore")


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [(WrongKernels(), "its gradients differ by "), (FailingKernels(), "out of resource: shared memory)")],
)
def test_kernels_that_give_something_else_are_not_used(kernels: Kernels, reason: str, data: ClientData) -> None:
    said: list[str] = []
    plain = model()
    assert computed_with(plain, kernels, data, "tf32", said.append) is plain
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

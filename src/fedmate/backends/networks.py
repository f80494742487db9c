"""How a network is computed for many clients at once: through fused blocks where it has them, in a precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor

from fedmate.backends.blocks import GroupedKernels, Kernels, PooledConvolution, fuse
from fedmate.backends.precision import Precision, arithmetic
from fedmate.core import Batch, ClientData, Federation, Method, Model, Tree, gradient, leaves, make_key
from fedmate.core.layers import sample_context

LIKENESS = {"strict": 1e-3, "tf32": 0.05, "bf16": 0.2}
"""How far gradients may lie from the network's own, relative to their length: rounding lets other pixels win pools."""
SAMPLES = 32


def accelerate(method: Method, federation: Federation, precision: Precision, say: Callable[[str], None]) -> Method:
    """Return the method with its network computed as the device of the federation likes it for many clients at once.

    Args:
        method: what is run.
        federation: whose samples a faster network is tried on, and left alone if it differs.
        precision: of products on a GPU.
        say: hears why a network could have been faster and is not.
    """
    model, device = method.setup.model, federation.test.y.device
    if device.type == "cpu":
        kernels: Kernels | None = GroupedKernels()
        precision = "strict"
    elif precision == "strict" or next(leaves(model.init_params())).dtype != torch.float32:
        # On tensor cores our kernels are faster than cuDNN, without them slower: docs/performance.md.
        kernels = None
    else:
        kernels = _triton_kernels(say)
    data = federation.clients[0].map(lambda leaf: leaf[:SAMPLES])
    faster = computed_with(model, kernels, data, precision, say)
    return replace(method, setup=replace(method.setup, model=faster))


def computed_with(
    model: Model, kernels: Kernels | None, data: ClientData, precision: Precision, say: Callable[[str], None]
) -> Model:
    """Return a model that computes its blocks with `kernels`, unless it has none or they give something else."""
    autocast = torch.bfloat16 if precision == "bf16" else None
    # An extractor that is frozen has no gradients to be held against each other.
    kernels = kernels if model.extractor_size else None
    if kernels is not None and has_blocks(model.computed_by(lambda network: fuse(network, kernels))):
        faster = model.computed_by(lambda network: fuse(network, kernels, precision), autocast)
        reason = _difference(model, faster, data, precision)
        if reason is None:
            return faster
        say(f"this network runs layer by layer, not through fused kernels ({reason}).")
    return model if autocast is None else model.computed_by(lambda network: network, autocast)


def _triton_kernels(say: Callable[[str], None]) -> Kernels | None:
    """Return the kernels if their compiler is there; it comes with torch for CUDA."""
    if find_spec("triton") is None:
        say("triton is not installed: convolutions run through cuDNN, which takes several times as long.")
        return None
    from fedmate.backends.block_kernels import TritonKernels

    return TritonKernels()


def has_blocks(model: Model) -> bool:
    """Tell whether blocks of a model are fused."""
    return any(isinstance(part, PooledConvolution) for part in model.extractor_modules)


def _difference(model: Model, faster: Model, data: ClientData, precision: Precision) -> str | None:
    """Say why a network that should compute the same as another does not, or return `None`."""
    with arithmetic("strict", data.y.device):
        expected = _slopes(model, data)
    try:
        found = _slopes(faster, data)
    except Exception as error:
        # Compiling or running a kernel can raise anything for sizes that were never tried.
        return (str(error).strip() or repr(error)).splitlines()[0]
    pairs = zip(found, expected, strict=True)
    distance = max(float((one - other).norm() / other.norm().clamp(min=1e-12)) for one, other in pairs)
    return None if distance <= LIKENESS[precision] else f"its gradients differ by {distance:.1e} of their length"


def _slopes(model: Model, data: ClientData) -> list[Tensor]:
    """Return the gradients of the mean square of a few samples' features, in evaluation and in training."""
    params, slopes = model.init_params(), []
    ids, key = torch.arange(len(data.y), device=data.y.device), make_key(0, data.y.device)
    for train in (False, True):

        def size(variables: Tree, train: bool = train) -> tuple[Tensor, Tree]:
            z = model.features({**params, "extractor": variables}, data.x, train=train)[0]
            return z.square().mean(), {}

        with sample_context(Batch(data.x, data.y, data.mask, ids, key)):
            slope, _ = gradient(size, params["extractor"])
        slopes.append(torch.cat([leaf.flatten() for leaf in leaves(slope)]))
    return slopes

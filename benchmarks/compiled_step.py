"""Whether `torch.compile` pays: one training step of all clients, in four ways, each replayed as a CUDA graph.

Claim: on networks whose convolutions are fused (`backends/blocks.py`) compiling the step gains little or nothing over
capturing it, and costs many seconds for each shape; where nothing is fused it gains less than fusing does.
Hardware: one NVIDIA H200, torch 2.11. 20 clients (8 for ResNet-18), batch 50, TF32, SGD with momentum, after warm-up,
best of 5 times 20 steps.

    python benchmarks/compiled_step.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedmate.backends.block_kernels import TritonKernels
from fedmate.backends.blocks import fuse
from fedmate.backends.precision import arithmetic
from fedmate.core import Model, Tree, cross_entropy, tree_map
from fedmate.models import MODELS

CASES = (("cifar_cnn", 20), ("cifar100_cnn", 20), ("mlp", 20), ("resnet18", 8))
BATCH, CLASSES, STEPS = 50, 10, 20

Step = Callable[[Tree, Tree, Tensor, Tensor], tuple[Tree, Tree]]


def make_step(model: Model) -> Step:
    """Return one step of SGD of one client, on every parameter."""

    def step(params: Tree, velocity: Tree, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        def loss(variables: Tree) -> Tensor:
            z, _ = model.features({**params, **variables}, x, train=True)
            return cross_entropy(model.classify(variables, z), y, torch.ones_like(y, dtype=torch.bool))

        gradients = grad(loss)({part: params[part] for part in velocity})
        velocity = tree_map(lambda v, g: 0.5 * v + g, velocity, gradients)
        moved = tree_map(lambda p, v: p - 0.02 * v, {part: params[part] for part in velocity}, velocity)
        return {**params, **moved}, velocity

    return step


def milliseconds(step: Step, model: Model, clients: int) -> tuple[float, float]:
    """Return the time of a captured step, and the seconds until it was ready."""
    start = time.perf_counter()
    params = tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), model.init_params())
    velocity = tree_map(torch.zeros_like, {part: params[part] for part in ("extractor", "classifier")})
    x = torch.randn(clients, BATCH, 3, 32, 32, device="cuda")
    y = torch.randint(CLASSES, (clients, BATCH), device="cuda")
    for _ in range(3):
        step(params, velocity, x, y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(params, velocity, x, y)
    torch.cuda.synchronize()
    ready, taken = time.perf_counter() - start, []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(STEPS):
            graph.replay()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return 1e3 * min(taken) / STEPS, ready


def main() -> None:
    """Print a row per network and way."""
    print(torch.__version__, torch.cuda.get_device_name())
    print("| network | clients | fused | compiled | ms a step | ready after, s |\n|---|---|---|---|---|---|")
    for name, clients in CASES:
        torch.manual_seed(0)
        plain = Model(MODELS[name]().build((3, 32, 32), CLASSES).cuda(), classifier=MODELS[name]().classifier)
        for fused in (False, True):
            model = plain.computed_by(lambda network: fuse(network, TritonKernels(), "tf32")) if fused else plain
            if fused and not name.endswith("cnn"):
                continue
            for compiled in (False, True):
                step: Step = vmap(make_step(model))
                with torch.no_grad(), arithmetic("tf32", torch.device("cuda")):
                    try:
                        taken, ready = milliseconds(torch.compile(step) if compiled else step, model, clients)
                        result = f"{taken:.2f} | {ready:.0f}"
                    except Exception as error:
                        result = f"{type(error).__name__}: {str(error).splitlines()[0][:80]} | -"
                print(f"| {name} | {clients} | {fused} | {compiled} | {result} |", flush=True)


if __name__ == "__main__":
    main()

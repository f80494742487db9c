"""FedAvg in JAX: a whole round, `jit(vmap(scan))`, is one program.

The network is rebuilt from the layers of ours and starts from the same parameters; samples lie on the device as bytes.
JAX is loaded only when a case is run.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias, final

from torch import Tensor, nn

from benchmarks.case import Case, make_federation, make_method
from benchmarks.measure import Runner, Timing, time_rounds
from fedmate.core import Source, Training

Array: TypeAlias = Any
Params: TypeAlias = list[dict[str, Array]]

PRECISION = {"strict": "highest", "tf32": "tensorfloat32", "bf16": "bfloat16"}
"""Names of precisions in JAX."""


@final
class JaxRound(Runner):
    """A round of FedAvg as one compiled program."""

    name = "jax"

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        # Otherwise JAX reserves most of a GPU's memory at once, which hides what it needs.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp

        # JAX prefers a GPU, even for a case on the CPU.
        kind = "cpu" if case.device == "cpu" else "gpu"
        number = int(case.device.partition(":")[2] or 0)
        self._jax_device = jax.devices(kind)[number]
        setup = make_method(case).setup
        module = setup.model.to_module(setup.model.init_params()).cpu()
        clients = make_federation(case).clients
        self._layers = list(module.children())
        self.server = jax.device_put(_params(self._layers), self._jax_device)
        x = jnp.stack([_array(data.source.samples[data.rows]) for data in clients])
        y = jnp.stack([_array(data.y) for data in clients])
        self._data = jax.device_put((x, y), self._jax_device)
        self._program = jax.jit(_round(self._layers, setup.training, clients[0].source, case.augment))
        self._precision = PRECISION[case.precision]

    def run_round(self, number: int) -> None:
        """Run a round."""
        import jax

        with jax.default_matmul_precision(self._precision), jax.default_device(self._jax_device):
            self.server = self._program(self.server, *self._data, jax.random.key(number))

    def wait(self) -> None:
        """Wait for the device."""
        import jax

        jax.block_until_ready(self.server)

    def peak_bytes(self) -> int | None:
        """Return the peak memory of JAX on a GPU, of the process on a CPU."""
        used: dict[str, int] | None = self._jax_device.memory_stats()
        return used["peak_bytes_in_use"] if used else super().peak_bytes()


def _array(tensor: Tensor) -> Array:
    import jax.numpy as jnp

    return jnp.asarray(tensor.detach().cpu().numpy())


def _params(layers: list[nn.Module]) -> Params:
    """Return the parameters of each layer, by name."""
    return [{name: _array(parameter) for name, parameter in layer.named_parameters()} for layer in layers]


def _apply(layers: list[nn.Module], params: Params, x: Array) -> Array:
    """Return the logits of a batch."""
    for layer, own in zip(layers, params, strict=True):
        x = _apply_layer(layer, own, x)
    return x


def _apply_layer(layer: nn.Module, own: dict[str, Array], x: Array) -> Array:
    import jax
    import jax.numpy as jnp

    match layer:
        case nn.Conv2d():
            assert not isinstance(layer.padding, str)
            padding = [(side, side) for side in layer.padding]
            found = jax.lax.conv_general_dilated(x, own["weight"], layer.stride, padding)
            return found + own["bias"][:, None, None]
        case nn.MaxPool2d():
            window = (1, 1, layer.kernel_size, layer.kernel_size)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
        case nn.Linear():
            return x @ own["weight"].T + own["bias"]
        case nn.LeakyReLU():
            return jnp.where(x > 0, x, layer.negative_slope * x)
        case nn.ReLU():
            return jnp.maximum(x, 0)
        case nn.Flatten():
            return x.reshape(len(x), -1)
    raise NotImplementedError(type(layer).__name__)


def _round(layers: list[nn.Module], training: Training, source: Source, augment: bool) -> Any:
    """Return a function from parameters, samples, labels and a key to the next parameters."""
    import jax
    import jax.numpy as jnp

    mean, std = _array(source.mean), _array(source.std)

    def loss(params: Params, x: Array, y: Array) -> Array:
        scores = jax.nn.log_softmax(_apply(layers, params, (x.astype(mean.dtype) - mean) / std))
        return -jnp.take_along_axis(scores, y[:, None], axis=1).mean()

    def move(velocity: Array, gradient: Array, parameter: Array) -> Array:
        return training.momentum * velocity + gradient + training.weight_decay * parameter

    def train(params: Params, x: Array, y: Array, key: Array) -> Params:
        def step(state: tuple[Params, Params], given: tuple[Array, Array]) -> tuple[tuple[Params, Params], None]:
            (params, velocity), (ids, key) = state, given
            images = _augment(x[ids], key, source.augmentation.crop) if augment else x[ids]
            gradients = jax.grad(loss)(params, images, y[ids])
            velocity = jax.tree.map(move, velocity, gradients, params)
            params = jax.tree.map(lambda p, v: p - training.learning_rate * v, params, velocity)
            return (params, velocity), None

        size = min(training.batch_size, len(y))
        whole = len(y) // size

        def epoch(state: tuple[Params, Params], key: Array) -> tuple[tuple[Params, Params], None]:
            order, keys = jax.random.permutation(key, len(y)), jax.random.split(key, whole + 1)
            state, _ = jax.lax.scan(step, state, (order[: whole * size].reshape(whole, size), keys[:whole]))
            if whole * size < len(y):
                state, _ = step(state, (order[whole * size :], keys[whole]))
            return state, None

        start = (params, jax.tree.map(jnp.zeros_like, params))
        (params, _), _ = jax.lax.scan(epoch, start, jax.random.split(key, training.epochs))
        return params

    def run(server: Params, x: Array, y: Array, key: Array) -> Params:
        trained = jax.vmap(train, (None, 0, 0, 0))(server, x, y, jax.random.split(key, len(y)))
        # Clients hold equally many samples.
        mean: Params = jax.tree.map(lambda leaf: leaf.mean(0), trained)
        return mean

    return run


def _augment(images: Array, key: Array, margin: int) -> Array:
    """Crop and flip images at random."""
    import jax
    import jax.numpy as jnp

    padded = jnp.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    moving, flipping = jax.random.split(key)
    offsets = jax.random.randint(moving, (len(images), 2), 0, 2 * margin + 1)
    flips = jax.random.bernoulli(flipping, 0.5, (len(images),))

    def cut(image: Array, offset: Array, flip: Array) -> Array:
        part = jax.lax.dynamic_slice(image, (0, offset[0], offset[1]), images.shape[1:])
        return jnp.where(flip, part[..., ::-1], part)

    return jax.vmap(cut)(padded, offsets, flips)


def measure(case: Case, repeat: int) -> Timing:
    """Time the rounds of a case."""
    return time_rounds(case, JaxRound, repeat)

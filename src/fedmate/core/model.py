"""A user's `nn.Module`, used as pure functions of its parameters."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedmate.core.data import Batch, client_data, pad
from fedmate.core.execution import is_unmapped, lay_out
from fedmate.core.layers import (
    BufferPolicy,
    KeyedDropout,
    MaskedBatchNorm,
    copied,
    drop_statistics,
    sample_context,
    swap_layers,
)
from fedmate.core.random import make_key
from fedmate.core.task import TASKS, Adjustment, Instances, Task, adjusted
from fedmate.core.tree import Tree
from fedmate.errors import UserError, first_line

MODEL_PARTS = ("extractor", "classifier", "buffers")
"""The parts of a model's parameters."""

SMALL = 4_000_000
"""Parameters of an extractor up to which images are laid out for it: its weights then have to be, in every pass."""


@final
class Model:
    """A network split into a feature extractor and a classifier, both without state of their own.

    Parameters are a tree `{"extractor", "classifier", "buffers"}`; inside, tensors carry the names the module gives
    them. `buffers` holds what layers change while they train: BatchNorm's running statistics. Parameters with
    `requires_grad=False` are frozen: they are in no tree, held once, and neither trained nor sent.

    Args:
        module: the whole network. It is copied, never changed.
        classifier: the name of its last layer, as in `module.get_submodule(name)`; everything before it is the
            extractor, and what enters it is the feature vector.
        buffers: what happens to buffers: `shared` travel with the extractor, `private` stay with the client,
            `dropped` means BatchNorm keeps no running statistics at all.
        task: what targets are and how they are learnt; classification unless given.

    Example:
        >>> module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> model = Model(module, classifier="2")
        >>> params = model.init_params()
        >>> list(params["classifier"]), model.logits(params, torch.zeros(5, 4)).shape
        (['weight', 'bias'], torch.Size([5, 2]))
    """

    def __init__(
        self, module: nn.Module, *, classifier: str, buffers: BufferPolicy = "shared", task: Task | None = None
    ) -> None:
        module = copy.deepcopy(module)
        network = swap_layers(copied(module), buffers)
        try:
            head = network.get_submodule(classifier) if classifier else None
        except AttributeError:
            head = None
        if head is None:
            named = ", ".join(f"`{name}`" for name, _ in network.named_modules() if name)
            raise UserError(f"`classifier` is `{classifier}`, which names no layer of the module; it has {named}.")
        parent, _, name = classifier.rpartition(".")
        setattr(network.get_submodule(parent), name, nn.Identity())
        self.buffer_policy: BufferPolicy = buffers
        self.task = task or TASKS["classification"]()
        self._original, self._classifier = module.eval(), classifier
        self._extractor, self._head = network, head
        self._initial = {
            "extractor": {name: p.detach() for name, p in network.named_parameters() if p.requires_grad},
            "classifier": {name: p.detach() for name, p in head.named_parameters()},
            "buffers": dict(network.named_buffers()),
        }
        if not self._initial["classifier"]:
            raise UserError(f"`classifier` is `{classifier}`, which has no parameters; name the last layer that has.")
        stateful = any(isinstance(layer, MaskedBatchNorm | KeyedDropout) for layer in head.modules())
        if stateful or any(True for _ in head.buffers()):
            raise UserError(
                f"`classifier` is `{classifier}`, which holds BatchNorm, dropout or buffers; name the last layer alone."
            )
        self._frozen = {name: p.detach() for name, p in network.named_parameters() if not p.requires_grad}
        if not all(p.requires_grad for p in head.parameters()):
            raise UserError(f"`classifier` is `{classifier}`, which has `requires_grad=False`; set it to true.")
        if {id(p) for p in network.parameters()} & {id(p) for p in head.parameters()}:
            raise UserError(f"`classifier` is `{classifier}`, which shares weights with the extractor; untie them.")
        # functional_call looks for tied weights only if told to: it takes time in every step.
        self._tied = len([*network.named_parameters(remove_duplicate=False)]) > len([*network.named_parameters()])
        self._autocast: torch.dtype | None = None
        norms = {name: layer for name, layer in network.named_modules() if isinstance(layer, MaskedBatchNorm)}
        self.batch_norms = frozenset(norms)
        # Without statistics features depend on what else is in the batch, in evaluation too.
        self.reads_batches = any(layer.running_mean is None for layer in norms.values())
        self._is_small = self.extractor_size + sum(t.numel() for t in self._frozen.values()) <= SMALL
        # A classifier of feature maps is a convolution, whose weights have as many axes more.
        self._spread = head.weight.dim() - 2 if isinstance(head, nn.Conv1d | nn.Conv2d) else 0
        self._reads_channels_last: bool | None = None
        self._local = threading.local()

    def init_params(self) -> Tree:
        """Return a copy of the parameters the module came with."""
        return {part: {name: t.clone() for name, t in tensors.items()} for part, tensors in self._initial.items()}

    def starting_from(self, params: Tree) -> Model:
        """Return this model with other initial parameters, and other `frozen` ones if there are such."""
        other = copy.copy(self)
        other._initial = {part: dict(params[part]) for part in MODEL_PARTS}
        other._frozen = dict(params.get("frozen", self._frozen))
        return other

    def computed_by(self, change: Callable[[nn.Module], nn.Module], autocast: torch.dtype | None = None) -> Model:
        """Return this model with its extractor computed in another way.

        Args:
            change: returns a module that computes the same with the same parameters under the same names.
            autocast: to which type products round their factors; their results keep the type of the input.
        """
        other = copy.copy(self)
        other._extractor, other._autocast, other._local = change(self._extractor), autocast, threading.local()
        return other

    def with_classifier(self, *layers: nn.Module) -> Model:
        """Return this model with other last layers: the very last is its classifier, the extractor has the rest."""
        module = self.to_module(self.init_params())
        parent, _, name = self._classifier.rpartition(".")
        like = next(iter(self._initial["classifier"].values()))
        setattr(module.get_submodule(parent), name, nn.Sequential(*layers).to(like))
        last = f"{self._classifier}.{len(layers) - 1}"
        return Model(module, classifier=last, buffers=self.buffer_policy, task=self.task)

    def to_module(self, params: Tree) -> nn.Module:
        """Return the module as the user wrote it, with these parameters, in evaluation mode."""
        module = copy.deepcopy(self._original)
        tensors = {**self._frozen, **params["extractor"], **params["buffers"]}
        tensors |= {f"{self._classifier}.{name}": t for name, t in params["classifier"].items()}
        if self.buffer_policy == "dropped":
            drop_statistics(module)
        with torch.no_grad():
            for name, target in (*module.named_parameters(), *module.named_buffers()):
                # Layers count batches in a buffer of their own, which nothing reads.
                if name in tensors:
                    target.copy_(tensors[name])
        return module

    @property
    def frozen(self) -> Tree:
        """The parameters that nobody trains: the part `frozen`, or nothing."""
        return {"frozen": dict(self._frozen)} if self._frozen else {}

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names of its tensors, by part."""
        return {part: tuple(tensors) for part, tensors in self._initial.items()}

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained, extractor and classifier together."""
        return sum(t.numel() for part in ("extractor", "classifier") for t in self._initial[part].values())

    @property
    def extractor_size(self) -> int:
        """How many numbers the extractor has."""
        return sum(t.numel() for t in self._initial["extractor"].values())

    @property
    def extractor_layers(self) -> list[str]:
        """The names of the extractor's layers that have parameters, in the module's order."""
        return list(dict.fromkeys(name.rpartition(".")[0] for name in self._initial["extractor"]))

    @property
    def extractor_modules(self) -> list[nn.Module]:
        """The modules that compute features."""
        return list(self._extractor.modules())

    @property
    def width(self) -> int:
        """The length of a feature vector (K)."""
        if "weight" not in self._initial["classifier"]:
            raise UserError(
                "`classifier` must be a single linear layer, for this method works on the features before it; name the "
                "last layer alone."
            )
        return self._initial["classifier"]["weight"].shape[1]

    @property
    def shared_buffers(self) -> tuple[str, ...]:
        """The part of a message that carries buffers: `("buffers",)`, or nothing when none are shared."""
        return ("buffers",) if self._initial["buffers"] and self.buffer_policy != "private" else ()

    def features(self, params: Tree, x: Tensor, *, train: bool = False) -> tuple[Tensor, Tree]:
        """Return the features of `x`, `[samples, width]` or maps of them, and the buffers after this pass."""
        # functional_call writes rebound buffers back into the dictionary it is given; clones keep a layer that
        # updates in place from reaching into the caller's tree.
        buffers = {name: b.clone() for name, b in params["buffers"].items()} if train else params["buffers"]
        tensors = {**self._frozen, **params["extractor"], **buffers}
        z = self._call(self._skeletons()[train][0], tensors, self._laid_out(x), tied=self._tied)
        return z, {name: tensors[name].detach() for name in buffers} if train else buffers

    def _laid_out(self, x: Tensor) -> Tensor:
        """Return images as this network reads them fastest, of the layouts that it can read."""
        if x.dim() != 4 or not is_unmapped():
            return x
        if self._reads_channels_last is None:
            self._reads_channels_last = self._is_small and self._try_channels_last(x[:2])
        return lay_out(x, x.dtype) if self._reads_channels_last else x.contiguous()

    def _try_channels_last(self, x: Tensor) -> bool:
        """Tell whether the network takes images laid out so: a `view` in its `forward` does not."""
        params, ids = self.init_params(), torch.arange(len(x), device=x.device)
        batch = Batch(x, ids, torch.ones_like(ids, dtype=torch.bool), ids, make_key(0, x.device))
        for train in (False, True):
            buffers = {name: b.clone() for name, b in params["buffers"].items()}
            tensors = {**self._frozen, **params["extractor"], **buffers}
            with torch.no_grad(), sample_context(batch):
                try:
                    self._call(self._skeletons()[train][0], tensors, lay_out(x, x.dtype), tied=self._tied)
                except RuntimeError:
                    return False
        return True

    def classify(self, params: Tree, z: Tensor) -> Tensor:
        """Return the logits of features `z`. A convolution, too, answers for single feature vectors `[rows, width]`."""
        head, spread = self._skeletons()[False][1], self._spread if z.dim() == 2 else 0
        logits = self._call(head, params["classifier"], z.reshape(*z.shape, *[1] * spread), tied=False)
        return logits.flatten(1) if spread else logits

    def loss(
        self, params: Tree, z: Tensor, y: Tensor, mask: Tensor | None, adjustment: Adjustment | None = None
    ) -> Tensor:
        """Return the task's mean loss of features `z`, with what a client's class shares change in it."""
        logits, weights = adjustment or Adjustment()
        return self.task.loss(adjusted(self.classify(params, z), logits), y, mask, weights)

    def instances(self, z: Tensor, y: Tensor, mask: Tensor) -> Instances:
        """Return what the task tells apart one by one, each with a feature vector and a class."""
        return self.task.instances(z, y, mask)

    def logits(self, params: Tree, x: Tensor) -> Tensor:
        """Return the logits of `x`, in evaluation mode."""
        return self.classify(params, self.features(params, x)[0])

    def _call(self, module: nn.Module, tensors: dict[str, Tensor], x: Tensor, *, tied: bool) -> Tensor:
        if self._autocast is None:
            answer: Tensor = functional_call(module, tensors, (x,), tie_weights=tied)
            return answer
        # Cached casts would outlive a captured round.
        with torch.autocast(x.device.type, self._autocast, cache_enabled=False):
            answer = functional_call(module, tensors, (x,), tie_weights=tied)
        return answer.to(x.dtype)

    def _skeletons(self) -> dict[bool, tuple[nn.Module, nn.Module]]:
        """Return this thread's own modules: `functional_call` swaps tensors inside them, so sharing is a race."""
        made: dict[bool, tuple[nn.Module, nn.Module]] | None = getattr(self._local, "skeletons", None)
        if made is None:
            made = {
                train: (copied(self._extractor).train(train), copied(self._head).train(train))
                for train in (False, True)
            }
            self._local.skeletons = made
        return made

    def check(self, x: Tensor, num_classes: int) -> None:
        """Raise `UserError` unless this model computes what its module computes, on a few samples `x`."""
        params = self.init_params()
        expected = self._ask_module(params, x)
        not_last = "`classifier` must name the layer whose output is the module's output; it is not the last."
        try:
            self._check_no_hidden_randomness(params, x)
            with torch.no_grad():
                logits = self.logits(params, x)
        except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise UserError(f"{not_last} ({first_line(error)})") from error
        if logits.shape != self.task.answer_shape(x, num_classes):
            raise UserError(
                f"`model` answers {len(x)} samples with shape {tuple(logits.shape)}; its classifier must give one "
                f"logit for each of the {num_classes} classes."
            )
        # Without running statistics BatchNorm cannot answer as the module did.
        same = expected.shape == logits.shape and torch.allclose(logits, expected, rtol=1e-4, atol=1e-5)
        if self.buffer_policy != "dropped" and not same:
            raise UserError(not_last)

    def _ask_module(self, params: Tree, x: Tensor) -> Tensor:
        """Return what the user's own module says about `x`, or raise `UserError` about the module."""
        try:
            with torch.random.fork_rng(), torch.no_grad():
                answer = self.to_module(params)(x)
        except Exception as error:
            # A user's own `forward` can raise anything.
            raise UserError(
                f"`model` cannot read samples of shape {tuple(x.shape[1:])}: {first_line(error)}; give a network that "
                f"reads {[len(x), *x.shape[1:]]} for {len(x)} samples, or samples of the shape it reads."
            ) from error
        if not isinstance(answer, Tensor):
            raise UserError(f"`model` returns a {type(answer).__name__}; it must return a tensor of logits.")
        _check_finite(answer, x)
        return answer

    def mixes_samples(self, x: Tensor) -> bool:
        """Tell whether padded rows beside samples `x` change their features: some layer then mixes samples."""
        params = self.init_params()
        labels = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        plain = client_data(x, labels)
        outputs = []
        for data in (plain, pad(plain, 2 * len(x))):
            ids = torch.arange(len(data.y), device=x.device)
            batch = Batch(data.x, data.y, data.mask, ids, make_key(0, x.device))
            for train in (False, True):
                with torch.no_grad(), sample_context(batch):
                    z, buffers = self.features(params, data.x, train=train)
                outputs.append([z[: len(x)], *buffers.values()])
        alone, padded = outputs[0] + outputs[1], outputs[2] + outputs[3]
        return not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(alone, padded, strict=True))

    def _check_no_hidden_randomness(self, params: Tree, x: Tensor) -> None:
        ids = torch.arange(len(x), device=x.device)
        batch = Batch(x, ids, torch.ones_like(ids, dtype=torch.bool), ids, make_key(0, x.device))
        outputs = []
        for seed in (1, 2):
            with torch.random.fork_rng(), torch.no_grad(), sample_context(batch):
                torch.manual_seed(seed)
                outputs.append(self.features(params, x, train=True)[0])
        for z in outputs:
            _check_finite(z, x)
        if not torch.equal(*outputs):
            raise UserError(
                "`model` draws random numbers in its own `forward`, which would make results depend on the order of "
                "clients; use `nn.Dropout` layers instead of the functional form."
            )


def _check_finite(output: Tensor, x: Tensor) -> None:
    """Raise `UserError` about the scale of samples `x` if a network's output on them is not finite."""
    if torch.isfinite(output).all():
        return
    kind = str(x.dtype).removeprefix("torch.")
    reach = f"reach {float(x.abs().max()):.3g} in" if torch.isfinite(x).all() else "are too large for"
    raise UserError(
        f"`model` computes numbers that are not finite from samples that {reach} {kind}; bring the samples to a scale "
        "near 1, or check the weights it starts from."
    )

"""From an experiment to the objects that run it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedmate.backends import BACKENDS, Backend
from fedmate.core import MODEL_PARTS, Federation, Method, Model, Server, Setup, fold, make_key
from fedmate.core.shapes import count_flops
from fedmate.core.task import TASKS
from fedmate.core.tree import fit_to
from fedmate.data import Normalisation
from fedmate.errors import UserError
from fedmate.experiment.inputs import NO_INPUTS, ClientSplit, UserInputs, make_federation, split_samples
from fedmate.experiment.sections import Experiment, General
from fedmate.methods import METHODS
from fedmate.models import MODELS

VMAP_FLOPS_PER_STEP = 50_000_000
"""The largest step, in floating-point operations, for which a CPU maps over clients: docs/backends.md."""


@dataclass(frozen=True)
class Signature:
    """The shape of one sample, a name for each output, and the parameters' type.

    The normalisation is applied to raw samples before the network reads them.
    """

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    normalisation: Normalisation
    dtype: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "normalisation": self.normalisation._asdict()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Signature:
        """Undo `to_dict`; raise `ValueError`, `KeyError` or `TypeError` for anything else."""
        normalisation = values["normalisation"]
        return Signature(
            input_shape=tuple(int(size) for size in values["input_shape"]),
            class_names=tuple(str(name) for name in values["class_names"]),
            normalisation=Normalisation(*(tuple(map(float, normalisation[key])) for key in ("mean", "std"))),
            dtype=str(values["dtype"]),
        )


class Built(NamedTuple):
    """An experiment ready to run."""

    experiment: Experiment  # as declared, with back end and device decided
    method: Method  # with its setup
    federation: Federation  # on the device
    backend: Backend  # with every client in its initial state
    signature: Signature
    split: ClientSplit
    warnings: list[str]  # sentences that the user should read before the run begins


def build(experiment: Experiment, inputs: UserInputs = NO_INPUTS, initial: Mapping[str, Tensor] | None = None) -> Built:
    """Load and split the data, make the model and the method; raise `UserError` if they do not fit.

    Training starts from the parameters `initial`, by path, instead of the network's own.
    """
    inputs.check(experiment)
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    general = experiment.general
    split = split_samples(experiment, inputs)
    if split.at_sites and not inputs.is_deployed:
        raise UserError(
            "`dataset.name` is `sites`: the samples are at sites of their own; run the experiment with `flwr run` "
            "(docs/deploy.md)."
        )
    federation = make_federation(experiment, split)
    arrays = split.arrays
    signature = Signature(tuple(arrays.train.x.shape[1:]), arrays.class_names, arrays.normalisation, general.dtype)
    method = make_method(experiment, signature, inputs, initial)
    method.setup.model.check(federation.test.map(lambda leaf: leaf[:2]).x, federation.num_classes)
    warnings = [*arrays.notes, *_warnings(experiment, method, federation)]
    name = general.backend if general.backend != "auto" else decide_backend(method, federation)
    if BACKENDS[name].is_remote:
        check_min_clients(general, len(federation.clients))
        if federation.held_out_clients:
            raise UserError(
                f"`holdout_clients` is {general.holdout_clients}, which the back end `{name}` does not support; set it "
                "to 0, or use another back end."
            )
    reason = BACKENDS[name].refusal(method, federation, general.precision)
    if reason is not None:
        warnings.append(f"The back end `{name}` cannot run this model ({reason}): clients run one after the other.")
        name = "sequential"
    key = make_key(general.seed, general.device)
    backend = BACKENDS[name](method, federation, key, chunk_size=general.chunk_size, precision=general.precision)
    backend.min_clients, backend.patience, backend.inputs = general.min_clients, general.patience, inputs
    # Those of a later round are reported then.
    warnings += backend.warnings
    backend.warnings.clear()
    return Built(experiment.with_general(backend=name), method, federation, backend, signature, split, warnings)


def make_method(
    experiment: Experiment,
    signature: Signature,
    inputs: UserInputs = NO_INPUTS,
    initial: Mapping[str, Tensor] | None = None,
) -> Method:
    """Make the network and the method around it, which needs no data."""
    general = experiment.general
    architecture = MODELS[experiment.model.name](**experiment.model.options)
    layer = architecture.classifier
    if inputs.module is not None:
        module, layer = copy.deepcopy(inputs.module), experiment.model.options["layer"]
    else:
        # As PyTorch initialises it, from the experiment's seed and leaving the global generator alone.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(fold(make_key(general.seed), "model")))
            module = architecture.build(signature.input_shape, len(signature.class_names))
    module = module.to(general.device, getattr(torch, general.dtype))
    task = TASKS["classification"](experiment.objective.label_smoothing, experiment.evaluation.metrics)
    model = Model(module, classifier=layer, buffers=architecture.buffers, task=task)
    classes, training = len(signature.class_names), experiment.training
    objective, server = experiment.objective, experiment.server.make()
    setup = Setup(model, classes, general.rounds, training, general.participation, objective, server)
    method = METHODS[experiment.method.name](setup=setup, **experiment.method.options)
    try:
        model = method.prepare(model)
    except UserError as error:
        raise UserError(f"`method.name` is `{experiment.method.name}`: {error}") from None
    if initial is not None:
        model = model.starting_from(fit_to(dict(initial), {**model.init_params(), **model.frozen}))
    return replace(method, setup=replace(setup, model=model))


def decide_device(name: str) -> str:
    """Replace `auto` by what it means on this machine, and refuse a device that is not there."""
    name = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"`device` is `{name}`, which is unknown; use `cpu`, `cuda` or `auto`.")
    count = torch.cuda.device_count()
    # torch keeps an index in 8 bits, so that a large one comes back negative.
    if device.type == "cuda" and not 0 <= (device.index or 0) < count:
        raise UserError(f"`device` is `{name}`, but torch finds {count} CUDA devices here; use `cpu` or `auto`.")
    return name


def decide_backend(method: Method, federation: Federation) -> str:
    """Choose a back end by a fixed rule made from measurements: a result must not depend on timing.

    A GPU wants all clients at once. On a CPU that pays only while a step is so small that starting its operations
    takes longer than computing them (`docs/backends.md` has the figures).
    """
    on_gpu = federation.test.y.device.type == "cuda"
    return "vectorised" if on_gpu or flops_per_step(method, federation) <= VMAP_FLOPS_PER_STEP else "sequential"


def flops_per_step(method: Method, federation: Federation) -> int:
    """Return the floating-point operations of one training step of the largest batch, counted without running it."""
    size = min(method.setup.training.batch_size, max(len(data.y) for data in federation.clients))
    model, sample = method.setup.model, federation.test.map(lambda leaf: leaf[:1]).x
    # Backward costs about twice what forward does.
    return 3 * size * count_flops(lambda: model.logits(model.init_params(), sample))


def check_min_clients(general: General, clients: int) -> None:
    """Raise `UserError` if a round needs more answers than there are clients."""
    if general.min_clients > clients:
        raise UserError(f"`min_clients` is {general.min_clients}, but there are {clients} clients; lower it.")


def _warnings(experiment: Experiment, method: Method, federation: Federation) -> list[str]:
    """Return what the user should know of an experiment before it begins."""
    general, found = experiment.general, list[str]()
    if experiment.training.learning_rate == 0:
        found.append("`training.learning_rate` is 0: with it clients learn nothing.")
    found += experiment.training.warnings()
    # Clients may receive less after an evaluated round; `pre` then shows what each of them still holds.
    last, every = general.rounds, general.eval_every
    unsent = {t: method.wire(0).down - method.wire(t).down for t in sorted({*range(every, last + 1, every), last})}
    late = [str(t) for t, parts in unsent.items() if parts]
    if late:
        parts = ", ".join(sorted(set[str]().union(*unsent.values())))
        rounds = ", ".join(late[:6]) + ", ..." * (len(late) > 6)
        found.append(
            f"{experiment.method.name} does not send {parts} after round {rounds}: `pre` shows each client's own."
        )
    if federation.at_sites:
        return found
    size, held = experiment.training.batch_size, [len(data.y) for data in federation.clients]
    small = [count for count in held if count < size]
    if small:
        found.append(
            f"`training.batch_size` is {size}, but {len(small)} of {len(held)} clients hold fewer samples (the fewest "
            f"are {min(small)}): their batches are smaller."
        )
    sent = set[str]().union(*(method.wire(t).up for t in range(general.rounds)))
    # SCAFFOLD sends how its model has changed.
    if method.server != Server() and not sent & {"change", *MODEL_PARTS}:
        found.append(f"`[server]` changes nothing: clients of `{experiment.method.name}` send no part of their model.")
    if general.evaluate_on == "validation":
        found.append(f"Accuracies are measured on {len(federation.test.y)} training samples that no client holds.")
    missing = sorted(set(range(federation.num_classes)) - set(federation.test.y.tolist()))
    if missing:
        names = ", ".join(map(str, missing))
        found.append(f"The {general.evaluate_on} split has no sample of class {names}: averages leave it out.")
    if experiment.partition.name in ("natural", "given") and not federation.local_tests:
        found.append(
            "All clients are tested on the same samples, so that `own` assumes that a class looks alike at all of "
            "them. Give clients test samples of their own, or set `evaluation.local`."
        )
    counts = [method.setup.class_counts(data) for data in federation.clients]
    return found + experiment.objective.warnings(counts) + method.warnings(counts)

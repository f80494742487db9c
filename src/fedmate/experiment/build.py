"""From an experiment to the objects that run it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.backends import BACKENDS, Backend
from fedmate.components.prior_calibration import Calibrated
from fedmate.core import Federation, Method, Model, Setup, class_counts, fold, make_key
from fedmate.core.serialise import fit_to
from fedmate.core.shapes import count_flops
from fedmate.errors import UserError
from fedmate.experiment.config import Experiment, General
from fedmate.experiment.partitioning import ClientSplit, make_federation, split_samples
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import NO_INPUTS, UserInputs
from fedmate.methods import METHODS
from fedmate.models import MODELS

VMAP_FLOPS_PER_STEP = 50_000_000
"""The largest step, in floating-point operations, for which a CPU maps over clients: docs/backends.md."""


class Built(NamedTuple):
    """An experiment ready to run.

    Attributes:
        experiment: as declared, with back end and device decided.
        method: with its setup.
        federation: on the device.
        backend: with every client in its initial state.
        signature: what the network reads and answers.
        split: who holds which samples.
        notes: sentences the user should read before it starts.
    """

    experiment: Experiment
    method: Method
    federation: Federation
    backend: Backend
    signature: Signature
    split: ClientSplit
    notes: list[str]


def build(experiment: Experiment, given: UserInputs = NO_INPUTS, initial: Mapping[str, Tensor] | None = None) -> Built:
    """Load the data, deal it, make the model and the method; raise `UserError` if they do not fit.

    Args:
        experiment: what to run.
        given: data and a network that came from Python.
        initial: parameters to start from, by path, instead of the network's own.
    """
    given.check(experiment)
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    general = experiment.general
    key = make_key(general.seed, general.device)
    split = split_samples(experiment, given)
    if split.at_sites and not given.is_deployed:
        raise UserError(
            "`dataset.name` is `sites`, samples that lie with sites of their own; run the experiment with `flwr run`, "
            "see docs/deploy.md."
        )
    arrays, federation = split.arrays, make_federation(experiment, split)
    signature = Signature.of(arrays, general.dtype)
    method = make_method(experiment, signature, given, initial)
    method.setup.model.check(first_samples(federation, 2), federation.num_classes)
    notes = list(arrays.notes)
    if not federation.at_sites:
        notes += [*_notes(experiment, federation), *_calibration_notes(method, federation)]
    if general.device == "cpu" and general.precision == "bf16":
        notes.append("`precision` is `bf16`, but a CPU multiplies numbers as they are.")
    notes += _idle_notes(method, general, experiment.method.name)
    name = decide_backend(general.backend, method, federation)
    if BACKENDS[name].is_remote and federation.newcomers:
        raise UserError(
            f"`holdout_clients` is {general.holdout_clients}, but on the back end `{name}` newcomers are met only by "
            "`fedmate adapt`; set it to 0, or use another back end."
        )
    if BACKENDS[name].is_remote:
        check_min_clients(general, len(federation.clients))
    reason = BACKENDS[name].refusal(method, federation, general.precision)
    if reason is not None:
        notes.append(f"the back end `{name}` cannot run this model ({reason}): clients run one after the other.")
        name = "sequential"
    backend = BACKENDS[name](
        method,
        federation,
        key,
        chunk_size=general.chunk_size,
        precision=general.precision,
    )
    backend.min_clients, backend.patience, backend.inputs = general.min_clients, general.patience, given
    # What it notices later is told when it does.
    notes += backend.notes
    backend.notes.clear()
    return Built(experiment.with_general(backend=name), method, federation, backend, signature, split, notes)


def make_method(
    experiment: Experiment,
    signature: Signature,
    given: UserInputs = NO_INPUTS,
    initial: Mapping[str, Tensor] | None = None,
) -> Method:
    """Make the network and the method around it; no data is needed for that."""
    model = _make_model(experiment, signature, given)
    setup = Setup(model, len(signature.class_names), experiment.general.rounds, experiment.training)
    method = METHODS[experiment.method.name](setup=setup, **experiment.method.options)
    try:
        model = method.prepare(model)
    except UserError as error:
        raise UserError(f"`method.name` is `{experiment.method.name}`: {error}") from None
    if initial is not None:
        model = model.starting_from(fit_to(dict(initial), model.init_params()))
    return replace(method, setup=replace(setup, model=model))


def decide_device(name: str) -> str:
    """Replace `auto` by what it means on this machine, and refuse a device that is not there."""
    device = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    _check_device(device)
    return device


def decide_backend(name: str, method: Method, federation: Federation) -> str:
    """Replace `auto` by a fixed rule made from measurements: a result must not depend on timing.

    A GPU wants all clients at once. On a CPU that pays only while a step is so small that starting its operations
    takes longer than computing them: `benchmarks/loop_or_vmap.py`.
    """
    if name != "auto":
        return name
    on_gpu = federation.test.y.device.type == "cuda"
    return "vectorised" if on_gpu or flops_per_step(method, federation) <= VMAP_FLOPS_PER_STEP else "sequential"


def flops_per_step(method: Method, federation: Federation) -> int:
    """Return the floating-point operations of one training step of the largest batch, counted without running it."""
    size = min(method.setup.training.batch_size, max(len(data.y) for data in federation.clients))
    model, sample = method.setup.model, first_samples(federation, 1)
    # Backward costs about twice what forward does.
    return 3 * size * count_flops(lambda: model.logits(model.init_params(), sample))


def _check_device(name: str) -> None:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"`device` is `{name}`, which is not a device's name; use `cpu`, `cuda` or `auto`.") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"`device` is `{name}`, which fedmate does not support; use `cpu`, `cuda` or `auto`.")
    count = torch.cuda.device_count()
    # torch keeps an index in 8 bits, so that a large one comes back negative.
    if device.type == "cuda" and not 0 <= (device.index or 0) < count:
        raise UserError(f"`device` is `{name}`, but torch finds {count} CUDA devices here; use `cpu` or `auto`.")


def first_samples(federation: Federation, count: int) -> Tensor:
    """Return a few samples of the test split, as a network reads them."""
    return federation.test.map(lambda leaf: leaf[:count]).x


def _make_model(experiment: Experiment, signature: Signature, given: UserInputs) -> Model:
    """Initialise the network as PyTorch does, from the experiment's seed and leaving the global generator alone."""
    architecture = MODELS[experiment.model.name](**experiment.model.options)
    layer = architecture.classifier
    if given.module is not None:
        module, layer = copy.deepcopy(given.module), experiment.model.options["layer"]
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(fold(make_key(experiment.general.seed), "model")))
            module = architecture.build(signature.input_shape, len(signature.class_names))
    module = module.to(experiment.general.device, getattr(torch, experiment.general.dtype))
    return Model(module, classifier=layer, buffers=architecture.buffers)


def _idle_notes(method: Method, general: General, name: str) -> list[str]:
    """Say it if after rounds that are evaluated something is not sent, so that clients still hold their own."""
    last = general.rounds
    evaluated = sorted({*range(general.eval_every, last + 1, general.eval_every), last})
    unsent = {number: method.wire(0).down - method.wire(number).down for number in evaluated}
    late = [number for number, parts in unsent.items() if parts]
    if not late:
        return []
    parts = ", ".join(sorted(set[str]().union(*unsent.values())))
    rounds = f"{', '.join(map(str, late[:6]))}{', ...' * (len(late) > 6)}{' and the last' * (last in late[6:])}"
    plural = "s" * (len(late) > 1)
    return [f"{name} does not send {parts} after round{plural} {rounds}: `pre` shows each client's own there."]


def _calibration_notes(method: Method, federation: Federation) -> list[str]:
    """Say it if prior calibration leaves clients nothing to learn, or if an option of it changes nothing."""
    if not isinstance(method, Calibrated):
        return []
    if not method.calibration:
        ignored = "`method.absent_share` is given, but `method.calibration` is 0: it changes nothing."
        return [ignored] * bool(method.absent_share) + _control_notes(method, federation) * method.own_prior
    ignored = "`method.own_prior` is on beside `method.calibration`, which does the same: it changes nothing."
    return [ignored] * method.own_prior + _absent_notes(method, federation) + _single_class_notes(method, federation)


def _control_notes(method: Calibrated, federation: Federation) -> list[str]:
    """Say what `own_prior` does not do."""
    only_global = (
        "`method.own_prior` is on: it changes the view `global` only, where there is one, for clients train models of "
        "their own, which hold their class shares already."
    )
    return [only_global] * (not method.is_common) + _single_class_notes(method, federation)


def _absent_notes(method: Calibrated, federation: Federation) -> list[str]:
    """Say it if classes that a client lacks count for more than one that it holds."""
    if not method.absent_share:
        return []
    counts = [class_counts(data, federation.num_classes) for data in federation.clients]
    rarest = min((float(held[held > 0].min() / held.sum()) for held in counts if (held == 0).any()), default=1.0)
    return [
        f"`method.absent_share` is {method.absent_share:g}, but there are clients of which a class has a share of "
        f"{rarest:.3g}: one that they lack counts for more."
    ] * (method.absent_share > rarest)


def _single_class_notes(method: Calibrated, federation: Federation) -> list[str]:
    alone = sum(int((class_counts(data, federation.num_classes) > 0).sum()) == 1 for data in federation.clients)
    whom = "1 client holds" if alone == 1 else f"{alone} clients hold"
    if alone == len(federation.clients):
        whom = "all clients hold"
    if not method.calibration:
        note = f"`method.own_prior` is on, and {whom} one class: there `own` accuracy of a model that all share is"
    elif method.absent_share:
        # Classes that a client lacks count as rare, so it learns that it does not hold them.
        note = f"`method.calibration` is on, and {whom} one class: there `own` accuracy is"
    else:
        note = (
            f"`method.calibration` is on, and {whom} one class: there class shares explain every label, so that "
            "cross-entropy teaches nothing, and `own` accuracy is"
        )
    return [f"{note} 100 % whatever the model is."] * bool(alone)


def check_min_clients(general: General, clients: int) -> None:
    """Raise `UserError` if a round needs more answers than there are clients."""
    if general.min_clients > clients:
        raise UserError(
            f"`min_clients` is {general.min_clients}, but there are {clients} clients; set it to that at most."
        )


def _notes(experiment: Experiment, federation: Federation) -> list[str]:
    size = experiment.training.batch_size
    small = [len(data.y) for data in federation.clients if len(data.y) < size]
    notes = []
    if small:
        smallest, largest = min(small), max(small)
        held = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        whom = "all clients hold" if len(small) == len(federation.clients) else f"{len(small)} clients hold"
        notes.append(f"`training.batch_size` is {size}, but {whom} {held} samples: their batches are as large as that.")
    if experiment.general.evaluate_on == "validation":
        notes.append(
            f"`evaluate_on` is `validation`: accuracies are those of {len(federation.test.y)} training samples that no "
            "client holds."
        )
    missing = sorted(set(range(federation.num_classes)) - set(federation.test.y.tolist()))
    if missing:
        split, names = experiment.general.evaluate_on, ", ".join(map(str, missing))
        notes.append(f"the {split} split has no sample of class {names}: left out of averages.")
    return notes

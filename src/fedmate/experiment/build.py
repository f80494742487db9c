"""From an experiment to the objects that run it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fedmate.backends import BACKENDS, Backend
from fedmate.core import ClientData, Federation, Method, Model, Setup, client_data, fold, make_key
from fedmate.core.serialise import fit_to
from fedmate.datasets import DATASETS, Arrays, Samples, hold_back
from fedmate.errors import UserError
from fedmate.experiment.card import Card
from fedmate.experiment.config import Experiment
from fedmate.experiment.given import NOTHING, Given
from fedmate.methods import METHODS
from fedmate.models import MODELS
from fedmate.partitions import PARTITIONS

VMAP_FLOPS_PER_STEP = 50_000_000
"""The largest step, in floating-point operations, for which a CPU maps over clients: docs/backends.md."""


class Built(NamedTuple):
    """An experiment ready to run.

    Attributes:
        experiment: as declared, with back end and device decided.
        method: with its setup.
        federation: on the device.
        backend: with every client in its initial state.
        card: what the network reads and answers.
        notes: sentences the user should read before it starts.
    """

    experiment: Experiment
    method: Method
    federation: Federation
    backend: Backend
    card: Card
    notes: list[str]


def build(experiment: Experiment, given: Given = NOTHING, initial: Mapping[str, Tensor] | None = None) -> Built:
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
    arrays = _load(experiment, given)
    federation = _deal(experiment, arrays, given)
    card = Card(tuple(arrays.train.x.shape[1:]), arrays.class_names, arrays.normalisation, general.dtype)
    method = make_method(experiment, card, given, initial)
    method.setup.model.check(federation.test.x[:2], federation.num_classes)
    notes = _notes(experiment, federation)
    late = sorted(method.wire(0).down - method.wire(general.rounds).down)
    if late:
        notes.append(
            f"{experiment.method.name} does not send {', '.join(late)} after round {general.rounds}: the last `pre` "
            "shows each client's own."
        )
    name = decide_backend(general.backend, method, federation)
    reason = BACKENDS[name].refusal(method, federation)
    if reason is not None:
        notes.append(f"the back end `{name}` cannot run this model ({reason}): clients run one after the other.")
        name = "sequential"
    backend = BACKENDS[name](method, federation, key, chunk_size=general.chunk_size)
    return Built(experiment.with_general(backend=name), method, federation, backend, card, notes)


def make_method(
    experiment: Experiment, card: Card, given: Given = NOTHING, initial: Mapping[str, Tensor] | None = None
) -> Method:
    """Make the network and the method around it; no data is needed for that."""
    model = _make_model(experiment, card, given)
    setup = Setup(model, len(card.class_names), experiment.general.rounds, experiment.training)
    method = METHODS[experiment.method.name](setup=setup, **experiment.method.options)
    model = method.prepare(model)
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
    model, sample = method.setup.model, federation.test.x[:1]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(model.init_params(), sample)
    # Backward costs about twice what forward does.
    return 3 * size * int(counter.get_total_flops())


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


def _load(experiment: Experiment, given: Given) -> Arrays:
    """Read the arrays; a user's own that would go to the clients altogether leave a fifth for the test split."""
    if given.data is None:
        return DATASETS[experiment.dataset.name](**experiment.dataset.options).load()
    arrays, everything = given.data.arrays, experiment.partition.options["examples"] is None
    if arrays.test is not None or not everything:
        return arrays
    held = hold_back(arrays.train.y, _random(experiment, b"test"))
    x, y = arrays.train
    return arrays._replace(train=Samples(np.delete(x, held, 0), np.delete(y, held)), test=Samples(x[held], y[held]))


def _deal(experiment: Experiment, arrays: Arrays, given: Given) -> Federation:
    """Give each client its rows, and everybody the test split."""
    rows = given.data.hands if given.data else None
    if rows is None:
        partition = PARTITIONS[experiment.partition.name](**experiment.partition.options)
        rows = partition.split(arrays.train.y, len(arrays.class_names), _random(experiment, b"partition"))
    test = _test_split(experiment, arrays, rows)
    x, y = to_device(experiment, arrays.normalisation.apply(arrays.train.x), arrays.train.y)[:2]
    clients = [client_data(x[index], y[index]) for index in (torch.from_numpy(r).to(y.device) for r in rows)]
    away = held_out(experiment, len(rows))
    return Federation(
        clients=tuple(data for i, data in enumerate(clients) if i not in away),
        test=to_device(experiment, arrays.normalisation.apply(test.x), test.y),
        num_classes=len(arrays.class_names),
        newcomers=tuple(clients[i] for i in sorted(away)),
    )


def _test_split(experiment: Experiment, arrays: Arrays, rows: list[NDArray[np.int64]]) -> Samples:
    """Return the data set's own test split, or what no client holds, newcomers included."""
    if arrays.test is not None:
        return arrays.test
    rest = np.setdiff1d(np.arange(len(arrays.train.y)), np.concatenate(rows))
    if len(rest):
        return Samples(arrays.train.x[rest], arrays.train.y[rest])
    raise UserError(
        "`partition.examples` leaves no sample for the test split, which is what no client holds; lower "
        "`partition.examples` or `partition.clients`."
    )


def to_device(experiment: Experiment, x: NDArray[Any], y: NDArray[Any]) -> ClientData:
    """Put samples where an experiment runs, in its precision."""
    device, dtype = experiment.general.device, getattr(torch, experiment.general.dtype)
    return client_data(torch.from_numpy(x).to(device, dtype), torch.from_numpy(y).to(device))


def _random(experiment: Experiment, purpose: bytes) -> np.random.Generator:
    # numpy deals on the host: the split is the same whatever the device and the precision.
    return np.random.default_rng([experiment.general.seed % 2**64, *purpose])


def held_out(experiment: Experiment, num_clients: int) -> set[int]:
    """Choose who stays out of training: `holdout_clients` of them, rounded down."""
    share = experiment.general.holdout_clients
    # The small addition undoes rounding: 0.29 * 100 is 28.999999999999996. Somebody has to train.
    count = min(math.floor(share * num_clients + 1e-9), num_clients - 1)
    if share and num_clients == 1:
        raise UserError(f"`holdout_clients` is {share}, but there is one client only, which has to train; set it to 0.")
    if share and not count:
        digits = len(str(num_clients)) + 1
        # Rounded up, or it would be refused in its turn.
        enough = math.ceil(10**digits / num_clients) / 10**digits
        raise UserError(
            f"`holdout_clients` is {share}, which of {num_clients} clients is none; set it to at least {enough}, or "
            "to 0."
        )
    return set(_random(experiment, b"holdout").permutation(num_clients)[:count].tolist())


def _make_model(experiment: Experiment, card: Card, given: Given) -> Model:
    """Initialise the network as PyTorch does, from the experiment's seed and leaving the global generator alone."""
    architecture = MODELS[experiment.model.name](**experiment.model.options)
    layer = architecture.classifier
    if given.module is not None:
        module, layer = copy.deepcopy(given.module), experiment.model.options["layer"]
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(fold(make_key(experiment.general.seed), "model")))
            module = architecture.build(card.input_shape, len(card.class_names))
    module = module.to(experiment.general.device, getattr(torch, experiment.general.dtype))
    return Model(module, classifier=layer, buffers=architecture.buffers)


def _notes(experiment: Experiment, federation: Federation) -> list[str]:
    size = experiment.training.batch_size
    small = [len(data.y) for data in federation.clients if len(data.y) < size]
    notes = []
    if small:
        smallest, largest = min(small), max(small)
        held = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
        whom = "all clients hold" if len(small) == len(federation.clients) else f"{len(small)} clients hold"
        notes.append(f"`training.batch_size` is {size}, but {whom} {held} samples: their batches are as large as that.")
    missing = sorted(set(range(federation.num_classes)) - set(federation.test.y.tolist()))
    if missing:
        notes.append(f"the test split has no sample of class {', '.join(map(str, missing))}: left out of averages.")
    return notes

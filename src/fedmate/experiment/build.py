"""From an experiment to the objects that run it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedmate.backends import BACKENDS, Backend
from fedmate.core import Federation, Method, Model, Setup, client_data, fold, make_key
from fedmate.datasets import DATASETS, Arrays, Samples
from fedmate.errors import UserError
from fedmate.experiment.config import Experiment
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
        notes: sentences the user should read before it starts.
    """

    experiment: Experiment
    method: Method
    federation: Federation
    backend: Backend
    notes: list[str]


def build(experiment: Experiment) -> Built:
    """Load the data, deal it, make the model and the method; raise `UserError` if they do not fit."""
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    general = experiment.general
    key = make_key(general.seed, general.device)
    arrays = DATASETS[experiment.dataset.name](**experiment.dataset.options).load()
    federation = _deal(experiment, arrays)
    model = _make_model(experiment, federation)
    setup = Setup(model, federation.num_classes, general.rounds, experiment.training)
    method = METHODS[experiment.method.name](setup=setup, **experiment.method.options)
    method = replace(method, setup=replace(setup, model=method.prepare(model)))
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
    return Built(experiment.with_general(backend=name), method, federation, backend, notes)


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


def _deal(experiment: Experiment, arrays: Arrays) -> Federation:
    """Give each client its rows, and everybody the test split."""
    partition = PARTITIONS[experiment.partition.name](**experiment.partition.options)
    # numpy deals on the host: the split is the same whatever the device and the precision.
    rng = np.random.default_rng([experiment.general.seed % 2**64, *b"partition"])
    rows = partition.split(arrays.train.y, len(arrays.class_names), rng)
    test = arrays.test
    if test is None:
        rest = np.setdiff1d(np.arange(len(arrays.train.y)), np.concatenate(rows))
        test = Samples(arrays.train.x[rest], arrays.train.y[rest])
    if not len(test.y):
        raise UserError(
            "`partition.examples` leaves no sample for the test split, which is what no client holds; lower "
            "`partition.examples` or `partition.clients`."
        )
    device, dtype = experiment.general.device, getattr(torch, experiment.general.dtype)
    x = torch.from_numpy(arrays.train.x).to(device, dtype)
    y = torch.from_numpy(arrays.train.y).to(device)
    return Federation(
        clients=tuple(client_data(x[torch.from_numpy(r).to(device)], y[torch.from_numpy(r).to(device)]) for r in rows),
        test=client_data(torch.from_numpy(test.x).to(device, dtype), torch.from_numpy(test.y).to(device)),
        num_classes=len(arrays.class_names),
    )


def _make_model(experiment: Experiment, federation: Federation) -> Model:
    """Initialise the network as PyTorch does, from the experiment's seed and leaving the global generator alone."""
    architecture = MODELS[experiment.model.name](**experiment.model.options)
    sample = federation.test.x[:2]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fold(make_key(experiment.general.seed), "model")))
        module = architecture.build(tuple(sample.shape[1:]), federation.num_classes)
    module = module.to(sample.device, sample.dtype)
    model = Model(module, classifier=architecture.classifier, buffers=architecture.buffers)
    model.check(module, sample, federation.num_classes)
    return model


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

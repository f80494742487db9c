"""What a run trains on: data and a network that come from Python, and the samples of each client."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy

from fedmate.core import ClientData, Federation, rows_of
from fedmate.data import (
    DATASETS,
    Arrays,
    Dataset,
    Normalisation,
    Samples,
    content_digest,
    hold_back,
    hold_back_from_each,
)
from fedmate.data.arrays import Pool, Sites, fingerprint
from fedmate.data.partitions import PARTITIONS, PartitionInput, repeat_samples
from fedmate.data.sources import data_folder
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource
from fedmate.experiment.sections import Experiment

Rows = NDArray[np.int64]


class UserInputs(NamedTuple):
    """What an experiment takes from its surroundings; all of it may be left out."""

    data: Pool | Sites | None = None
    module: nn.Module | None = None  # it ends in a layer with a name; training starts from its weights
    classifier: str | None = None  # that name
    folder: Path | None = None  # where data sets lie
    is_deployed: bool = False  # whether clients are nodes that Flower connects, which may have data of their own

    def layer(self) -> ConfigSource:
        """Return what the experiment has to say about them."""
        self._check_types()
        values: dict[str, dict[str, Any]] = {}
        if self.data is not None:
            values["dataset"] = {"name": "given", "digest": fingerprint(self.data)}
            if self.data.client_rows is not None:
                values["partition"] = {"name": "given", "clients": len(self.data.client_rows)}
        if self.module is not None:
            if self.classifier is None:
                # Layers come in the order they were made, which is mostly the order they are used in.
                layers = [name.rpartition(".")[0] for name, _ in self.module.named_parameters()]
                hint = f"; probably it is `{layers[-1]}`" if any(layers[-1:]) else ""
                raise UserError(f"`model` needs `classifier`, the name of its last layer{hint}.")
            values["model"] = {"name": "given", "layer": self.classifier, "digest": structure(self.module)}
        elif self.classifier is not None:
            raise UserError("`classifier` names the last layer of `model`, which is missing; give both.")
        return ConfigSource("the call", values)

    def check(self, experiment: Experiment) -> None:
        """Raise `UserError` unless these are the data and the network the experiment speaks of.

        What the experiment takes from Python and did not get is refused where it would be loaded.
        """
        self._check_types()
        rows = None if self.data is None else self.data.client_rows
        for argument, found, section in (
            ("data", self.data, "dataset"),
            ("data", rows, "partition"),
            ("model", self.module, "model"),
        ):
            name = getattr(experiment, section).name
            if found is not None and name != "given":
                raise UserError(f"`{argument}` is given, but `{section}.name` is `{name}`; leave one of them out.")
        if self.data is not None and experiment.dataset.options["digest"] != fingerprint(self.data):
            raise UserError("`data` holds other samples than the run began with; give the same arrays.")
        for key, taken in (("clients", rows and len(rows)), ("examples", None)):
            if rows is not None and experiment.partition.options[key] != taken:
                raise UserError(
                    f"`partition.{key}` is {experiment.partition.options[key]}, but `data` is {len(rows)} clients with "
                    f"samples of their own, which are taken as they are; leave `partition.{key}` out."
                )
        if self.module is not None:
            if experiment.model.options["digest"] != structure(self.module):
                raise UserError(
                    "`model` has another structure than the network the run began with; give the same one, with the "
                    "same layers frozen."
                )
            layer = experiment.model.options["layer"]
            if self.classifier not in (None, layer):
                raise UserError(
                    f"`classifier` is `{self.classifier}`, but the run began with `{layer}`; give that one."
                )

    def _check_types(self) -> None:
        if not isinstance(self.data, Pool | Sites | None):
            raise UserError(
                f"`data` is a {type(self.data).__name__}; give `fedmate.Pool(x, y)`, or `fedmate.Sites(...)` for "
                "samples that lie with their clients."
            )
        if not isinstance(self.module, nn.Module | None):
            raise UserError(f"`model` is a {type(self.module).__name__}; give a `torch.nn.Module`, an instance of it.")


NO_INPUTS = UserInputs()


def structure(module: nn.Module) -> str:
    """Return a fingerprint of a network's layers; its weights do not matter, a run keeps those it began with."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    lazy = next((name for name, tensor in tensors if is_lazy(tensor)), None)
    if lazy is not None:
        raise UserError(
            f"`model` has `{lazy}` of a lazy layer, which has no shape yet; run one sample through it first."
        )
    shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in module.state_dict().items()]
    shapes += [f"{name} is frozen" for name, parameter in module.named_parameters() if not parameter.requires_grad]
    return hashlib.sha256("\n".join([repr(module), *shapes]).encode()).hexdigest()


@final
@dataclass(frozen=True, eq=False)
class ClientSplit:
    """A data set with its samples split among clients."""

    arrays: Arrays
    data_sha256: str  # what tells the data set's content from others
    clients: list[Rows]  # the rows of the training part that each client in training holds, in ascending order
    held_out: list[Rows]  # those of the clients that stay out of training
    validation: Rows | None  # the rows to evaluate on instead of the test split, if that was asked for
    test: Samples  # what every client is evaluated on
    local_tests: Sequence[Samples] = ()  # each client's own test samples, held-out clients last; empty if none have any
    local_rows: Sequence[Rows] = ()  # the rows of the training part that these are, if they were held back from it
    at_sites: bool = False  # whether samples lie with sites of their own, and these stand in for them

    @property
    def sha256(self) -> str:
        """A digest of the data set's content and of the rows of every client."""
        found = hashlib.sha256(self.data_sha256.encode())
        parts = [*(("client", rows) for rows in self.clients), *(("newcomer", rows) for rows in self.held_out)]
        parts += (("local", rows) for rows in self.local_rows)
        for kind, rows in [*parts, *([] if self.validation is None else [("validation", self.validation)])]:
            found.update(f"{kind} {len(rows)}\n".encode() + rows.astype("<i8").tobytes())
        return found.hexdigest()

    def names(self) -> list[str]:
        """Return the names of clients, held-out ones last: those of the data set, if each is one of its clients."""
        arrays, holdings = self.arrays, [*self.clients, *self.held_out]
        if arrays.clients is not None and arrays.client_names:
            owners = [np.unique(arrays.clients[rows]) for rows in holdings]
            if all(len(found) == 1 for found in owners):
                return [arrays.client_names[found[0]] for found in owners]
        return [*map(str, range(len(self.clients))), *(f"newcomer {i}" for i in range(len(self.held_out)))]

    def class_counts(self) -> NDArray[np.int64]:
        """Return how many samples of each class each client holds, held-out ones last, `[clients, classes]`."""
        if self.at_sites:
            raise UserError(
                "`dataset.name` is `sites`: what the sites hold is known to them alone; ask each with `fedmate deploy "
                "check`."
            )
        labels, classes = self.arrays.train.y, len(self.arrays.class_names)
        holdings = [*self.clients, *self.held_out]
        return np.stack([np.bincount(labels[rows], minlength=classes) for rows in holdings]).astype(np.int64)

    def to_json(self) -> str:
        """Return the account of it, a line for each client: rows count from 0 in the data set's training part."""
        head: dict[str, Any] = {"sha256": self.sha256, "data_sha256": self.data_sha256}
        head |= {"classes": self.arrays.class_names, "names": self.names()}
        if self.at_sites:
            return json.dumps({**head, "at_sites": True}, ensure_ascii=False) + "\n"
        lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
        local = [("local", self.local_rows)] if self.local_rows else []
        for name, holdings in (("clients", self.clients), ("newcomers", self.held_out), *local):
            rows = ",\n".join(json.dumps(one.tolist()) for one in holdings)
            lines.append(f'"{name}": [\n{rows}\n]' if holdings else f'"{name}": []')
        if self.validation is not None:
            lines.append(f'"validation": {json.dumps(self.validation.tolist())}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


def split_samples(experiment: Experiment, inputs: UserInputs) -> ClientSplit:
    """Load the data set and split its samples among clients, or raise `UserError`."""
    dataset: Dataset = DATASETS[experiment.dataset.name](**experiment.dataset.options)
    stand_ins = dataset.stand_ins()
    if stand_ins is not None:
        return _at_sites(experiment, stand_ins)
    try:
        arrays = inputs.data.arrays if inputs.data else dataset.load(data_folder(inputs.folder))
    except FileNotFoundError as error:
        raise UserError(
            f"`dataset.name` is `{experiment.dataset.name}`, but `{error.filename}` does not exist; put it there, or "
            "name another folder (`data_dir`, or FEDMATE_DATA)."
        ) from None
    options, holdings = experiment.partition.options, inputs.data.client_rows if inputs.data else None
    held = np.array([], np.int64)
    if holdings is None and arrays.test is None and options["examples"] is None:
        # Clients would get everything: a fifth is for the test split.
        held = hold_back(arrays.train.y, random_of(experiment, b"test"))
        if not len(held):
            raise UserError(
                f"`dataset.name` is `{experiment.dataset.name}`, which has no test split and {len(arrays.train.y)} "
                "samples, too few of a class to hold some back; add samples, or a test split."
            )
    kept = np.setdiff1d(np.arange(len(arrays.train.y)), held)
    if holdings is None:
        owners = None if arrays.clients is None else arrays.clients[kept]
        rng, classes = random_of(experiment, b"partition"), len(arrays.class_names)
        task = PartitionInput(arrays.train.y[kept], classes, rng, dataset.groups, owners)
        holdings = [kept[rows] for rows in PARTITIONS[experiment.partition.name](**options).split(task)]
    rest, validation, test = np.setdiff1d(kept, np.concatenate(holdings)), None, arrays.test
    if experiment.general.evaluate_on == "validation":
        validation = _draw_validation(experiment, arrays, rest)
    if validation is not None or test is None:
        # Without a test split of its own the data set is tested on the samples that no client holds.
        chosen = validation if validation is not None else held if len(held) else rest
        test = Samples(arrays.train.x[chosen], arrays.train.y[chosen])
        if not len(chosen):
            raise UserError(
                "`partition.examples` leaves no sample for the test split, which is what no client holds; lower "
                "`partition.examples` or `partition.clients`."
            )
    holdings, local, held_rows = _local_tests(experiment, arrays, holdings)
    # Only now: the test split must not depend on how many samples are repeated.
    repeated = options["redundant_clients"], options["redundant_samples"]
    holdings = repeat_samples(holdings, *repeated, random_of(experiment, b"redundant"))
    away = held_out(experiment, len(holdings))
    order = [*(i for i in range(len(holdings)) if i not in away), *sorted(away)]
    trained, apart = ([holdings[i] for i in order if (i in away) is out] for out in (False, True))
    local, held_rows = [local[i] for i in order if local], [held_rows[i] for i in order if held_rows]
    sha256 = arrays.digest or content_digest(arrays)
    return ClientSplit(arrays, sha256, trained, apart, validation, test, local, held_rows)


def _local_tests(
    experiment: Experiment, arrays: Arrays, holdings: list[Rows]
) -> tuple[list[Rows], list[Samples], list[Rows]]:
    """Return what clients train on, the test samples of their own, and which rows these are if they were held back."""
    share, given = experiment.evaluation.local, arrays.tests_of(experiment.partition.name, holdings)
    if not share:
        return holdings, given, []
    kept, held = hold_back_from_each(arrays.train.y, holdings, random_of(experiment, b"local"), share)
    if given or not all(map(len, kept)) or not any(map(len, held)):
        reason = "clients have test samples of their own" if given else "it leaves a client or the test no sample"
        raise UserError(f"`evaluation.local` is {share}, but {reason}; set it to {'0' if given else 'another share'}.")
    return kept, [Samples(arrays.train.x[rows], arrays.train.y[rows]) for rows in held], held


def make_federation(experiment: Experiment, split: ClientSplit) -> Federation:
    """Bring the samples of all clients, each once, and the test split to where the experiment runs."""
    arrays, holdings = split.arrays, [*split.clients, *split.held_out]
    used, places = np.unique(np.concatenate(holdings), return_inverse=True)
    everyone = ready(experiment, arrays.normalisation, Samples(arrays.train.x[used], arrays.train.y[used]))
    rows = torch.from_numpy(places.astype(np.int64)).to(everyone.y.device)
    sizes = [len(rows) for rows in holdings]
    parts = zip(torch.split(rows, sizes), torch.split(everyone.y[rows], sizes), strict=True)
    clients = [rows_of(everyone.source, own, labels) for own, labels in parts]
    # A test without samples is one of which nothing counts.
    pairs = zip(split.local_tests, clients, strict=bool(split.local_tests))
    own = [ready(experiment, arrays.normalisation, test) if len(test.y) else data.masked() for test, data in pairs]
    return Federation(
        clients=tuple(clients[: len(split.clients)]),
        test=ready(experiment, arrays.normalisation, split.test),
        num_classes=len(arrays.class_names),
        held_out_clients=tuple(clients[len(split.clients) :]),
        local_tests=tuple(own),
        at_sites=split.at_sites,
    )


def ready(experiment: Experiment, normalisation: Normalisation, samples: Samples) -> ClientData:
    """Put samples where an experiment runs."""
    general = experiment.general
    dataset: Dataset = DATASETS[experiment.dataset.name](**experiment.dataset.options)
    source = normalisation.source(samples.x, dataset.augmentation, getattr(torch, general.dtype), general.device)
    y = torch.from_numpy(samples.y).to(general.device)
    return rows_of(source, torch.arange(len(y), device=y.device), y)


def random_of(experiment: Experiment, purpose: bytes) -> np.random.Generator:
    """Return randomness for one purpose; on the host: a split is the same whatever the device and the precision."""
    return np.random.default_rng([experiment.general.seed % 2**64, *purpose])


def held_out(experiment: Experiment, num_clients: int) -> set[int]:
    """Choose who stays out of training: `holdout_clients` of them, rounded down."""
    share = experiment.general.holdout_clients
    # The small addition undoes rounding: 0.29 * 100 is 28.999999999999996. One client has to train.
    count = min(math.floor(share * num_clients + 1e-9), num_clients - 1)
    if share and num_clients == 1:
        raise UserError(f"`holdout_clients` is {share}, but there is one client only, which has to train; set it to 0.")
    if share and not count:
        # Rounded up, or it would be refused in its turn.
        enough = math.ceil(1000 / num_clients) / 1000
        raise UserError(
            f"`holdout_clients` is {share}, which of {num_clients} clients is none; set it to at least {enough}, or "
            "to 0."
        )
    return set(random_of(experiment, b"holdout").permutation(num_clients)[:count].tolist())


def _at_sites(experiment: Experiment, arrays: Arrays) -> ClientSplit:
    """Give each client one sample that means nothing, or raise `UserError` if a setting splits samples."""
    partition, general = experiment.partition, experiment.general
    for key, found, left_out in (
        ("partition.name", partition.name, "given"),
        ("partition.examples", partition.options["examples"], None),
        ("partition.redundant_clients", partition.options["redundant_clients"], 0),
        ("holdout_clients", general.holdout_clients, 0),
        ("evaluate_on", general.evaluate_on, "test"),
        ("evaluation.local", experiment.evaluation.local, 0),
    ):
        if found != left_out:
            raise UserError(
                f"`{key}` is `{found}`, but `dataset.name` is `sites`, where samples lie with their clients and are "
                f"taken as they are; leave `{key}` out."
            )
    clients = [np.zeros(1, np.int64)] * partition.options["clients"]
    return ClientSplit(arrays, content_digest(arrays), clients, [], None, arrays.train, at_sites=True)


def _draw_validation(experiment: Experiment, arrays: Arrays, rest: Rows) -> Rows:
    """Choose training samples that no client holds, as many of each class."""
    wanted = experiment.general.validation_per_class
    if arrays.test is None:
        raise UserError(
            f"`evaluate_on` is `validation`, as `fedmate tune` sets it, but `{experiment.dataset.name}` has no test "
            "split of its own; use a data set that has one, such as `mnist`."
        )
    labels, rng = arrays.train.y[rest], random_of(experiment, b"validation")
    held = np.unique(arrays.train.y)
    piles = [rng.permutation(rest[labels == k]) for k in held]
    fewest = min(range(len(piles)), key=lambda i: len(piles[i]))
    if len(piles[fewest]) < wanted:
        left, name = len(piles[fewest]), arrays.class_names[held[fewest]]
        remedy = f"set it to at most {left}" if left else "set a smaller `partition.examples`"
        raise UserError(
            f"`validation_per_class` is {wanted}, but clients leave {left} training samples of class `{name}`; "
            f"{remedy}."
        )
    return np.sort(np.concatenate([pile[:wanted] for pile in piles]))

"""The samples of each client: from a data set and a partition to the data of an experiment and its record."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from fedmate.core import ClientData, Federation, rows_of
from fedmate.data import DATASETS, Arrays, Dataset, Normalisation, Samples, content_digest, hold_back
from fedmate.data.partitions import PARTITIONS, PartitionInput, repeat_samples
from fedmate.data.sources import data_folder
from fedmate.errors import UserError
from fedmate.experiment.config import Experiment
from fedmate.experiment.request import UserInputs

Rows = NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class ClientSplit:
    """A data set with its samples split among clients.

    Attributes:
        arrays: the data set.
        data_sha256: what tells its content from others.
        clients: the rows of the training part that each client in training holds, in ascending order.
        held_out: those of the clients that stay out of training.
        validation: the rows to evaluate on instead of the test split, if that was asked for.
        test: the samples that every client is evaluated on.
        at_sites: whether samples lie with sites of their own, and these stand in for them.
    """

    arrays: Arrays
    data_sha256: str
    clients: list[Rows]
    held_out: list[Rows]
    validation: Rows | None
    test: Samples
    at_sites: bool = False

    @property
    def sha256(self) -> str:
        """A digest of the data set's content and of the rows of every client."""
        found = hashlib.sha256(self.data_sha256.encode())
        for kind, all_rows in (
            ("client", self.clients),
            ("newcomer", self.held_out),
            ("validation", [self.validation]),
        ):
            for rows in all_rows:
                if rows is not None:
                    found.update(f"{kind} {len(rows)}\n".encode() + rows.astype("<i8").tobytes())
        return found.hexdigest()

    def names(self) -> list[str]:
        """Return the names of clients, held-out ones last: those of the data set, if each is one of its clients."""
        arrays, holdings = self.arrays, [*self.clients, *self.held_out]
        if arrays.clients is not None and arrays.client_names:
            owners = [np.unique(arrays.clients[rows]) for rows in holdings]
            if all(len(found) == 1 for found in owners):
                return [arrays.client_names[found[0]] for found in owners]
        trained = len(self.clients)
        return [str(i) if i < trained else f"newcomer {i - trained}" for i in range(len(holdings))]

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
        head = {
            "sha256": self.sha256,
            "data_sha256": self.data_sha256,
            "classes": self.arrays.class_names,
            "names": self.names(),
        }
        if self.at_sites:
            return json.dumps({**head, "at_sites": True}, ensure_ascii=False) + "\n"
        lines = [f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in head.items()]
        for name, holdings in (("clients", self.clients), ("newcomers", self.held_out)):
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
    holdings = inputs.data.client_rows if inputs.data else None
    held = np.array([], np.int64) if holdings else _hold_back(experiment, arrays)
    kept = np.setdiff1d(np.arange(len(arrays.train.y)), held)
    if holdings is None:
        partition = PARTITIONS[experiment.partition.name](**experiment.partition.options)
        owners = None if arrays.clients is None else arrays.clients[kept]
        rng, classes = random_of(experiment, b"partition"), len(arrays.class_names)
        found = partition.split(PartitionInput(arrays.train.y[kept], classes, rng, dataset.groups, owners))
        holdings = [kept[rows] for rows in found]
    rest = np.setdiff1d(kept, np.concatenate(holdings))
    validation = _draw_validation(experiment, arrays, rest) if experiment.general.evaluate_on == "validation" else None
    test = arrays.test
    if validation is not None or test is None:
        # Without a test split of its own the data set is tested on the samples that no client holds.
        chosen = validation if validation is not None else held if len(held) else rest
        test = _take(arrays.train, chosen)
        if not len(chosen):
            raise UserError(
                "`partition.examples` leaves no sample for the test split, which is what no client holds; lower "
                "`partition.examples` or `partition.clients`."
            )
    # Only now: the test split must not depend on how many samples are repeated.
    options = experiment.partition.options
    holdings = repeat_samples(
        holdings, options["redundant_clients"], options["redundant_samples"], random_of(experiment, b"redundant")
    )
    away = held_out(experiment, len(holdings))
    return ClientSplit(
        arrays,
        arrays.digest or content_digest(arrays),
        clients=[rows for i, rows in enumerate(holdings) if i not in away],
        held_out=[holdings[i] for i in sorted(away)],
        validation=validation,
        test=test,
    )


def make_federation(experiment: Experiment, split: ClientSplit) -> Federation:
    """Bring the samples of all clients, each once, and the test split to where the experiment runs."""
    arrays = split.arrays
    holdings = [*split.clients, *split.held_out]
    used, places = np.unique(np.concatenate(holdings), return_inverse=True)
    everyone = ready(experiment, arrays.normalisation, _take(arrays.train, used))
    rows = torch.from_numpy(places.astype(np.int64)).to(everyone.y.device)
    sizes = [len(rows) for rows in holdings]
    parts = zip(torch.split(rows, sizes), torch.split(everyone.y[rows], sizes), strict=True)
    clients = [rows_of(everyone.source, own, labels) for own, labels in parts]
    return Federation(
        clients=tuple(clients[: len(split.clients)]),
        test=ready(experiment, arrays.normalisation, split.test),
        num_classes=len(arrays.class_names),
        held_out_clients=tuple(clients[len(split.clients) :]),
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
        digits = len(str(num_clients)) + 1
        # Rounded up, or it would be refused in its turn.
        enough = math.ceil(10**digits / num_clients) / 10**digits
        raise UserError(
            f"`holdout_clients` is {share}, which of {num_clients} clients is none; set it to at least {enough}, or "
            "to 0."
        )
    return set(random_of(experiment, b"holdout").permutation(num_clients)[:count].tolist())


def _at_sites(experiment: Experiment, arrays: Arrays) -> ClientSplit:
    """Give each client one sample that means nothing, or raise `UserError` if a setting splits samples."""
    partition, general = experiment.partition, experiment.general
    settings = {
        "partition.name": (partition.name, "given"),
        "partition.examples": (partition.options["examples"], None),
        "partition.redundant_clients": (partition.options["redundant_clients"], 0),
        "holdout_clients": (general.holdout_clients, 0),
        "evaluate_on": (general.evaluate_on, "test"),
    }
    for key, (found, left_out) in settings.items():
        if found != left_out:
            raise UserError(
                f"`{key}` is `{found}`, but `dataset.name` is `sites`, where samples lie with their clients and are "
                f"taken as they are; leave `{key}` out."
            )
    clients = [np.zeros(1, np.int64)] * partition.options["clients"]
    return ClientSplit(arrays, content_digest(arrays), clients, [], None, arrays.train, at_sites=True)


def _hold_back(experiment: Experiment, arrays: Arrays) -> Rows:
    """Choose a fifth for the test split, if there is none and clients would get everything; nothing otherwise."""
    if arrays.test is not None or experiment.partition.options["examples"] is not None:
        return np.array([], np.int64)
    held = hold_back(arrays.train.y, random_of(experiment, b"test"))
    if not len(held):
        raise UserError(
            f"`dataset.name` is `{experiment.dataset.name}`, which has no test split and {len(arrays.train.y)} "
            "samples, too few of a class to hold some back; add samples, or a test split."
        )
    return held


def _take(samples: Samples, rows: Rows) -> Samples:
    return Samples(samples.x[rows], samples.y[rows])


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

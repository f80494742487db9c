"""A site's own data: where it lies, said in a small file that stays with the site.

state = "state"            where the site keeps its private state and the log of what leaves it; beside the file
[data]
loader = "folder"          the data set that reads it: folder, npz, cifar10, ...
path = "images"            and what else that takes; a path is relative to the file
class_names = ["a", "b"]   what its labels 0, 1, ... stand for; the loader's own names if left out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from fedmate.core import ClientData
from fedmate.core.options import options_of
from fedmate.data import DATASETS, Arrays, Dataset, Samples, hold_back
from fedmate.data.files import FileDataset
from fedmate.data.paths import data_folder, expand
from fedmate.errors import UserError, nearest
from fedmate.experiment.build import decide_device
from fedmate.experiment.config import ConfigSource, Experiment, Section, load_file, resolve
from fedmate.experiment.partitioning import random_of, ready
from fedmate.flower.client_state import make_private

KEYS = ("state", "data")
NOT_HERE = ("given", "sites")
"""Data sets that are in no file."""

DECLARED = ("crop", "flip")
"""What a loader takes, but the experiment says for all sites alike."""


@final
@dataclass(frozen=True)
class SiteFile:
    """What a site's file says.

    Attributes:
        path: where it lies.
        state: the folder for what the site keeps.
        loader: what reads its data, all options spelled out.
        class_names: what the labels that the loader gives stand for; its own names if there are none.
    """

    path: Path
    state: Path
    loader: Section
    class_names: tuple[str, ...] = ()


def read_site(path: Path) -> SiteFile:
    """Read a site's file, or raise `UserError`; the data itself is not looked at."""
    path = path.absolute()
    values = load_file(path).values
    odd = next((key for key in values if key not in KEYS), None)
    if odd is not None:
        raise UserError(f"`{path}` has a key `{odd}`; {nearest(odd, KEYS)}")
    state, data = values.get("state", "state"), values.get("data")
    if not isinstance(state, str) or not state:
        raise UserError(f"`{path}` has {state!r} as `state`; name the folder for what the site keeps.")
    if not isinstance(data, dict) or not isinstance(data.get("loader"), str):
        raise UserError(
            f'`{path}` does not say what reads its data; write `[data]` and `loader = "folder"`, or others.'
        )
    with _told(path):
        names = _class_names(data.get("class_names", []))
        return SiteFile(path, path.parent / expand("state", state), _loader(path, data), names)


def load_data(site: SiteFile, experiment: Experiment, *, keep: bool = True) -> tuple[ClientData, ClientData]:
    """Return what a site trains on and what it tests on, as its experiment reads it.

    Args:
        site: where its data lies.
        experiment: one on the data set `sites`, which declares what all sites have in common.
        keep: whether to keep what was read in a form that is read at once the next time, in the site's `state`.

    Raises:
        UserError: its data cannot be read, or is not what the experiment declares.
    """
    declared: Dataset = DATASETS[experiment.dataset.name](**experiment.dataset.options)
    expected = declared.stand_ins()
    if expected is None:
        raise UserError(
            f"`{site.path}` describes a site's own data, but `dataset.name` of the experiment is "
            f"`{experiment.dataset.name}`, of which clients get a share; choose an experiment on `sites`, or leave the "
            "file out."
        )
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    with _told(site.path):
        loader: Dataset = DATASETS[site.loader.name](**site.loader.options)
        arrays = _load(loader, site.state if keep else None)
        declared.check_site(arrays)
        train, test = _split(_numbered(arrays, site.class_names, expected.class_names), experiment)
        return ready(experiment, expected.normalisation, train), ready(experiment, expected.normalisation, test)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Let a sentence about a data set speak of the keys of a site's file, and name that."""
    try:
        yield
    except UserError as error:
        text = str(error).replace("`dataset.name`", "`data.loader`").replace("`dataset.", "`data.")
        # There is no command line here.
        text = text.replace("`--data-dir` or ", "")
        raise UserError(text if f"{path}" in text else f"`{path}`: {text}") from None


def _loader(path: Path, data: dict[str, Any]) -> Section:
    """Return the loader with its options, whose paths are relative to the file."""
    name, values = data["loader"], {key: value for key, value in data.items() if key not in ("loader", "class_names")}
    if name in NOT_HERE:
        raise UserError(f"`data.loader` is `{name}`, which reads no files; use `folder`, `npz` or another.")
    cls = DATASETS[name]
    odd = next((key for key in DECLARED if key in values), None)
    if odd is not None:
        raise UserError(f"`data.{odd}` is set, which the experiment says for all sites alike; leave it out.")
    for key, field in options_of(cls).items():
        if field.metadata["path"] and isinstance(values.get(key), str) and values[key]:
            values[key] = str(path.parent / expand(f"data.{key}", values[key]))
    return resolve([ConfigSource(str(path), {"dataset": {**values, "name": name}})]).dataset


def _load(loader: Dataset, state: Path | None) -> Arrays:
    """Read a site's data; what is made of it lies where the site keeps its own, and nobody else may look there."""
    if state is not None:
        make_private(state)
    if isinstance(loader, FileDataset):
        return loader.load_through(data_folder(), [] if state is None else [state])
    return loader.load(data_folder())


def _class_names(found: object) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise UserError(f"`data.class_names` is {found!r}; give a list of names, one for each label.")
    twice = next((name for name, count in Counter(found).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"`data.class_names` has `{twice}` twice; give each label a name of its own.")
    return tuple(found)


def _numbered(arrays: Arrays, names: tuple[str, ...], classes: tuple[str, ...]) -> Arrays:
    """Return arrays with labels as the experiment numbers its classes."""
    if names and len(names) < len(arrays.class_names):
        raise UserError(
            f"`data.class_names` has {len(names)} names, but the samples have {len(arrays.class_names)} labels; name "
            "each."
        )
    names = names or arrays.class_names
    unknown = next((name for name in names if name not in classes), None)
    if unknown is not None:
        raise UserError(
            f"it has a class `{unknown}`, which is none of the experiment's; let `data.class_names` say what labels "
            f"stand for: {nearest(unknown, classes)}"
        )
    numbers = np.array([classes.index(name) for name in names], np.int64)
    train, *test = (Samples(part.x, numbers[part.y]) for part in (arrays.train, arrays.test) if part is not None)
    return arrays._replace(train=train, test=test[0] if test else None, class_names=classes)


def _split(arrays: Arrays, experiment: Experiment) -> tuple[Samples, Samples]:
    """Return the loader's own split, or hold back a fifth of each class."""
    if arrays.test is not None:
        return arrays.train, arrays.test
    held = hold_back(arrays.train.y, random_of(experiment, b"test"))
    if not len(held):
        raise UserError(
            f"it has {len(arrays.train.y)} samples, too few of a class to hold some back for a test; add samples, or a "
            "test split."
        )
    kept = np.setdiff1d(np.arange(len(arrays.train.y)), held)
    train, test = (Samples(arrays.train.x[rows], arrays.train.y[rows]) for rows in (kept, held))
    return train, test

"""A site's own data: a small file that stays with the site describes it.

state = "state"            the site's folder for its private state and its audit log; beside the file
[data]
loader = "folder"          the data set that reads it: folder, npz, cifar10, ...
path = "images"            and its other options; a path is relative to the file
class_names = ["a", "b"]   the names of labels 0, 1, ...; the loader's own if left out
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedmate.core import ClientData
from fedmate.core.options import options_of
from fedmate.data import DATASETS, Arrays, Dataset, Samples, hold_back
from fedmate.data.files import FileDataset
from fedmate.data.sources import data_folder, expand
from fedmate.errors import UserError, nearest
from fedmate.experiment.build import decide_device
from fedmate.experiment.config import ConfigSource, load_file, resolve
from fedmate.experiment.inputs import random_of, ready
from fedmate.experiment.sections import Experiment, Section
from fedmate.flower.client import make_private


class SiteFile(NamedTuple):
    """The content of a site's file."""

    path: Path  # where it is
    state: Path  # the folder for states
    loader: Section  # with all options
    class_names: tuple[str, ...]  # of the labels; the loader's own if there are none


def read_site(path: Path) -> SiteFile:
    """Read a site's file, or raise `UserError`; the data itself is not looked at."""
    path = path.absolute()
    values = load_file(path).values
    with _naming(path):
        odd = next((key for key in values if key not in ("state", "data")), None)
        if odd is not None:
            raise UserError(f"there is no key `{odd}`; {nearest(odd, ('state', 'data'))}")
        data = values.get("data")
        if not isinstance(data, dict) or "loader" not in data:
            raise UserError('`data.loader` is missing; write `[data]` and `loader = "folder"`, or another.')
        options = dict(data)
        name, names = str(options.pop("loader")), options.pop("class_names", [])
        if not isinstance(names, list) or len({*map(str, names)}) < len(names):
            raise UserError(f"`data.class_names` is {names!r}; give a list with a different name for each label.")
        if name in ("given", "sites"):
            raise UserError(f"`data.loader` is `{name}`, which reads no files; use `folder`, `npz` or another.")
        odd = next((key for key in ("crop", "flip") if key in options), None)
        if odd is not None:
            raise UserError(f"`data.{odd}` is set, which the experiment sets for all sites alike; leave it out.")
        for key, field in options_of(DATASETS[name]).items():
            if field.metadata["path"] and isinstance(options.get(key), str) and options[key]:
                options[key] = str(path.parent / expand(options[key]))
        loader = resolve([ConfigSource("its `[data]`", {"dataset": {**options, "name": name}})]).dataset
        state = path.parent / expand(str(values.get("state", "state")))
        return SiteFile(path, state, loader, tuple(map(str, names)))


def load_data(site: SiteFile, experiment: Experiment, *, keep: bool = True) -> tuple[ClientData, ClientData]:
    """Return a site's training and test samples, as its experiment on the data set `sites` reads them.

    The site's `state` gets a cache of what was read if asked to `keep` it.
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
    with _naming(site.path):
        loader: Dataset = DATASETS[site.loader.name](**site.loader.options)
        if keep:
            make_private(site.state)
        if isinstance(loader, FileDataset):
            # The cache lies in `state`, which only the site may read.
            arrays = loader.load(data_folder(), [site.state] if keep else [])
        else:
            arrays = loader.load(data_folder())
        declared.check_site(arrays)
        numbers = np.array(_numbers(arrays, site.class_names, expected.class_names))
        train, test = (
            ready(experiment, expected.normalisation, Samples(part.x, numbers[part.y]))
            for part in _split(arrays, experiment)
        )
        return train, test


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the site's file in an error."""
    try:
        yield
    except UserError as error:
        raise UserError(f"`{path}`: {error}") from None


def _numbers(arrays: Arrays, names: tuple[str, ...], classes: tuple[str, ...]) -> list[int]:
    """Return the experiment's number of each of the site's labels, matched by name."""
    if names and len(names) < len(arrays.class_names):
        found = len(arrays.class_names)
        raise UserError(f"`data.class_names` has {len(names)} names, but the samples have {found} labels; name each.")
    names = names or arrays.class_names
    unknown = next((name for name in names if name not in classes), None)
    if unknown is not None:
        raise UserError(
            f"its class `{unknown}` is none of the experiment's; set `data.class_names` to the experiment's names of "
            f"the labels: {nearest(unknown, classes)}"
        )
    return [classes.index(name) for name in names]


def _split(arrays: Arrays, experiment: Experiment) -> tuple[Samples, Samples]:
    """Return the loader's own split, or hold back a fifth of each class."""
    x, y = arrays.train
    if arrays.test is not None:
        return arrays.train, arrays.test
    held = hold_back(y, random_of(experiment, b"test"))
    if not len(held):
        raise UserError(
            f"it has {len(y)} samples, too few of a class to hold some back for a test; add samples, or a test split."
        )
    kept = np.setdiff1d(np.arange(len(y)), held)
    return Samples(x[kept], y[kept]), Samples(x[held], y[held])

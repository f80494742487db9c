"""A site's own data: what its file says, whose labels are whose, and what is tested on; every mistake is a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedmate.core import ClientData
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, resolve
from fedmate.experiment.sections import Experiment
from fedmate.flower.site_data import SiteFile, load_data, read_site

CLASSES = ["ant", "bee", "cat"]
TWENTY = np.arange(20) % 2


def experiment(seed: int = 0, **dataset: Any) -> Experiment:
    declared = {"name": "sites", "classes": CLASSES, "shape": [1, 2, 2], **dataset}
    values = {"dataset": declared, "partition": {"clients": 3}, "device": "cpu", "seed": seed}
    return resolve([ConfigSource("test", values)])


def images(labels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Samples that can be told apart, and tell their label."""
    numbers = np.arange(len(labels))
    return np.stack([labels * 10, numbers, numbers * 0, numbers * 0], 1).astype(np.uint8).reshape(-1, 1, 2, 2)


def write(folder: Path, text: str) -> Path:
    (folder / "site.toml").write_text(text, encoding="utf-8")
    return folder / "site.toml"


def npz(folder: Path, labels: NDArray[Any], names: list[str], **arrays: Any) -> SiteFile:
    np.savez(folder / "own.npz", **{"train_x": images(np.arange(len(labels))), "train_y": labels, **arrays})
    more = f"class_names = {names}" if names else ""
    return read_site(write(folder, f'[data]\nloader = "npz"\npath = "own.npz"\n{more}'))


def raw(data: ClientData) -> list[int]:
    """The numbers of samples."""
    numbers: list[int] = data.source.take(data.rows).flatten(1)[:, 1].tolist()
    return numbers


NPZ = '[data]\nloader = "npz"\n'
OWN = f'{NPZ}path = "own.npz"\n'


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (f'stat = "x"\n{NPZ}', "there is no key `stat`; did you mean `state`?"),
        ("", "`data.loader` is missing; write `[data]`"),
        ('[data]\nloader = "sites"', "`data.loader` is `sites`, which reads no files"),
        (f"{NPZ}flip = true", "`data.flip` is set, which the experiment sets for all sites alike"),
        (OWN, "its class `0` is none of the experiment's; set `data.class_names`"),
        (f'{OWN}class_names = ["ant", "beetle"]', "its class `beetle` is none of the experiment's"),
        (f'{OWN}class_names = ["ant"]', "`data.class_names` has 1 names, but the samples have 2 labels; name each."),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, fragment: str) -> None:
    npz(tmp_path, TWENTY, [])
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_data(read_site(path), experiment())
    sentence = str(caught.value)
    assert fragment in sentence
    assert f"`{path}`" in sentence or f" in {path} " in sentence
    assert "\n" not in sentence


def test_labels_are_matched_by_name(tmp_path: Path) -> None:
    """The site numbers its classes in an order of its own, and holds two of three; or its data has the names."""
    words = np.array(["bee", "ant", "bee", "cat"] * 5)
    for labels, names, expected in ((TWENTY, ["cat", "ant"], [2, 0] * 10), (words, [], [1, 0, 1, 2] * 5)):
        found = dict[int, int]()
        for data in load_data(npz(tmp_path, labels, names), experiment()):
            found |= zip(raw(data), data.y.tolist(), strict=True)
        assert [found[i] for i in range(20)] == expected


def test_a_fifth_of_each_class_is_held_back_as_the_experiments_seed_says(tmp_path: Path) -> None:
    site = npz(tmp_path, np.repeat([0, 1], [30, 10]), ["ant", "cat"])
    train, test = load_data(site, experiment())
    assert torch.bincount(train.y).tolist() == [24, 0, 8]
    assert torch.bincount(test.y).tolist() == [6, 0, 2]
    assert sorted(raw(train) + raw(test)) == list(range(40))
    assert raw(load_data(site, experiment())[1]) == raw(test)
    assert raw(load_data(site, experiment(seed=1))[1]) != raw(test)
    # Nothing is held back where there is a test split.
    own = npz(tmp_path, TWENTY, ["ant", "bee"], test_x=images(TWENTY[:3]) + 100, test_y=TWENTY[:3])
    train, test = load_data(own, experiment())
    assert (len(train.y), len(test.y)) == (20, 3)
    assert min(raw(test)) >= 100

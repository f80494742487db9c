"""A site's own data: what its file says, whose labels are whose, and what is tested on; every mistake is a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fedmate.core import ClientData
from fedmate.errors import UserError
from fedmate.experiment.config import ConfigSource, Experiment, resolve
from fedmate.flower.site_data import SiteFile, load_data, read_site

CLASSES = ["ant", "bee", "cat"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache but the test's own."""
    (tmp_path / "sets").mkdir()
    monkeypatch.setenv("FEDMATE_DATA", str(tmp_path / "sets"))


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


def write_npz(folder: Path, labels: NDArray[np.int64], more: str = "", **arrays: Any) -> SiteFile:
    np.savez(folder / "own.npz", **{"train_x": images(labels), "train_y": labels, **arrays})
    return read_site(write(folder, f'[data]\nloader = "npz"\npath = "own.npz"\n{more}'))


def raw(data: ClientData) -> list[list[int]]:
    return data.source.take(data.rows).flatten(1)[:, :2].tolist()


def refused(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(UserError) as caught:
        load_data(read_site(path), experiment())
    sentence = str(caught.value)
    assert f"`{path}`" in sentence or f" in {path} " in sentence
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    return sentence


# -------------------- the file


def test_a_file_says_where_data_and_state_lie_from_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    write(tmp_path / "here", 'state = "kept"\n[data]\nloader = "folder"\npath = "images"\nsize = 8\n')
    monkeypatch.chdir(tmp_path)
    site = read_site(Path("here/site.toml"))
    assert site.path == tmp_path / "here" / "site.toml"
    assert site.state == tmp_path / "here" / "kept"
    assert site.loader.name == "folder"
    assert site.loader.options["path"] == str(tmp_path / "here" / "images")
    assert (site.loader.options["size"], site.loader.options["grey"]) == (8, False)
    assert site.class_names == ()


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("x", "is not valid TOML"),
        ('stat = "x"\n[data]\nloader = "npz"', "there is no key `stat`; did you mean `state`?"),
        ('state = 3\n[data]\nloader = "npz"', "`state` is 3; name the site's folder"),
        ("", "`data.loader` is missing; write `[data]`"),
        ("data = 3", "`data.loader` is missing"),
        ('[data]\nloader = "foldr"', "`foldr` is not among the datasets; did you mean `folder`?"),
        ('[data]\nloader = "given"', "`data.loader` is `given`, which reads no files; use `folder`, `npz`"),
        ('[data]\nloader = "sites"', "`data.loader` is `sites`, which reads no files"),
        ('[data]\nloader = "npz"\nflip = true', "`data.flip` is set, which the experiment sets for all sites alike"),
        ('[data]\nloader = "npz"\npth = "x"', "`dataset.pth` in its `[data]`"),
        ('[data]\nloader = "folder"\nsize = 0', "`dataset.size` is 0; set it to a finite number at least 1"),
        ('[data]\nloader = "npz"\nclass_names = "a"', "`data.class_names` is 'a'; give a list"),
        ('[data]\nloader = "npz"\nclass_names = ["a", "a"]', "give a list with a different name for each"),
        ('[data]\nloader = "npz"', "`dataset.path` is ``, which is no file"),
        ('[data]\nloader = "npz"\npath = "no.npz"', "no.npz`, which is no file; set it to your"),
        ('[data]\nloader = "cifar10"', "`dataset.name` is `cifar10`, but "),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, fragment: str) -> None:
    assert fragment in refused(tmp_path, text)


# -------------------- the data


def test_labels_are_matched_by_name(tmp_path: Path) -> None:
    """The site numbers its classes in an order of its own, and holds two of three."""
    labels = np.arange(20) % 2
    site = write_npz(tmp_path, labels, 'class_names = ["cat", "ant"]')
    train, test = load_data(site, experiment())
    for data in (train, test):
        told = {(label * 10, number) for label, number in ((0, 2), (1, 0))}
        assert {(mark, y) for (mark, _), y in zip(raw(data), data.y.tolist(), strict=True)} == told


def test_names_in_the_data_do_without_the_file(tmp_path: Path) -> None:
    words = np.array(["bee", "ant", "bee", "cat"] * 5)
    np.savez(tmp_path / "own.npz", train_x=images(np.arange(20)), train_y=words)
    train, test = load_data(read_site(write(tmp_path, '[data]\nloader = "npz"\npath = "own.npz"')), experiment())
    found = {
        number // 10: y for data in (train, test) for (number, _), y in zip(raw(data), data.y.tolist(), strict=True)
    }
    assert [CLASSES[found[i]] for i in range(20)] == words.tolist()


def test_a_fifth_of_each_class_is_held_back_as_the_experiments_seed_says(tmp_path: Path) -> None:
    labels = np.repeat([0, 1], [30, 10])
    site = write_npz(tmp_path, labels, 'class_names = ["ant", "cat"]')
    train, test = load_data(site, experiment())
    assert torch.bincount(train.y).tolist() == [24, 0, 8]
    assert torch.bincount(test.y).tolist() == [6, 0, 2]
    assert sorted(number for _, number in raw(train) + raw(test)) == list(range(40))
    assert raw(load_data(site, experiment())[1]) == raw(test)
    assert raw(load_data(site, experiment(seed=1))[1]) != raw(test)


def test_a_test_split_of_its_own_is_taken(tmp_path: Path) -> None:
    labels = np.arange(6) % 2
    more = {"test_x": images(labels[:3]) + 100, "test_y": labels[:3]}
    train, test = load_data(write_npz(tmp_path, labels, 'class_names = ["ant", "bee"]', **more), experiment())
    assert (len(train.y), len(test.y)) == (6, 3)
    assert min(number for number, _ in raw(test)) >= 100


def test_samples_are_read_as_the_experiment_declares(tmp_path: Path) -> None:
    site = write_npz(tmp_path, np.arange(20) % 3, 'class_names = ["ant", "bee", "cat"]')
    declared = experiment(mean=[10.0], std=[2.0], crop=1, flip=True)
    train, _ = load_data(site, declared)
    assert train.is_augmented
    assert torch.equal(train.x, (train.source.take(train.rows).float() - 10) / 2)
    plain, _ = load_data(site, experiment())
    assert not plain.is_augmented
    assert torch.allclose(plain.x, (plain.source.take(plain.rows).float() - 127.5) / 127.5)


def test_images_in_folders_are_read(tmp_path: Path) -> None:
    for name in ("bee", "cat"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(10):
            colour = (i, i, i) if name == "bee" else (200 + i, 200 + i, 200 + i)
            Image.new("RGB", (2, 2), colour).save(tmp_path / "images" / name / f"{i}.png")
    text = '[data]\nloader = "folder"\npath = "images"\ngrey = true\n'
    train, test = load_data(read_site(write(tmp_path, text)), experiment())
    assert sorted(train.y.tolist() + test.y.tolist()) == [1] * 10 + [2] * 10
    assert all((mark >= 200) == (y == 2) for (mark, _), y in zip(raw(train), train.y.tolist(), strict=True))
    sentence = refused(tmp_path, '[data]\nloader = "folder"\npath = "images"\n')
    assert "its samples have the shape [3, 2, 2], those of the experiment [1, 2, 2]" in sentence
    assert "`data.size` and `data.grey`" in sentence


@pytest.mark.parametrize(
    ("names", "fragment"),
    [
        (["ant", "beetle"], "its class `beetle` is none of the experiment's"),
        (["ant"], "`data.class_names` has 1 names, but the samples have 2 labels; name each."),
        ([], "its class `0` is none of the experiment's; set `data.class_names`"),
    ],
)
def test_classes_that_the_experiment_does_not_know_are_refused(tmp_path: Path, names: list[str], fragment: str) -> None:
    write_npz(tmp_path, np.arange(20) % 2)
    text = f'[data]\nloader = "npz"\npath = "own.npz"\nclass_names = {names}\n'
    assert fragment in refused(tmp_path, text)


def test_images_that_are_no_bytes_are_refused_unless_the_experiment_says_how_to_read_them(tmp_path: Path) -> None:
    labels = np.arange(20) % 2
    more = {"train_x": images(labels) / np.float32(255)}
    site = write_npz(tmp_path, labels, 'class_names = ["ant", "bee"]', **more)
    assert "its images hold float32 values, but the experiment takes bytes" in refused(
        tmp_path, site.path.read_text(encoding="utf-8")
    )
    train, _ = load_data(site, experiment(mean=[0.5], std=[0.5]))
    assert float(train.x.min()) == -1


def test_what_is_made_of_the_data_stays_with_the_site_and_is_its_owners_alone(tmp_path: Path) -> None:
    site = write_npz(tmp_path, np.arange(30) % 3, f"class_names = {CLASSES}")
    load_data(site, experiment())
    assert [path.parent for path in tmp_path.rglob("*.safetensors")] == [site.state / "cached"]
    assert site.state.stat().st_mode & 0o077 == 0
    (tmp_path / "state" / "cached").rename(tmp_path / "elsewhere")
    (tmp_path / "state").rmdir()
    (tmp_path / "state").write_text("a file")
    with pytest.raises(UserError, match=r"`state` is .*, which cannot be made"):
        load_data(site, experiment())

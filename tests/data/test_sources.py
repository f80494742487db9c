"""The table of origins is well formed, and what it names is what the loaders look for."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import pytest

from fedmate.data import DATASETS
from fedmate.data.files import FileDataset
from fedmate.data.sources import OFFICIAL, File

FILES = [file for origin in OFFICIAL.values() for file in (*origin.files, *origin.others)]
NAMES = [file.name for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_a_file_is_described_completely(file: File) -> None:
    address = urlsplit(file.url)
    assert address.scheme in ("https", "http")
    assert address.hostname
    assert file.url.isascii()
    place = PurePosixPath(file.name)
    assert not place.is_absolute()
    assert ".." not in place.parts
    assert file.size > 0
    assert re.fullmatch(r"[0-9a-f]+", file.checksum)
    assert len(file.checksum) == 2 * hashlib.new(file.algorithm).digest_size
    assert "https://" in file.source


def test_no_two_files_are_one() -> None:
    assert len({*NAMES}) == len({file.url for file in FILES}) == len({file.checksum for file in FILES}) == len(FILES)


@pytest.mark.parametrize("name", OFFICIAL)
def test_there_is_one_way_to_get_each_data_set(name: str) -> None:
    origin = OFFICIAL[name]
    assert origin.title
    assert [bool(origin.files), bool(origin.steps), bool(origin.hint)].count(True) == 1


def test_steps_name_the_folder(tmp_path: Path) -> None:
    steps = [step.format(folder=tmp_path) for step in OFFICIAL["animal10"].steps]
    assert any(f"`{tmp_path}`" in step for step in steps)
    assert not any("{" in step for step in steps)
    # What they say does as well.
    (tmp_path / "archive.zip").touch()
    assert find("animal10", tmp_path) == [tmp_path / "archive.zip"]


def find(name: str, folder: Path) -> list[Path]:
    dataset = DATASETS[name]()
    assert isinstance(dataset, FileDataset)
    return dataset.find(folder)


@pytest.mark.parametrize("name", [name for name, origin in OFFICIAL.items() if origin.files])
def test_loaders_find_what_is_fetched(tmp_path: Path, name: str) -> None:
    assert sorted(find(name, put(tmp_path, OFFICIAL[name].files))) == sorted(
        tmp_path / file.name for file in OFFICIAL[name].files
    )


@pytest.mark.parametrize(("name", "file"), [(n, file) for n, o in OFFICIAL.items() for file in o.others])
def test_loaders_find_what_may_be_there_instead(tmp_path: Path, name: str, file: File) -> None:
    assert find(name, put(tmp_path, (file,))) == [tmp_path / file.name]


def put(folder: Path, files: tuple[File, ...]) -> Path:
    for file in files:
        (folder / file.name).parent.mkdir(exist_ok=True)
        (folder / file.name).touch()
    return folder


def test_every_data_set_has_an_origin() -> None:
    assert {name for name in DATASETS.names() if DATASETS[name].__module__.startswith("fedmate.")} == {*OFFICIAL}

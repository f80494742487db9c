"""`fedmate data`, in this process: downloads, checks, descriptions, and one sentence for each mistake."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from tests import test_cli
from tests.test_cli import Fedmate, lacking, refuse

from fedmate.core import option
from fedmate.data import DATASETS, Arrays, Samples, sources
from fedmate.data.files import FileDataset
from fedmate.data.sources import RemoteFile
from fedmate.errors import UserError

fedmate_ = test_cli.fedmate_

CONTENT = bytes(range(256)) * 10
DOWNLOADED: list[RemoteFile] = []


@dataclass(frozen=True, kw_only=True)
class Tiny(FileDataset):
    """Tiny: numbers of one byte.

    A second paragraph.
    """

    reading: ClassVar[tuple[str, ...]] = ("split", "skip_bad")
    downloads: ClassVar[tuple[RemoteFile, ...]] = (
        RemoteFile("https://example.org/tiny", "deep/tiny.bin", 2560, hashlib.md5(CONTENT).hexdigest()),
    )

    split: Literal["all", "even"] = option("all", "which samples")
    skip_bad: bool = option(False, "leave out zeros")

    def find(self, folder: Path) -> list[Path]:
        found = [folder / name for name in ("deep/tiny.bin", "tiny.bin", "tiny.own") if (folder / name).exists()]
        if not found:
            raise UserError("`dataset.name` is `tiny`, which is missing; download it.")
        return found[:1]

    def read(self, found: Sequence[Path]) -> Arrays:
        x = np.frombuffer(found[0].read_bytes(), np.uint8).reshape(-1, 1)
        x = x[x[:, 0] > 0] if self.skip_bad else x
        x = x[::2] if self.split == "even" else x
        train, test = (Samples(part, part[:, 0].astype(np.int64) % 2) for part in (x[5:], x[:5]))
        clients = np.arange(len(train.y)) % 3
        return Arrays(train, test, ("even", "odd"), clients=clients, notes=("Numbers are only numbers.",))


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offer the data set `tiny`, whose download writes its file; the folder of data sets does not exist."""

    def fake(files: Sequence[RemoteFile], folder: Path) -> None:
        for file in files:
            DOWNLOADED.append(file)
            (folder / file.path).parent.mkdir(parents=True)
            (folder / file.path).write_bytes(CONTENT)

    DOWNLOADED.clear()
    for name in ("FEDMATE_DATA", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setitem(DATASETS._rows, "tiny", Tiny)
    monkeypatch.setattr(sources, "download", fake)


def test_a_data_set_is_downloaded_checked_read_and_described(fedmate_: Fedmate, tmp_path: Path) -> None:
    folder = tmp_path / "caches" / "fedmate"
    for _ in range(2):
        answer = fedmate_("data", "tiny")
        assert (answer.status, answer.err) == (0, "")
        assert answer.out.splitlines() == [
            "Tiny: numbers of one byte",
            "  training   2,555 samples",
            "  test       5 samples",
            "  classes    2: even, odd",
            "  a sample   1, uint8",
            "  clients    3 natural clients",
            f"  place      {folder / 'deep/tiny.bin'}",
            "  checksum   as published",
            "Note: Numbers are only numbers.",
        ]
    assert len(DOWNLOADED) == 1


def test_a_users_own_file_is_checked_where_it_has_a_published_name(fedmate_: Fedmate, tmp_path: Path) -> None:
    (tmp_path / "tiny.own").write_bytes(CONTENT * 2)
    assert "checksum" not in fedmate_("data", "tiny", "--data-dir", ".").out
    (tmp_path / "tiny.bin").write_bytes(CONTENT * 2)
    sentence = refuse(fedmate_, tmp_path, "data", "tiny", "--data-dir", ".")
    assert lacking(sentence, ["tiny.bin", hashlib.md5(CONTENT * 2).hexdigest(), Tiny.downloads[0].md5]) == []
    assert DOWNLOADED == []


def test_a_failing_network_has_the_status_1(fedmate_: Fedmate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(files: Sequence[RemoteFile], folder: Path) -> None:
        raise sources.DownloadError("`https://example.org/tiny` cannot be downloaded (no route); try again")

    monkeypatch.setattr(sources, "download", fail)
    answer = fedmate_("data", "tiny")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err == "Error: `https://example.org/tiny` cannot be downloaded (no route); try again.\n"


def test_animal10_is_explained_step_by_step(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("data", "animal10")
    assert answer.status == 2
    assert (
        lacking(answer.out, ["1. Sign in", "kaggle.com/datasets/alessiocorrado99/animals10", "fedmate/animal10"]) == []
    )
    assert "`animal10` is not in `" in answer.err
    assert "follow the steps above" in answer.err


def test_the_list_says_which_data_sets_are_there(fedmate_: Fedmate, tmp_path: Path) -> None:
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    before = fedmate_("data", "--data-dir", "mine").out
    (tmp_path / "mine" / "deep" / "tiny.bin").write_bytes(CONTENT)
    after = fedmate_("data", "--data-dir", "mine").out
    assert "      not here: `fedmate data tiny` downloads it (2.6 kB)\n" in before
    assert "      here: mine/deep/tiny.bin\n" in after
    for text in (before, after):
        assert "      not here: `fedmate data animal10` tells how to get it\n" in text
        assert "      yours: `--set dataset.path=PATH` names it\n" in text
        assert "  tiny           Tiny: numbers of one byte\n" in text
        assert all(f"\n  {name} " in text for name in DATASETS.names())
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["deep"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["tinny"], ["`tinny`", "did you mean `tiny`?"]),
        (["tiny", "--set", "dataset.spilt=even"], ["spilt", "did you mean `split`?"]),
        (["digits", "--skip-bad"], ["skip_bad", "`digits`"]),
        (["given"], ["`fedmate.run(..., data=...)`"]),
        (["sites"], ["docs/deploy.md"]),
        (["npz"], ["`dataset.path`"]),
        (["tiny", "--data-dir", "nowhere"], ["`--data-dir`", "`nowhere`", "does not exist"]),
    ],
)
def test_a_wrong_command_gets_one_sentence(
    fedmate_: Fedmate, tmp_path: Path, arguments: list[str], found: list[str]
) -> None:
    assert lacking(refuse(fedmate_, tmp_path, "data", *arguments), found) == []
    assert DOWNLOADED == []

"""`fedmate data`, in this process: what it fetches, checks and tells, and the one sentence that trouble gets."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pytest
from rich.console import Console
from tests import test_cli
from tests.data.site import SOURCE, Site, serving
from tests.test_cli import Fedmate, lacking, refuse, snapshot

from fedmate import storage
from fedmate.cli import data
from fedmate.cli.app import Terminated
from fedmate.core import option
from fedmate.data import DATASETS, Arrays, Normalisation, Samples, download
from fedmate.data.files import Content, FileDataset, missing
from fedmate.data.sources import OFFICIAL, Origin

fedmate_ = test_cli.fedmate_

ARCHIVE = "tiny.bin"


@dataclass(frozen=True, kw_only=True)
class Tiny(FileDataset):
    """Numbers of one byte."""

    reading: ClassVar[tuple[str, ...]] = ("split", "skip_bad")

    split: Literal["all", "even"] = option("all", "which samples")
    skip_bad: bool = option(False, "leave out zeros")

    def find(self, folder: Path) -> list[Path]:
        for name in (ARCHIVE, f"deep/{ARCHIVE}", "tiny.other", "tiny.own"):
            if (folder / name).is_file():
                return [folder / name]
        raise missing("tiny", folder, (ARCHIVE,))

    def read(self, found: Sequence[Path]) -> Content:
        x = np.frombuffer(found[0].read_bytes(), np.uint8).reshape(-1, 1)
        x = x[x[:, 0] > 0] if self.skip_bad else x
        x = x[::2] if self.split == "even" else x
        train, test = (Samples(part, part[:, 0].astype(np.int64) % 2) for part in (x[5:], x[:5]))
        return Content(train, test, ("even", "odd"), np.arange(len(train.y)) % 3, ("Numbers are only numbers.",))

    def normalisation(self, content: Content) -> Normalisation:
        return Normalisation()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    """Serve the data set `tiny`; the folder of data sets is `cache`, which does not exist."""
    with serving(monkeypatch) as site:
        for name in ("FEDMATE_DATA", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
        monkeypatch.setattr("fedmate.data.paths.sys.platform", "linux")
        monkeypatch.setitem(DATASETS._rows, "tiny", Tiny)
        publish(monkeypatch, site, "whole")
        yield site


def publish(monkeypatch: pytest.MonkeyPatch, site: Site, way: str) -> None:
    others = (replace(site.file(), name="tiny.other", url="http://127.0.0.1/never"),)
    monkeypatch.setitem(OFFICIAL, "tiny", Origin("Tiny: bytes", (site.file(way, ARCHIVE),), others))


def failure(answer: test_cli.Answer, status: int) -> str:
    """Return the one sentence of a failure."""
    assert answer.status == status
    (line,) = answer.err.splitlines()
    assert line.startswith("Error: `")
    assert re.search(r"[^.]\.$", line)
    return line


# -------------------- fetching


def test_a_data_set_is_fetched_checked_read_and_described(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    answer = fedmate_("data", "tiny")
    assert (answer.status, answer.err) == (0, "")
    folder = tmp_path / "caches" / "fedmate"
    assert (folder / ARCHIVE).read_bytes() == site.content
    assert [path.suffix for path in (folder / "cached").iterdir()] == [".safetensors"]
    assert answer.out.splitlines() == [
        f"fetching {site.address}/whole (256.0 kB)",
        "Tiny: bytes",
        "  training   255,995 samples",
        "  test       5 samples",
        "  classes    2: even, odd",
        "  a sample   1, uint8",
        "  clients    3 of its own",
        f"  place      {folder / ARCHIVE}",
        f"  checksum   as published ({SOURCE})",
        "Note: Numbers are only numbers.",
    ]
    again = fedmate_("data", "tiny")
    assert again.out.splitlines() == answer.out.splitlines()[1:]
    assert len(site.requests) == 1


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_folder_can_be_named(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (tmp_path / "mine").mkdir()
    if how == "variable":
        monkeypatch.setenv("FEDMATE_DATA", str(tmp_path / "mine"))
    assert fedmate_("data", "tiny", *(["--data-dir", "mine"] if how == "option" else [])).status == 0
    assert (tmp_path / "mine" / ARCHIVE).exists()
    assert not (tmp_path / "caches").exists()


def test_a_named_folder_has_to_exist(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    sentence = refuse(fedmate_, tmp_path, "data", "tiny", "--data-dir", "nowhere")
    assert lacking(sentence, ["`--data-dir`", "`nowhere`", "does not exist"]) == []
    assert site.requests == []


def test_a_failing_network_has_the_status_1_and_says_what_else_does(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, site, "dropped")
    sentence = failure(fedmate_("data", "tiny"), 1)
    folder = tmp_path / "caches" / "fedmate"
    assert lacking(sentence, [f"`{site.address}/dropped`", "128000 of 256000", f"`{folder}` as `{ARCHIVE}`"]) == []
    publish(monkeypatch, site, "whole")
    answer = fedmate_("data", "tiny")
    assert answer.status == 0
    assert answer.out.splitlines()[0] == f"fetching {site.address}/whole (from 128.0 kB on, 256.0 kB)"
    assert site.ranges() == [None, "bytes=128000-"]


def test_a_wrong_download_names_both_sums(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hashlib.md5(site.content).hexdigest()
    origin = OFFICIAL["tiny"]
    monkeypatch.setitem(OFFICIAL, "tiny", replace(origin, files=(replace(origin.files[0], checksum="0" * 32),)))
    sentence = failure(fedmate_("data", "tiny"), 1)
    assert lacking(sentence, [found, "0" * 32, "try again"]) == []
    assert not any(path.name.startswith("tiny") for path in (tmp_path / "caches" / "fedmate").iterdir())


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt(), 130), (Terminated(143), 143)])
def test_who_is_stopped_is_told_that_it_goes_on(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException, status: int
) -> None:
    append = storage.append

    def stopped(path: Path, content: bytes) -> None:
        append(path, content)
        raise stop

    monkeypatch.setattr(storage, "append", stopped)
    answer = fedmate_("data", "tiny")
    monkeypatch.setattr(storage, "append", append)
    assert answer.status == status
    assert answer.err == "Stopped. What has arrived is kept: the same command goes on from there.\n"
    assert fedmate_("data", "tiny").status == 0
    assert site.ranges() == [None, f"bytes={download.AT_ONCE}-"]


# -------------------- what is there already


def test_a_users_wrong_archive_is_named_with_both_sums_and_left_alone(
    fedmate_: Fedmate, site: Site, tmp_path: Path
) -> None:
    (tmp_path / ARCHIVE).write_bytes(b"twelve bytes")
    sentence = refuse(fedmate_, tmp_path, "data", "tiny", "--data-dir", ".")
    mine = hashlib.md5(b"twelve bytes").hexdigest()
    assert lacking(sentence, [f"`{ARCHIVE}`", mine, OFFICIAL["tiny"].files[0].checksum, SOURCE]) == []
    assert site.requests == []


@pytest.mark.parametrize("name", ["tiny.other", f"deep/{ARCHIVE}"])
def test_other_forms_and_places_are_checked_too(fedmate_: Fedmate, site: Site, tmp_path: Path, name: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / name).write_bytes(b"twelve bytes")
    sentence = refuse(fedmate_, tmp_path, "data", "tiny", "--data-dir", ".")
    assert lacking(sentence, [f"`{name}`", hashlib.md5(b"twelve bytes").hexdigest()]) == []
    (tmp_path / name).write_bytes(site.content)
    answer = fedmate_("data", "tiny", "--data-dir", ".")
    assert answer.status == 0
    assert lacking(answer.out, [f"  place      {name}", "  checksum   as published"]) == []


def test_a_form_that_nobody_publishes_is_read_unchecked(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.own").write_bytes(bytes(range(20)))
    answer = fedmate_("data", "tiny", "--data-dir", ".")
    assert (answer.status, answer.err) == (0, "")
    assert lacking(answer.out, ["  training   15 samples", "  place      tiny.own"]) == []
    assert "checksum" not in answer.out
    assert site.requests == []


def test_options_of_the_data_set_count(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    (tmp_path / "tiny.own").write_bytes(bytes(20) + bytes(range(20)))
    here = ("data", "tiny", "--data-dir", ".")

    def training(*arguments: str) -> str:
        return next(line for line in fedmate_(*here, *arguments).out.splitlines() if "training" in line)

    assert training() == "  training   35 samples"
    assert training("--set", "dataset.split=even") == "  training   15 samples"
    assert training("--skip-bad") == training("--set", "dataset.skip_bad=true") == "  training   14 samples"
    assert training("--skip-bad", "--set", "dataset.split=even") == "  training   5 samples"


def test_what_needs_nothing_is_described(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    answer = fedmate_("data", "digits")
    assert (answer.status, answer.err) == (0, "")
    wanted = ["1,797 samples", "none of its own", "10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9", "1 x 8 x 8, uint8"]
    assert lacking(answer.out, wanted) == []
    assert not {"place", "checksum", "clients"} & {*answer.out.split()[:-1]}
    assert list(tmp_path.iterdir()) == []


def test_many_classes_are_not_all_named() -> None:
    samples = Samples(np.zeros((1, 2)), np.zeros(1, np.int64))
    arrays = Arrays(samples, None, tuple(f"c{i}" for i in range(11)))
    lines = list(data._describe("unheard", arrays, [Path("a"), Path("b"), Path("c")], []))
    assert lines[0] == "unheard"
    assert f"  classes    11: {', '.join(f'c{i}' for i in range(10))}, ..." in lines
    assert "  place      a and 2 more" in lines


# -------------------- what cannot be fetched


def test_steps_are_told_where_an_account_is_needed(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("Sign in.", "Put `tiny.own` into `{folder}`.")
    monkeypatch.setitem(OFFICIAL, "tiny", Origin("Tiny: bytes", steps=steps))
    before = snapshot(tmp_path)
    answer = fedmate_("data", "tiny", "--data-dir", ".")
    assert answer.out.splitlines() == ["1. Sign in.", "2. Put `tiny.own` into `.`."]
    assert lacking(failure(answer, 2), ["`tiny` is not in `.`", "the same command again"]) == []
    assert snapshot(tmp_path) == before
    (tmp_path / "tiny.own").write_bytes(bytes(range(20)))
    assert fedmate_("data", "tiny", "--data-dir", ".").status == 0


def test_a_data_set_of_another_package_says_itself_what_it_misses(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(OFFICIAL, "tiny")
    assert lacking(refuse(fedmate_, tmp_path, "data", "tiny", "--data-dir", "."), [ARCHIVE]) == []
    (tmp_path / "tiny.own").write_bytes(bytes(range(20)))
    assert fedmate_("data", "tiny", "--data-dir", ".").out.splitlines()[0] == "tiny"


def test_python_s_own_data_is_refused(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    assert lacking(refuse(fedmate_, tmp_path, "data", "given"), ["`given`", "fedmate.run(..., data=...)"]) == []


# -------------------- the list


def test_the_list_tells_what_is_at_hand_and_how_to_get_the_rest(
    fedmate_: Fedmate, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plugged", "stepped"):
        monkeypatch.setitem(DATASETS._rows, name, Tiny)
    monkeypatch.setitem(OFFICIAL, "stepped", Origin("Steps", steps=("Walk.",)))
    answer = fedmate_("data", "--data-dir", ".")
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "data sets in .:"
    told = {line.split()[0]: (line, after) for line, after in zip(lines[1::2], lines[2::2], strict=True)}
    assert list(told) == DATASETS.names()
    assert told["tiny"] == ("  tiny           Tiny: bytes", "      not here: `fedmate data tiny` fetches it (256.0 kB)")
    assert told["stepped"][1] == "      not here: `fedmate data stepped` says how to get it"
    assert told["plugged"] == ("  plugged        Numbers of one byte", "      `fedmate data plugged` looks for it")
    assert told["digits"][1] == "      comes with scikit-learn: nothing to get"
    (tmp_path / "tiny.own").touch()
    assert "      here: tiny.own" in fedmate_("data", "--data-dir", ".").out.splitlines()
    assert site.requests == []


def test_the_list_needs_no_folder_and_makes_none(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    answer = fedmate_("data")
    assert answer.out.splitlines()[0] == f"data sets in {tmp_path / 'caches' / 'fedmate'}:"
    assert list(tmp_path.iterdir()) == []


# -------------------- what is asked wrongly

WRONG: dict[str, tuple[list[str], list[str]]] = {
    "unknown name": (["tinny"], ["`dataset.name`", "`tinny`", "did you mean `tiny`?"]),
    "another section": (["tiny", "--set", "training.epochs=2"], ["`--set`", "`training`", "dataset.key=value"]),
    "another key": (["tiny", "--set", "rounds=2"], ["`--set`", "`rounds`", "dataset.key=value"]),
    "unknown section": (["tiny", "--set", "datset.split=even"], ["`[datset]`", "did you mean `dataset`?"]),
    "unknown option": (["tiny", "--set", "dataset.splt=even"], ["`dataset.splt`", "did you mean `split`?"]),
    "unknown value": (["tiny", "--set", "dataset.split=odd"], ["`dataset.split`", "'odd'"]),
    "malformed": (["tiny", "--set", "dataset.split"], ["`--set`", "`dataset.split`"]),
    "the name again": (["tiny", "--set", "dataset.name=digits"], ["`--set dataset.name`", "`tiny`"]),
    "no bad files": (["digits", "--skip-bad"], ["`--skip-bad`", "`digits`", "leave it out"]),
    "settings for nothing": (["--set", "dataset.split=even"], ["`--set`", "name it"]),
    "bad files of nothing": (["--skip-bad"], ["`--skip-bad`", "name it"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_one_sentence(fedmate_: Fedmate, site: Site, tmp_path: Path, case: str) -> None:
    arguments, wanted = WRONG[case]
    assert lacking(refuse(fedmate_, tmp_path, "data", *arguments), wanted) == []
    assert site.requests == []


# -------------------- how it looks


@pytest.mark.parametrize("total", [256_000, None])
def test_a_terminal_has_a_bar_for_each_file(site: Site, total: int | None) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, _environ={})
    with data._Arrivals(console) as arrivals:
        for name in ("a.gz", "b.gz"):
            for have in (64_000, 128_000, 256_000):
                arrivals.report(site.file(name=name), have, total)
    last = [line for line in screen.getvalue().split("\n") if "kB" in line][-2:]
    assert ["a.gz" in last[0], "b.gz" in last[1]] == [True, True]
    assert all(("256.0/256.0 kB" if total else "256.0/? kB") in line for line in last)


def test_help_is_quick() -> None:
    code = "import sys, fedmate.cli.data; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -------------------- the real data sets


def test_animal10_is_told_step_by_step(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    answer = fedmate_("data", "animal10", "--data-dir", ".")
    assert [line[:3] for line in answer.out.splitlines()] == ["1. ", "2. ", "3. ", "4. "]
    assert (
        lacking(answer.out, ["https://www.kaggle.com/datasets/alessiocorrado99/animals10", "`./animal10/raw-img/"])
        == []
    )
    assert "account" in failure(answer, 2)


@pytest.mark.parametrize("name", ["npz", "folder"])
def test_a_users_own_says_what_it_needs(fedmate_: Fedmate, site: Site, tmp_path: Path, name: str) -> None:
    assert "`dataset.path`" in refuse(fedmate_, tmp_path, "data", name)


def test_a_users_own_arrays_are_described(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", train_x=np.zeros((6, 2)), train_y=np.arange(6) % 2)
    answer = fedmate_("data", "npz", "--set", "dataset.path=mine.npz")
    assert (answer.status, answer.err) == (0, "")
    assert (
        lacking(answer.out, ["6 samples", "none of its own", "2: 0, 1", f"  place      {tmp_path / 'mine.npz'}"]) == []
    )


def test_a_damaged_archive_is_refused_before_it_is_read(fedmate_: Fedmate, site: Site, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"torn")
    sentence = refuse(fedmate_, tmp_path, "data", "cifar10", "--data-dir", ".")
    wanted = ["`cifar-10-python.tar.gz`", hashlib.md5(b"torn").hexdigest(), "c58f30108f718f92721af3b95e74349a"]
    assert lacking(sentence, wanted) == []

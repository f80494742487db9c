"""The command `partition`: who would hold what, as a table, a summary or a picture, and nothing trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests import test_cli
from tests.test_cli import Fedmate, refuse

from fedmate.core import option
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.experiment.config import parse_set
from fedmate.experiment.inputs import NO_INPUTS, split_samples
from fedmate.experiment.prepare import Request, compose

fedmate_ = test_cli.fedmate_


@dataclass(frozen=True, kw_only=True)
class Toys(Dataset):
    """A hundred samples of as many classes as asked for, with a test split, a note and odd names."""

    kinds: int = option(4, "how many classes there are")
    skip_bad: bool = option(False, "leave out what cannot be read")

    def load(self, folder: Path) -> Arrays:
        y = np.arange(100, dtype=np.int64) % self.kinds
        samples = Samples(np.zeros((100, 1, 2, 2), dtype=np.uint8), y)
        names = ("[red]cat", ":dog:", "two\nlines", *(f"kind {k}" for k in range(3, self.kinds)))
        notes = (f"`skip_bad` is {self.skip_bad}.", f"Read from {folder.name}.")
        return Arrays(samples, Samples(samples.x[:7], y[:7]), names[: self.kinds], notes=notes)


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._rows, "toys", Toys)
    monkeypatch.delenv("FEDMATE_DATA", raising=False)


TOYS = ("partition", "--dataset", "toys", "--set", "partition.name=iid", "--set", "partition.clients=3")


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


# -------------------- what is printed


def test_digits_are_split_as_in_a_run(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_("partition")
    assert (answer.status, answer.err) == (0, "")
    assert "\x1b" not in answer.out
    (experiment,) = compose(Request())
    split = split_samples(experiment, NO_INPUTS)
    counts = split.class_counts()
    found = rows(answer.out)
    assert " ".join(found[0]) == "digits, share (share = 10), seed 0"
    assert found[1] == ["client", *map(str, range(10)), "all"]
    for i in range(20):
        assert [str(i), *map(str, counts[i]), "40"] in found
    assert ["all", *map(str, counts.sum(0)), "800"] in found
    assert answer.out.splitlines()[-3:] == [
        "Test split: 997 samples",
        f"Data set:  sha256 {split.data_sha256}",
        f"Partition: sha256 {split.sha256}",
    ]
    assert [*tmp_path.iterdir()] == []


def test_names_and_notes_are_printed_as_they_are(fedmate_: Fedmate) -> None:
    answer = fedmate_(*TOYS, "--set", "partition.examples=8")
    assert (answer.status, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "Note: `skip_bad` is False."
    head = " ".join(lines[2 : lines.index(next(line for line in lines if "\u2500" in line))])
    assert {"client", "[red]cat", ":dog:", "two", "lines", "kind", "3", "all"} <= {*head.split()}
    assert rows(answer.out)[-4][-1] == "24"


# -------------------- many clients or classes


def test_the_summary(fedmate_: Fedmate) -> None:
    words = ("dataset.kinds=50", "partition.name=pathological", "partition.clients=4", "partition.examples=7")
    answer = fedmate_("partition", "--dataset", "toys", *(word for one in words for word in ("--set", one)))
    (experiment,) = compose(Request(dataset="toys", settings=parse_set(words)))
    counts = split_samples(experiment, NO_INPUTS).class_counts()
    # A class has two samples, so three of them are six.
    assert counts.sum(1).tolist() == [6] * 4
    unheld = int((counts.sum(0) == 0).sum())
    lines = answer.out.splitlines()
    assert lines[2:6] == [
        "toys, pathological (classes_per_client = 3), seed 0",
        "Clients: 4, classes: 50, samples: 24",
        "Samples of a client: 6 to 6, median 6",
        "Classes of a client: 3 to 3, median 3",
    ]
    assert lines[6] == f"Classes without any client: {unheld}"


# -------------------- pictures


def test_a_picture_is_a_new_file(fedmate_: Fedmate, tmp_path: Path) -> None:
    answer = fedmate_(*TOYS, "--plot", "p.svg")
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines()[-1] == "Plot: p.svg"
    assert [path.name for path in tmp_path.iterdir()] == ["p.svg"]


# -------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--dataset", "none", "--plot", "p.jpg"], "`p.jpg` ends in `.jpg`; name the plot `.svg`, `.png` or `.pdf`."),
        (["none.toml"], "`none.toml` does not exist; give the path of a TOML file."),
        (["--set", "partition.examples=450"], "use fewer `partition.examples` or `partition.clients`"),
        (["--set", "partition.redundant_clients=0.01"], "which of 20 clients is none; raise it"),
    ],
)
def test_mistakes_get_one_sentence(fedmate_: Fedmate, tmp_path: Path, arguments: list[str], found: str) -> None:
    assert found in refuse(fedmate_, tmp_path, "partition", *arguments)

"""A newcomer's samples: where they come from, what their labels mean, and what is held back for a test."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmate.data import Normalisation
from fedmate.data.arrays import Pool
from fedmate.errors import UserError
from fedmate.experiment.newcomer import Newcomer, number_labels, read_newcomer
from fedmate.experiment.signature import Signature

SIGNATURE = Signature((2, 3), ("ant", "bee", "cat"), Normalisation((1.0,), (2.0,)), "float32")
DIGITS = Signature((2,), tuple("0123456789"), Normalisation(), "float32")
X = np.arange(60.0).reshape(10, 2, 3)
Y = np.array([0, 1, 2, 0, 1, 0, 1, 0, 2, 2])
NAMES = np.array(SIGNATURE.class_names)[Y]
TEST_X, TEST_Y = X[:4] + 0.5, Y[:4]


def write_csv(path: Path, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def refused(data: Pool | Path, signature: Signature = SIGNATURE) -> str:
    with pytest.raises(UserError) as caught:
        read_newcomer(data, signature, 0)
    sentence = str(caught.value)
    assert sentence.startswith("`")
    assert "; " in sentence
    assert "\n" not in sentence
    return sentence


def equal(one: Newcomer, other: Newcomer) -> bool:
    parts = zip((one.train, one.test), (other.train, other.test), strict=True)
    same = all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in parts)
    return same and one.held_back == other.held_back


# Where samples come from.

FLAT = X.reshape(10, 6)
WAYS: dict[str, Callable[[Path], Pool | Path]] = {
    "pool": lambda folder: Pool(X, Y),
    "pool, flat": lambda folder: Pool(FLAT, Y),
    "pool, names": lambda folder: Pool(X, (Y + 1) % 3, class_names=["cat", "ant", "bee"]),
    "npz": lambda folder: write_npz(folder / "n.npz", train_x=X, train_y=Y),
    "npz, short names": lambda folder: write_npz(folder / "n.npz", x=X, y=Y),
    "npz, flat": lambda folder: write_npz(folder / "n.NPZ.npz", train_x=FLAT, train_y=Y),
    "npz, big-endian": lambda folder: write_npz(folder / "n.npz", x=X.astype(">f4"), y=Y.astype(">i2")),
    "npz, names": lambda folder: write_npz(folder / "n.npz", train_x=X, train_y=NAMES),
    "npz, numbers in writing": lambda folder: write_npz(folder / "n.npz", train_x=X, train_y=Y.astype(str)),
    "npz, other arrays": lambda folder: write_npz(folder / "n.npz", x=X, y=Y, patient=np.arange(10)),
    "csv": lambda folder: write_csv(folder / "n.csv", [[*x, y] for x, y in zip(FLAT, Y, strict=True)]),
    "csv, names": lambda folder: write_csv(folder / "n.csv", [[*x, y] for x, y in zip(FLAT, NAMES, strict=True)]),
    "csv, fractions": lambda folder: write_csv(
        folder / "n.csv", [[*x, f"{y}.0"] for x, y in zip(FLAT, Y, strict=True)]
    ),
    "csv, header": lambda folder: write_csv(
        folder / "n.csv", [[*"abcdef", "label"], *([*x, y] for x, y in zip(FLAT, Y, strict=True))]
    ),
    "csv, label first": lambda folder: write_csv(
        folder / "n.CSV", [["label", *"abcdef"], *([f" {y} ", *x] for x, y in zip(FLAT, NAMES, strict=True))]
    ),
    "csv, columns called by numbers": lambda folder: write_csv(
        folder / "n.csv", [[*range(6), "label"], *([*x, y] for x, y in zip(FLAT, Y, strict=True))]
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_newcomer(tmp_path: Path, way: str) -> None:
    found, expected = read_newcomer(WAYS[way](tmp_path), SIGNATURE, 3), read_newcomer(Pool(X, Y), SIGNATURE, 3)
    assert equal(found, expected)
    assert found.held_back
    assert found.train.x.shape[1:] == found.test.x.shape[1:] == (2, 3)
    assert found.train.y.dtype == np.int64


def test_a_test_part_is_taken_as_it_is(tmp_path: Path) -> None:
    ways: list[Pool | Path] = [
        Pool(X, Y, TEST_X, TEST_Y),
        write_npz(tmp_path / "a.npz", train_x=X, train_y=Y, test_x=TEST_X, test_y=TEST_Y),
        write_npz(tmp_path / "b.npz", x=X, y=Y, test_x=TEST_X.reshape(4, 6), test_y=NAMES[:4]),
    ]
    for data in ways:
        found = read_newcomer(data, SIGNATURE, 0)
        assert not found.held_back
        np.testing.assert_array_equal(found.train.x, X)
        np.testing.assert_array_equal(found.test.x, TEST_X)
        assert (found.train.y.tolist(), found.test.y.tolist()) == (Y.tolist(), TEST_Y.tolist())


# What labels mean.


def test_names_win_where_all_labels_are_names() -> None:
    """Classes may be called 1, 2 and 3."""
    words = np.array(["1", "2", "3"])
    assert number_labels("y", words, ["1", "2", "3"]).tolist() == [0, 1, 2]
    assert number_labels("y", np.array([1, 2]), ["1", "2", "3"]).tolist() == [1, 2]
    assert number_labels("y", np.array(["0", "2"]), ["a", "b", "c"]).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (["ant", "dog"], "`y` holds the label `dog`, which is no class of the run; known are `ant`, `bee`, `cat`."),
        (["ant", "bees"], "`y` holds the label `bees`, which is no class of the run; did you mean `bee`?"),
        (["ant", "1"], "`y` holds the label `1`, which is no class of the run; known are `ant`, `bee`, `cat`."),
        (["1", "dog"], "`y` holds the label `dog`, which is no class of the run; known are `ant`, `bee`, `cat`."),
        (["1", ""], "`y` holds the label ``, which is no class of the run; known are `ant`, `bee`, `cat`."),
        (["0", "3"], "`y` holds the label 3, which is no class of the run; number the classes from 0 to 2, or give"),
        (["0", "1.5"], "`y` holds the label 1.5, which is no class of the run; number the classes from 0 to 2, or"),
        ([0, 3], "`y` holds the label 3, which is no class of the run; number the classes from 0 to 2, or give their"),
        (
            [0, -1],
            "`y` holds the label -1, which is no class of the run; number the classes from 0 to 2, or give their",
        ),
        ([0, 0.5], "`y` holds the label 0.5, which is no class of the run; number the classes from 0 to 2, or give"),
        ([0, float("nan")], "`y` is nan at [1]; replace what is not a finite number first."),
        ([b"ant"], "`y` holds |S3 values; give an array of numbers."),
    ],
)
def test_labels_the_run_does_not_know_are_refused(labels: list[Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        number_labels("y", np.array(labels), SIGNATURE.class_names)
    assert str(caught.value).startswith(sentence)


def test_a_pools_labels_are_the_runs_numbers_unless_its_classes_have_names() -> None:
    signature = Signature((2,), ("3", "2", "1"), Normalisation(), "float32")
    x, y = np.zeros((4, 2)), [1, 2, 1, 2]
    assert read_newcomer(Pool(x, y, x, y), signature, 0).train.y.tolist() == y
    named = Pool(x, y, x, y, class_names=["x", "1", "2"])
    assert read_newcomer(named, signature, 0).train.y.tolist() == [2, 1, 2, 1]


# What is held back.


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(0, 5))
def test_a_fifth_of_each_class_is_held_back_as_nearly_as_can_be(labels: list[int], seed: int) -> None:
    x = np.arange(2 * len(labels)).reshape(-1, 2)
    pool = Pool(x, labels, class_names="0123456789")
    counts = Counter(labels)
    enough = sum(count for count in counts.values() if count > 1)
    if enough < 3:
        assert f"holds {len(labels)} sample" in refused(pool, DIGITS)
        return
    found = read_newcomer(pool, DIGITS, seed)
    held, kept = (Counter(part.y.tolist()) for part in (found.test, found.train))
    assert held + kept == counts
    assert abs(held.total() - enough / 5) <= 0.6
    for k, count in counts.items():
        assert kept[k] >= 1
        assert count // 5 <= held[k] <= -(-count // 5)
    # Every sample is in one place, with its label, in the order it came.
    for part in (found.train, found.test):
        rows = (part.x[:, 0] // 2).astype(int).tolist()
        assert rows == sorted(rows)
        assert part.y.tolist() == [labels[row] for row in rows]


def test_what_is_held_back_is_a_function_of_the_seed() -> None:
    pool = Pool(np.arange(200.0).reshape(100, 2), [0, 1] * 50)
    signature = Signature((2,), ("a", "b"), Normalisation(), "float32")
    one, again, other = (read_newcomer(pool, signature, seed) for seed in (0, 0, 1))
    assert equal(one, again)
    assert not equal(one, other)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([0], "1 sample and no test part, too few to hold some back"),
        ([0, 0], "2 samples and no test part, too few to hold some back"),
        ([0, 1, 2], "3 samples and no test part, and each is the only one of its class, which is never held back"),
        ([0, 0, 1, 2], "4 samples and no test part, too few of one class to hold some back"),
    ],
)
def test_too_few_samples_to_hold_some_back_are_refused(tmp_path: Path, labels: list[int], found: str) -> None:
    path = write_npz(tmp_path / "few.npz", x=X[: len(labels)], y=labels)
    assert refused(path) == f"`{path}` holds {found}; add samples, or a test part (`test_x` and `test_y`)."


def test_one_sample_is_enough_beside_a_test_part(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "one.npz", train_x=X[0], train_y=2, test_x=X, test_y=Y)
    found = read_newcomer(path, SIGNATURE, 0)
    assert (found.train.x.shape, found.train.y.tolist()) == ((1, 2, 3), [2])


# What is refused.

ROW = ["1"] * 6
BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no such arrays": ({"a": X, "b": Y}, "n.npz` holds `a`, `b`; give `train_x` and `train_y` (or `x` and `y`)"),
    "no labels": ({"train_x": X}, "n.npz` holds `train_x`; give `train_x` and `train_y`"),
    "labels alone": ({"y": Y}, "n.npz` holds `y`; give `train_x` and `train_y`"),
    "a mixture": ({"train_x": X, "y": Y}, "n.npz` holds `train_x`, `y`; give `train_x` and `train_y`"),
    "half a test": ({"x": X, "y": Y, "test_x": X}, "n.npz` holds `x`, `y`, `test_x`; give `train_x` and `train_y`"),
    "test alone": ({"test_x": X, "test_y": Y}, "n.npz` holds `test_x`, `test_y`; give `train_x` and `train_y`"),
    "another shape": ({"x": X[:, :1], "y": Y}, "n.npz:x` has the shape [10, 1, 3]; give [samples, 2, 3]"),
    "another shape in the test": (
        {"x": X, "y": Y, "test_x": X[..., :2], "test_y": Y},
        "n.npz:test_x` has the shape [10, 2, 2]; give [samples, 2, 3]",
    ),
    "too few labels": ({"x": X, "y": Y[:9]}, "n.npz:y` holds 9 labels for 10 samples; give each sample one label."),
    "nothing": ({"x": X[:0], "y": Y[:0]}, "n.npz:x` holds no sample; give one at least."),
    "not finite": ({"x": X * np.nan, "y": Y}, "n.npz:x` is nan at [0, 0, 0]; replace what is not a finite number"),
    "words for samples": ({"x": X.astype(str), "y": Y}, "n.npz:x` holds <U32 values; give an array of numbers."),
    "a strange label": ({"x": X, "y": Y + 1}, "n.npz:y` holds the label 3, which is no class of the run; number the"),
    "a strange name": ({"x": X, "y": ["dog"] * 10}, "n.npz:y` holds the label `dog`, which is no class of the run; "),
    "objects": ({"x": X, "y": np.array([None] * 10)}, "n.npz` holds Python objects, which are not read; "),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    arrays, fragment = BAD_ARRAYS[case]
    assert fragment in refused(write_npz(tmp_path / "n.npz", **arrays))


BAD_TABLES: dict[str, tuple[list[list[Any]], str]] = {
    "no column for labels": ([[*"abcdef", "class"], [*ROW, 0]], "has no columns called `label`; give that name to the"),
    "two of them": ([["label", *"bcdef", "label"], [0, *ROW]], "has 2 columns called `label`; give that name to the"),
    "names alone": ([[*"abcdef", "label"]], "holds no row of numbers; write a row for each sample."),
    "numbered names alone": ([[*range(6), "label"]], "holds no sample; write a row for each."),
    "another width": ([[*ROW, 1, 0]] * 5, "has the shape [5, 7]; give [samples, 2, 3], [2, 3] for one sample, or [sam"),
    "a ragged row": ([[*ROW, 0], [*ROW, 1, 0]], "has 8 cells in row 2, 7 above it; give all rows one length."),
    "an empty cell": ([[*ROW, 0], ["", *ROW]], "is empty in row 2, column 1; every cell"),
    "a word": ([["label", *"abcdef"], [0, *ROW], [0, 1, "much", 1, 1, 1, 1]], "is `much` in row 3, column 3; every"),
    "not finite": ([[*ROW, 0], ["nan", *ROW]], "is `nan` in row 2, column 1; every cell"),
    "a strange label": ([[*ROW, "ant"], [*ROW, "dog"]], "holds the label `dog`, which is no class of the run; known"),
    "a long label": ([[*ROW, "ant"], [*ROW, "d" * 99]], f"holds the label `{'d' * 37}...`, which is no class of the"),
    "one sample": ([[*ROW, "ant"]], "holds 1 sample and no test part, too few to hold some back; add samples, or"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    rows, fragment = BAD_TABLES[case]
    sentence = refused(write_csv(tmp_path / "n.csv", rows))
    assert sentence.startswith(f"`{tmp_path / 'n.csv'}` {fragment}")


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
@pytest.mark.parametrize("row", ["1.5|2|3|4|5|6|ant", "1,5|2,5|3|4|5|6|ant", "ant|1|2|3|4|5|6"])
@pytest.mark.parametrize("header", ["", "a|b|c|d|e|f|label\n"])
def test_other_separators_are_refused_by_name(tmp_path: Path, header: str, row: str, separator: str, name: str) -> None:
    text = (header + f"{row}\n").replace("|", separator)
    (tmp_path / "n.csv").write_text(text, encoding="utf-8")
    assert refused(tmp_path / "n.csv") == (
        f"`{tmp_path / 'n.csv'}` has {name} between its cells; write it with commas, and numbers with a decimal point."
    )


def test_a_name_may_hold_a_semicolon(tmp_path: Path) -> None:
    signature = replace(SIGNATURE, class_names=("ant; bee", "cat"))
    rows = [[*ROW, f" {name}\t"] for name in ("ant; bee", "cat")] * 5
    found = read_newcomer(write_csv(tmp_path / "n.csv", rows), signature, 0)
    assert sorted([*found.train.y, *found.test.y]) == [0] * 5 + [1] * 5


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for name in ("missing.npz", "missing.csv"):
        assert f"`{tmp_path / name}` does not exist; give" in refused(tmp_path / name)
    assert refused(tmp_path / "n.xlsx") == f"`{tmp_path / 'n.xlsx'}` ends in `.xlsx`; give an `.npz` or `.csv` file."
    (tmp_path / "folder.npz").mkdir()
    assert refused(tmp_path / "folder.npz").endswith("is a folder; give the path of a file that can be read.")
    (tmp_path / "folder").mkdir()
    assert refused(tmp_path / "folder").endswith("is a folder; give an `.npz` or `.csv` file.")
    (tmp_path / "text.npz").write_text("no archive", encoding="utf-8")
    assert "is not a file of numpy's numbers" in refused(tmp_path / "text.npz")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\xff\xfe")
    assert "is not a CSV file" in refused(tmp_path / "picture.csv")


def test_a_pool_of_another_shape_is_refused() -> None:
    assert refused(Pool(X[:, :1], Y)).startswith("`x` has the shape [10, 1, 3]; give [samples, 2, 3]")
    assert refused(Pool(X, Y + 1)).startswith("`y` holds the label 3, which is no class of the run; number the")
    assert refused(Pool(X[:1], [1])) == (
        "`data` holds 1 sample and no test part, too few to hold some back; add samples, or a test part (`test_x` and "
        "`test_y`)."
    )

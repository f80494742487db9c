"""Files of samples: `.npy`, `.npz` and `.csv`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmate.errors import UserError
from fedmate.experiment.sample_files import read_array, read_csv

CSV: dict[str, tuple[str, list[list[float]]]] = {
    "header": ("a,b\n3,4\n", [[3, 4]]),
    "Windows": ("\ufeffa,b\r\n3,4\r\n", [[3, 4]]),
    "header that counts": ("0,1,2\n3,4,5\n", [[3, 4, 5]]),
    "a sample that counts": ("0,1,2\n", [[0, 1, 2]]),
}


@pytest.mark.parametrize("case", CSV)
def test_tables_are_read(tmp_path: Path, case: str) -> None:
    text, expected = CSV[case]
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert read_array(tmp_path / "x.csv").tolist() == expected


def test_numbers_are_read_to_the_last_bit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 20)) * 10.0 ** np.arange(-10, 10)
    (tmp_path / "x.csv").write_text("\n".join(",".join(map(repr, row)) for row in x.tolist()), encoding="utf-8")
    assert np.array_equal(read_array(tmp_path / "x.csv"), x)


LABELLED: dict[str, tuple[str, list[list[float]], list[str]]] = {
    "column by name": ("a,label,b\n1,cat,2\n3, dog ,4\n", [[1, 2], [3, 4]], ["cat", "dog"]),
    "last column": ("1,2,0\n3,4,1\n", [[1, 2], [3, 4]], ["0", "1"]),
}


@pytest.mark.parametrize("case", LABELLED)
def test_labels_are_in_a_column(tmp_path: Path, case: str) -> None:
    text, expected, labels = LABELLED[case]
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    x, y = read_csv(tmp_path / "x.csv", labelled=True)
    assert (x.tolist(), y.tolist()) == (expected, labels)


WRONG_CSV: dict[str, tuple[bytes, str]] = {
    "a word below a header": (b"a,b\n1,2\n3,x\n", "has `x` in row 3, column 2; "),
    "infinite": (b"1,1e999\n", "has `1e999` in row 1, column 2; "),
    "empty": (b"", "is empty; write a row of numbers for each sample."),
    "short row": (b"1,2\n\n3\n", "has 1 cell in row 3, but 2 in row 1; give all rows the same number of cells."),
    "long row": (b"a,b\n3,4,5\n", "has 3 cells in row 2, but 2 in row 1; "),
    "labels": (b"a,label\n3,4\n", "has the column `label` in row 1, column 2, but `predict` reads samples only; "),
    "semicolons": (b"1;2\n3;4\n", "has ';' between its cells; write commas, and decimal points in numbers."),
    "one row with semicolons": (b"1.5;2.5\n", "has ';' between its cells; write commas, and"),
    "tabs": (b"1\t2\n", "has '\\t' between its cells; "),
    "header only": (b"a,b\n", "holds no sample, only the header in row 1; "),
    "binary": (b"\x93NUMPY\xff\xfe", "is not a CSV table"),
}


@pytest.mark.parametrize("case", WRONG_CSV)
def test_wrong_tables(tmp_path: Path, case: str) -> None:
    data, found = WRONG_CSV[case]
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(UserError) as caught:
        read_array(tmp_path / "x.csv")
    assert str(caught.value).startswith(f"`{tmp_path / 'x.csv'}` {found}")


def test_arrays_are_read(tmp_path: Path) -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "one.npz", whatever=x)
    np.savez_compressed(tmp_path / "several.npz", y=np.zeros(6), x=x, test_x=x[:1])
    for name in ("x.npy", "one.npz", "several.npz"):
        assert np.array_equal(read_array(tmp_path / name), x), name


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def test_wrong_arrays(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    np.save(tmp_path / "bomb.npy", np.array([Bomb(fired)]), allow_pickle=True)
    np.savez(tmp_path / "bomb.npz", x=np.array([Bomb(fired)]))
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:-30])
    (tmp_path / "folder.npy").mkdir()
    expected = {
        "bomb.npy": "holds Python objects, which are not read",
        "bomb.npz": "holds Python objects, which are not read",
        "two.npz": "holds `a`, `b`; call the array of samples `x`",
        "torn.npz": "is not a file of numpy's numbers",
        "folder.npy": "cannot be read (Is a directory)",
        "missing.csv": "does not exist",
        "x.txt": "is not a file of samples; give a `.npy`, `.npz` or `.csv` file.",
    }
    for name, found in expected.items():
        with pytest.raises(UserError) as caught:
            read_array(tmp_path / name)
        assert str(caught.value).startswith(f"`{tmp_path / name}` {found}")
    assert not fired.exists()

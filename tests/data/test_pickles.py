"""Batches of CIFAR are read whichever Python wrote them, and nothing else in a pickle gets to do anything."""

from __future__ import annotations

import codecs
import collections
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedmate.data import pickles
from fedmate.data.pickles import read_pickle
from fedmate.errors import UserError

IMAGES = np.arange(24, dtype=np.uint8).reshape(4, 6)

PYTHON2 = (
    b"\x80\x02}q\x00(U\x06labelsq\x01]q\x02(K\x03K\x09eU\x04dataq\x03"
    b"cnumpy.core.multiarray\n_reconstruct\nq\x04cnumpy\nndarray\nq\x05K\x00\x85q\x06U\x01b\x87Rq\x07"
    b"(K\x01K\x02K\x03\x86q\x08cnumpy\ndtype\nq\x09U\x02u1K\x00K\x01\x87Rq\x0a"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06\x00\x01\x7f\x80\xfe\xfftb"
    b"U\x0bbatch_labelq\x0bU\x15training batch 1 of 5q\x0cu."
)
"""What Python 2 writes for two images of three pixels, instruction by instruction."""


class Call:
    """Pickled, it is a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, Any]:
        return self._call


def refused(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        read_pickle(data, "folder/data_batch_1")
    assert str(caught.value).startswith("`folder/data_batch_1` is ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -------------------- what is read


def test_a_batch_of_python_2_is_read() -> None:
    batch = read_pickle(PYTHON2, "x")
    assert batch.keys() == {b"labels", b"data", b"batch_label"}
    assert batch[b"labels"] == [3, 9]
    assert batch[b"batch_label"] == b"training batch 1 of 5"
    np.testing.assert_array_equal(batch[b"data"], np.array([[0, 1, 127], [128, 254, 255]], dtype=np.uint8))
    assert batch[b"data"].dtype == np.uint8
    # It is what Python's own reader makes of it, which trusts it.
    np.testing.assert_array_equal(pickle.loads(PYTHON2, encoding="bytes")[b"data"], batch[b"data"])


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("key", ["data", b"data"])
@pytest.mark.parametrize("fortran", [False, True])
def test_a_batch_of_python_3_is_read(protocol: int, key: Any, fortran: bool) -> None:
    images = np.asfortranarray(IMAGES) if fortran else IMAGES
    batch = read_pickle(pickle.dumps({key: images, "labels": [1, 300, -(2**40)], "name": None}, protocol), "x")
    assert {type(key) for key in batch} <= {str, bytes}
    np.testing.assert_array_equal(batch[key], IMAGES)
    assert batch["labels"] == [1, 300, -(2**40)]


BUFFER = (
    b"cnumpy.CORE.numeric\n_frombuffer\n(C\x03\x01\x02\xffcnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb(K\x03tU\x01CtR."
)
"""An array of three numbers as the fifth version of pickles has it."""


@pytest.mark.parametrize("core", [b"core", b"_core"])
def test_the_older_and_the_newer_name_of_numpys_core_are_known(core: bytes) -> None:
    assert read_pickle(BUFFER.replace(b"CORE", core), "x").tolist() == [1, 2, 255]
    assert read_pickle(PYTHON2.replace(b"numpy.core", b"numpy." + core), "x")[b"data"].shape == (2, 3)


@pytest.mark.parametrize("kind", ["u1", "i1", "<u2", ">u2", "<i4", ">i4", "<i8", ">i8", "<u8"])
@pytest.mark.parametrize("protocol", [2, 5])
def test_whole_numbers_of_every_kind_are_read(kind: str, protocol: int) -> None:
    numbers = np.array([[1, 2, 100]], dtype=kind)
    found = read_pickle(pickle.dumps(numbers, protocol), "x")
    assert found.tolist() == numbers.tolist()
    assert found.dtype == numbers.dtype


def test_an_array_is_made_by_us_and_not_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps({"data": IMAGES}, 2)
    for name in ("_reconstruct", "scalar"):
        monkeypatch.setattr(f"numpy._core.multiarray.{name}", None)
    np.testing.assert_array_equal(read_pickle(data, "x")["data"], IMAGES)


# -------------------- what is refused


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, f"{os.system.__module__}.system"),
        (eval, "builtins.eval"),
        (exec, "builtins.exec"),
        (getattr, "builtins.getattr"),
        (__import__, "builtins.__import__"),
        (np.load, "numpy.load"),
        (np.frombuffer, "numpy.frombuffer"),
        (collections.OrderedDict, "collections.OrderedDict"),
        (codecs.lookup, "_codecs.lookup"),
    ],
)
def test_another_name_is_refused_and_not_called(protocol: int, function: Any, name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = pickle.dumps({"data": Call(function, f"touch {mark}")}, protocol)
    # Before its third version a pickle has the names of Python 2.
    names = (name, name.replace("builtins", "__builtin__"))
    assert any(f"asks for `{each}`" in refused(data) for each in names)
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'touch MARK'\ntR.",
        b"(S'touch MARK'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch MARK'\no.",
        b"\x80\x02cos\nsystem\n\x8c\x0atouch MARK\x85\x81.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch MARK\x85R.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"cfedmate.data.pickles\n_Reader\n.",
    ],
    ids=["global", "inst", "obj", "newobj", "stack_global", "dotted", "ours"],
)
def test_every_instruction_that_names_something_is_covered(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "asks for `" in refused(data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"Pelsewhere\n.", b"\x80\x02U\x04deepQ."])
def test_what_lies_outside_the_pickle_is_refused(data: bytes) -> None:
    assert "a persistent object" in refused(data)


def test_registered_extensions_are_no_way_round() -> None:
    import copyreg

    copyreg.add_extension("os", "system", 0xF00D)
    try:
        assert "asks for `os.system`" in refused(b"\x80\x02\x83\x0d\xf0.")
    finally:
        copyreg.remove_extension("os", "system", 0xF00D)


def test_a_name_with_odd_characters_is_shown_plainly() -> None:
    assert "asks for `a\\x1b[31m.b`" in refused(b"ca\x1b[31m\nb\n.")
    assert len(refused(b"c" + b"a" * 5000 + b"\nb\n.")) < 400


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, "x", None], dtype=object),
        np.array([1.5, 2.5]),
        np.array(["word"]),
        np.array([(1, 2)], dtype=[("a", "u1"), ("b", "u1")]),
        np.array([np.datetime64("2020-01-01")]),
        np.array([1 + 2j]),
        np.zeros((1, 1, 1, 1, 1), dtype=np.uint8),
    ],
    ids=["objects", "floats", "words", "fields", "dates", "complex", "axes"],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_arrays_of_anything_but_whole_numbers_are_refused(array: Any, protocol: int) -> None:
    assert "array" in refused(pickle.dumps({"data": array}, protocol))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"K\x02K\x03\x86", b"K\x02K\x04\x86"),
        (b"K\x02K\x03\x86", b"K\x02M\xff\xff\x86"),
        (b"K\x02K\x03\x86", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x03\x86"),
        (b"K\x02K\x03\x86", b"J\xfe\xff\xff\xffJ\xfd\xff\xff\xff\x86"),
        (b"K\x02K\x03\x86", b"G@\x00\x00\x00\x00\x00\x00\x00K\x03\x86"),
        (b"K\x02K\x03\x86", b"]"),
        (b"U\x06\x00\x01\x7f\x80\xfe\xff", b"K\x06"),
        (b"U\x06\x00\x01\x7f\x80\xfe\xff", b"U\x05\x00\x01\x7f\x80\xfe"),
        (b"U\x01|NNN", b"U\x01|U\x01xNN"),
        (b"U\x01|NNN", b"U\x01xNNN"),
        (b"U\x02u1", b"U\x01O"),
        (b"U\x02u1", b"K\x01"),
        (b"U\x06\x00\x01\x7f\x80\xfe\xfftb", b"U\x06\x00\x01\x7f\x80\xfe\xfft0"),
    ],
)
def test_an_array_whose_parts_do_not_fit_is_refused(old: bytes, new: bytes) -> None:
    assert PYTHON2.count(old) == 1
    assert "fetch it again" in refused(PYTHON2.replace(old, new))


def test_what_is_wrong_with_an_array_is_said() -> None:
    wrong = PYTHON2.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86")
    assert "an array of shape [2, 4] has 6 bytes" in refused(wrong)
    # Three of them in one place, in the language of numpy.
    wrong = PYTHON2.replace(b"U\x01|NNN", b"U\x013NNN")
    assert "something else than plain numbers" in refused(wrong)


def test_a_pickle_cut_anywhere_is_refused() -> None:
    for cut in range(len(PYTHON2)):
        assert "fetch it again" in refused(PYTHON2[:cut])


def test_a_changed_byte_is_no_traceback() -> None:
    for place in range(len(PYTHON2)):
        for change in (1, 0x80, 0xFF):
            changed = PYTHON2[:place] + bytes([PYTHON2[place] ^ change]) + PYTHON2[place + 1 :]
            # A label or a pixel may be another one; whatever else is raised is a fault of ours.
            with suppress(UserError):
                read_pickle(changed, "x")


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",
        b"]p4000000000\n.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"(" * 100_000 + b"t" * 100_000 + b".",
        b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s.",
        b"",
        b"\x80\xff.",
        b"<html>Not found</html>",
    ],
    ids=["memo", "text memo", "bytes", "long", "deep", "deep key", "empty", "version", "page"],
)
def test_what_would_take_the_memory_or_is_no_pickle_is_refused(data: bytes) -> None:
    assert "fetch it again" in refused(data)


def test_a_pickle_cannot_change_what_names_stand_for() -> None:
    before = dict(pickles._MEANINGS)
    for state in (b"}S'_make'\nNs", b"(N}S'_make'\nNst", b"(N}S'__call__'\nNst"):
        for name in (b"cnumpy\ndtype\n", b"c_codecs\nencode\n"):
            assert "cannot be changed" in refused(name + state + b"b.")
    assert before == pickles._MEANINGS
    np.testing.assert_array_equal(read_pickle(PYTHON2, "x")[b"data"], [[0, 1, 127], [128, 254, 255]])


def test_bytes_are_written_in_one_way_only() -> None:
    assert read_pickle(b"c_codecs\nencode\n(V\xe9\nS'latin1'\ntR.", "x") == b"\xe9"
    for encoding in (b"rot13", b"zip", b"utf-8"):
        assert "unknown way" in refused(b"c_codecs\nencode\n(Vx\nS'" + encoding + b"'\ntR.")

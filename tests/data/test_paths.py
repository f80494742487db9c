"""Where data sets are looked for: where the user says, or where the system keeps such things."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedmate.data.paths import VARIABLE, data_folder, expand, user_folder
from fedmate.errors import UserError


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_the_chosen_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    monkeypatch.setenv(VARIABLE, str(other))
    assert data_folder(one) == one
    assert data_folder() == other


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_choice_it_is_the_users_own(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    assert data_folder() == user_folder()


def test_a_folder_that_was_named_has_to_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"`--data-dir` is `.*/no`, which does not exist; make it"):
        data_folder(tmp_path / "no")
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"`FEDMATE_DATA` is `.*/file`, which is not a folder"):
        data_folder()


def test_a_tilde_is_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "data").mkdir()
    monkeypatch.setenv(VARIABLE, "~/data")
    assert data_folder() == tmp_path / "data"
    assert data_folder(Path("~/data")) == tmp_path / "data"
    assert expand("x", "~") == tmp_path
    assert expand("x", "a/~") == Path("a/~")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other places")
def test_the_users_own_is_the_cache_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value, expected in (("", "home/.cache/fedmate"), (str(tmp_path / "caches"), "caches/fedmate")):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_folder() == tmp_path / expected

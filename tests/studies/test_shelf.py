"""Files that are made anew: nothing that somebody else wrote is lost, and what is old is said."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedmate import storage
from fedmate.studies.shelf import MADE, Shelf


def filled(folder: Path, **files: str) -> list[str]:
    shelf = Shelf(folder)
    shelf.open()
    for name, content in files.items():
        shelf.put(f"{name}.md", content.encode())
    shelf.look_over()
    assert shelf.names == [*files]
    return shelf.notes


def digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != MADE}


def test_what_was_made_here_is_made_anew(tmp_path: Path) -> None:
    assert filled(tmp_path, a="one", b="two") == []
    assert filled(tmp_path, a="three", b="two") == []
    assert filled(tmp_path, a="one", b="two") == [], "it was here before"
    assert texts(tmp_path) == {"a.md": "one", "b.md": "two"}


def test_what_somebody_changed_or_put_here_is_kept_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("mine")
    first = filled(tmp_path, a="one", b="two")
    assert first == [f"`{tmp_path / 'a.md'}` was not made here, or was changed since: it is now `a.yours.md`."]
    (tmp_path / "a.md").write_text("mine, too")
    (tmp_path / "notes.txt").write_text("about it")
    (second,) = filled(tmp_path, a="one", b="two")
    assert second.endswith("it is now `a.yours2.md`.")
    assert filled(tmp_path, a="one", b="two") == []
    yours = {"a.yours.md": "mine", "a.yours2.md": "mine, too", "notes.txt": "about it"}
    assert texts(tmp_path) == {"a.md": "one", "b.md": "two", **yours}


def test_what_is_the_same_is_nobodys_change(tmp_path: Path) -> None:
    """As where tables were made before there was a record of it."""
    (tmp_path / "a.md").write_text("one")
    assert filled(tmp_path, a="one") == []
    assert texts(tmp_path) == {"a.md": "one"}


def test_what_is_not_made_any_more_is_named_unless_somebody_changed_it(tmp_path: Path) -> None:
    filled(tmp_path, a="one", b="two", c="three")
    (tmp_path / "c.md").write_text("mine")
    assert filled(tmp_path, a="one") == ["still there, made by an earlier call of other cells: b."]
    assert texts(tmp_path) == {"a.md": "one", "b.md": "two", "c.md": "mine"}
    (tmp_path / "b.md").unlink()
    assert filled(tmp_path, a="one") == []


def test_what_another_process_makes_meanwhile_is_not_taken_for_somebodys_own(tmp_path: Path) -> None:
    first = Shelf(tmp_path)
    first.open()
    filled(tmp_path, a="of another process")
    first.put("a.md", b"one")
    first.look_over()
    assert first.notes == []
    assert texts(tmp_path) == {"a.md": "one"}


def test_a_kill_between_the_record_and_the_file_makes_it_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, a="one")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "replace_by_parts", lambda path, parts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            filled(tmp_path, a="two")
    assert filled(tmp_path, a="three") == []
    assert texts(tmp_path) == {"a.md": "three"}


def test_a_record_that_cannot_be_read_spares_everything(tmp_path: Path) -> None:
    filled(tmp_path, a="one", b="two")
    (tmp_path / MADE).write_bytes(b"\xff\xfe")
    (note,) = filled(tmp_path, a="three")
    assert "a.yours.md" in note
    assert texts(tmp_path) == {"a.md": "three", "a.yours.md": "one", "b.md": "two"}


@pytest.mark.parametrize("line", ["", "no digest", "../outside.md", f"{digest('mine')}  ../outside.md"])
def test_nothing_elsewhere_is_looked_at_whatever_a_record_says(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "folder"
    filled(folder, a="one")
    (tmp_path / "outside.md").write_text("mine")
    (folder / MADE).write_text(f"{line}\n")
    assert filled(folder, b="two") == []
    assert texts(folder) == {"a.md": "one", "b.md": "two"}

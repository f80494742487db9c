"""Putting an entry into a file of presets leaves the rest of the file alone."""

from __future__ import annotations

import sys
import threading
import tomllib
from pathlib import Path

import pytest

from fedmate.errors import UserError
from fedmate.studies.records import Records
from fedmate.tune.presets import check_presets, write_preset

FILE = """# What was found.
# By whom.

# Somebody's remark on digits.
[fedavg.digits]
training = { learning_rate = 0.2 }   # the largest that was tried
score = 94.91

[fedmate.digits]
training = { learning_rate = 0.2 }
command = "fedmate tune"
[fedmate.digits.method]
classifier_learning_rate = 0.02

# The last.
["my.method".digits]
training = { learning_rate = 0.1 }
# Nothing comes after it.
"""

NEW = """[fedmate.digits]
training = { learning_rate = 0.3 }
method = { centre_weight = 0.5 }
score = 60.0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Records:
    return Records(tmp_path / "store", "tuning")


def test_an_entry_takes_the_place_of_the_old_one(file: Path, store: Records) -> None:
    write_preset(file, NEW, store)
    old = FILE[FILE.index("[fedmate.digits]\n") : FILE.index("# The last.")]
    assert file.read_text(encoding="utf-8") == FILE.replace(old, f"{NEW}\n")


@pytest.mark.parametrize(
    ("entry", "before"),
    [
        ("[fedavg.cifar10]\ntraining = { learning_rate = 0.5 }\n", "# Somebody's remark on digits.\n[fedavg.digits]"),
        ("[fedavg.mnist]\ntraining = { learning_rate = 0.5 }\n", "[fedmate.digits]\n"),
        ("[local.digits]\ntraining = { learning_rate = 0.5 }\n", '# The last.\n["my.method".digits]'),
    ],
)
def test_a_new_entry_is_put_in_by_name(entry: str, before: str, file: Path, store: Records) -> None:
    write_preset(file, entry, store)
    assert file.read_text(encoding="utf-8") == FILE.replace(before, f"{entry}\n{before}")


def test_the_last_entry_comes_last(file: Path, store: Records) -> None:
    entry = "[scaffold.digits]\ntraining = { learning_rate = 0.5 }\n"
    write_preset(file, entry, store)
    assert file.read_text(encoding="utf-8") == f"{FILE}\n{entry}"


def test_a_name_in_quotes_is_found_and_remarks_stay(file: Path, store: Records) -> None:
    entry = '["my.method".digits]\ntraining = { learning_rate = 0.7 }\n'
    write_preset(file, entry, store)
    text = file.read_text(encoding="utf-8")
    assert text.count("my.method") == 1
    assert text.endswith(f"# The last.\n{entry}# Nothing comes after it.\n")


AROUND = {
    "after empty lines": ("# Top.\n\n\n", "\n\n# Of nobody.\n\n\n# The last.\n[local.digits]\nmethod.x = 1\n"),
    "at the end": ("", "\n# The end.\n\n  # Really.\n\n"),
    "indented": ("\t# Top.\n", "   # On local.\n   [local.digits]\n   method.x = 1\n"),
    "with odd ends of lines": ("# \u2028[fedmate.digits]\n", "# \x85 \u2028 here\n"),
    "directly": ("# On it.\n", "# Under it.\n[local.digits]\nmethod.x = 1 # own"),
}
OLD = "[fedmate.digits] # old\ntraining = { learning_rate = 0.2 }\n# goes\n\nscore = 1 # old\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("case", AROUND)
def test_what_stands_around_an_entry_stays_byte_for_byte(case: str, ending: str, file: Path, store: Records) -> None:
    above, below = AROUND[case]
    file.write_bytes(f"{above}{OLD}{below}".replace("\n", ending).encode())
    write_preset(file, NEW, store)
    assert file.read_bytes() == f"{above}{NEW}{below}".replace("\n", ending).encode()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_new_entry_has_the_line_endings_of_the_file(ending: str, file: Path, store: Records) -> None:
    for above, below in [("# Mine.\n[a.digits]\nmethod.x = 1\n", ""), ("", "  # On it.\n[local.digits]\nmethod.x = 1")]:
        file.write_bytes(f"{above}{below}".replace("\n", ending).encode())
        write_preset(file, NEW, store)
        between = "\n" if below else ""
        expected = f"{above}{NEW}{between}{below}" if below else f"{above}\n{NEW}"
        assert file.read_bytes() == expected.replace("\n", ending).encode()


def test_a_last_line_without_an_end_is_ended_only_where_something_follows(file: Path, store: Records) -> None:
    file.write_bytes(b"[fedmate.digits]\nmethod.x = 1")
    write_preset(file, NEW, store)
    assert file.read_bytes() == NEW.removesuffix("\n").encode()
    file.write_bytes(b"[a.digits]\nmethod.x = 1")
    write_preset(file, NEW, store)
    assert file.read_bytes() == f"[a.digits]\nmethod.x = 1\n\n{NEW}".encode()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_permissions_stay(mode: int, file: Path, store: Records) -> None:
    file.chmod(mode)
    write_preset(file, NEW, store)
    assert NEW in file.read_text(encoding="utf-8")
    assert file.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")
def test_a_link_stays_a_link(file: Path, tmp_path: Path, store: Records) -> None:
    (tmp_path / "folder").mkdir()
    for name, target in [("old.toml", file), ("new.toml", tmp_path / "made.toml")]:
        link = tmp_path / "folder" / name
        link.symlink_to(Path("..") / target.name)
        check_presets(link, "digits")
        write_preset(link, NEW, store)
        assert link.is_symlink()
        assert NEW in target.read_text(encoding="utf-8")
    assert not (tmp_path / "made.toml").is_symlink()


def test_a_file_beside_it_stays(file: Path, store: Records) -> None:
    beside = file.with_name(f"{file.name}.new")
    beside.write_text("mine", encoding="utf-8")
    write_preset(file, NEW, store)
    assert beside.read_text(encoding="utf-8") == "mine"


def test_writing_twice_is_writing_once(file: Path, store: Records) -> None:
    write_preset(file, NEW, store)
    once = file.read_bytes()
    write_preset(file, NEW, store)
    assert file.read_bytes() == once


def test_a_file_that_does_not_exist_is_made(tmp_path: Path, store: Records) -> None:
    check_presets(tmp_path / "new.toml", "digits")
    write_preset(tmp_path / "new.toml", NEW, store)
    assert (tmp_path / "new.toml").read_text(encoding="utf-8") == NEW


def test_searches_that_end_at_the_same_time_lose_nothing(tmp_path: Path, store: Records) -> None:
    path, names = tmp_path / "new.toml", [f"method{number}" for number in range(8)]
    entries = [f"[{name}.digits]\ntraining = {{ learning_rate = 0.5 }}\n" for name in names]
    threads = [threading.Thread(target=write_preset, args=(path, entry, store)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(tomllib.loads(path.read_text(encoding="utf-8"))) == names


@pytest.mark.parametrize(
    "text",
    [
        "fedavg.digits.training.learning_rate = 0.2\n",
        "[fedavg]\ndigits.training.learning_rate = 0.2\nmnist.training.learning_rate = 0.2\n",
        "[fedmate.digits.training]\nepochs = 1\n[a.b.training]\nepochs = 1\n[fedmate.digits.method]\ncci = true\n",
    ],
)
def test_a_file_may_be_written_in_other_ways(text: str, file: Path, store: Records) -> None:
    file.write_text(text, encoding="utf-8")
    write_preset(file, NEW, store)
    assert tomllib.loads(file.read_text(encoding="utf-8")) == {**tomllib.loads(text), **tomllib.loads(NEW)}


@pytest.mark.parametrize(
    "text",
    [
        '[fedavg.digits]\ntraining = { learning_rate = 0.2 }\ncommand = """\n[fedmate.digits]\n"""\n',
        "[fedmate]\ndigits.training.learning_rate = 0.2\n",
        "[fedavg.digits]\ntraining.x = [\n[1, 2]\n]\n",
        '[fedmate.digits]\ntraining.x = 1\ncommand = """\nfedmate\n# tune"""\n',
    ],
)
def test_what_cannot_be_edited_safely_is_left_alone(text: str, file: Path, store: Records) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"cannot be edited safely; put the entry in by hand\.$"):
        write_preset(file, NEW, store)
    assert file.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("dataset", ["npz", "folder", "given"])
def test_names_for_any_data_get_no_preset(dataset: str, file: Path) -> None:
    with pytest.raises(UserError, match=rf"^`--write` would make a preset for `{dataset}`, .*; run the `best.toml`"):
        check_presets(file, dataset)


def test_other_files_are_refused(file: Path, tmp_path: Path) -> None:
    file.write_text('rounds = 3\n[method]\nname = "fedavg"\n', encoding="utf-8")
    with pytest.raises(UserError, match="`rounds`, which is no entry"):
        check_presets(file, "digits")
    file.write_text("[method", encoding="utf-8")
    with pytest.raises(UserError, match="is not valid TOML"):
        check_presets(file, "digits")
    with pytest.raises(UserError, match="whose folder does not exist"):
        check_presets(tmp_path / "no" / "mine.toml", "digits")

"""The command `cite`, in this process: what it prints, that it is BibTeX, and what bad input gets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests import test_cli
from tests.test_cli import Fedmate, refuse

import fedmate
from fedmate.catalogue import ADDITIONS, entries_of
from fedmate.data import DATASETS
from fedmate.methods import METHODS

REFERENCES = {
    **{f"method {name}": "".join(entries_of(METHODS[name].citation).values()) for name in METHODS._rows},
    **{what: "".join(entries_of(citation).values()) for what, citation in ADDITIONS.values()},
    **{f"data set {name}": "".join(entries_of(DATASETS[name].citation).values()) for name in DATASETS.names()},
}

WITHOUT = {"method local", "data set folder", "data set given", "data set npz", "data set sites"}
"""What there is nothing to cite for."""

REQUIRED = {
    "article": {"author", "title", "journal", "year"},
    "inproceedings": {"author", "title", "booktitle", "year"},
    "techreport": {"author", "title", "institution", "year"},
    "misc": {"author", "title"},
}
"""By type of entry: the fields that BibTeX asks for."""


def keys_of(text: str) -> list[str]:
    return re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)


def write_run(folder: Path, method: str = "fedavg", dataset: str = "digits", **environment: Any) -> Path:
    """Write what every run has from its start."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'[method]\nname = "{method}"\n[dataset]\nname = "{dataset}"\n')
    if environment:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


fedmate_ = test_cli.fedmate_


def test_everything_that_was_published_has_a_reference() -> None:
    assert {what for what, bibtex in REFERENCES.items() if not bibtex} == WITHOUT


@pytest.mark.parametrize("what", sorted(set(REFERENCES) - WITHOUT))
def test_a_reference_is_one_valid_entry(what: str) -> None:
    bibtex = REFERENCES[what]
    ((kind, key),) = re.findall(r"^@(\w+)\{([A-Za-z]\w*),$", bibtex, re.MULTILINE)
    fields = dict(re.findall(r"^  (\w+) = \{(.+)\},?$", re.sub(r"\n +(?! |\w+ = \{)", " ", bibtex), re.MULTILINE))
    assert entries_of(bibtex) == {key: bibtex}
    assert REQUIRED[kind] <= {*fields}
    assert bibtex.isascii()
    assert bibtex.count("{") == bibtex.count("}")
    assert key.endswith(fields.get("year", ""))


def test_a_comparison_and_a_run_are_cited_with_everything_once(fedmate_: Fedmate, tmp_path: Path) -> None:
    for method in ("fedrep", "local"):
        write_run(tmp_path / "both" / method, method, fedmate=fedmate.__version__)
    (tmp_path / "both" / "comparison.json").write_text(json.dumps({"runs": ["fedrep", "local"]}))
    write_run(tmp_path / "other", "fedmate", "cifar10", fedmate=fedmate.__version__)
    answer = fedmate_("cite", "both", "other", tmp_path / "both" / "fedrep")
    assert (answer.status, answer.err) == (0, "")
    assert keys_of(answer.out) == ["fedrep2021", "fedmate2025", "digits1998", "cifar2009", "fedmate_software"]
    assert [line for line in answer.out.splitlines() if line.startswith("%")] == [
        "% method fedrep: fedrep2021",
        "% method local: no reference",
        "% method fedmate: fedmate2025",
        "% data set digits: digits1998",
        "% data set cifar10: cifar2009",
        "% software",
    ]
    assert f"  note = {{Version {fedmate.__version__}}}\n" in answer.out


@pytest.mark.parametrize(("section", "option"), ADDITIONS)
def test_options_are_cited_where_they_were_used(fedmate_: Fedmate, tmp_path: Path, section: str, option: str) -> None:
    for value in (0, 0.5):
        folder = write_run(tmp_path / str(value))
        sections = dict.fromkeys(("method", "objective", "server"), "") | {
            "method": 'name = "fedavg"\n',
            "dataset": 'name = "x"\n',
        }
        sections[section] += f"{option} = {value}\n"
        (folder / "config.toml").write_text("".join(f"[{name}]\n{keys}" for name, keys in sections.items()))
        cited = keys_of(fedmate_("cite", folder).out)
        assert (ADDITIONS[section, option][1] in cited) == bool(value)


def test_the_servers_step_is_cited(fedmate_: Fedmate, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    server = '[server]\naggregator = "median"\noptimiser = "adam"\n'
    (folder / "config.toml").write_text(f'[method]\nname = "local"\n[dataset]\nname = "x"\n{server}')
    assert keys_of(fedmate_("cite", folder).out)[:2] == ["median2018", "fedopt2021"]


def test_the_versions_are_those_that_made_the_runs(fedmate_: Fedmate, tmp_path: Path) -> None:
    old = write_run(tmp_path / "old", fedmate="0.0.8", resumed=[{"round": 3, "fedmate": "0.0.10"}, {"torch": "9"}])
    same = write_run(tmp_path / "same", fedmate="0.0.9")
    bare = write_run(tmp_path / "bare")
    assert "note = {Version 0.0.9, 0.0.8, 0.0.10}" in fedmate_("cite", bare, same, old).out
    assert "note" not in fedmate_("cite", bare).out


DAMAGED = {
    "no folder": (None, "`run` holds no record: it does not exist"),
    "not TOML": ("[method", "`run/config.toml` cannot be read"),
    "a line break": ('[method]\nname = "a\\nb"\n', "`run/config.toml` names no method"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_is_one_sentence_and_no_output(fedmate_: Fedmate, tmp_path: Path, kind: str) -> None:
    config, expected = DAMAGED[kind]
    if config is not None:
        write_run(tmp_path / "run")
        (tmp_path / "run" / "config.toml").write_text(config)
    write_run(tmp_path / "good")
    assert expected in refuse(fedmate_, tmp_path, "cite", "good", "run")

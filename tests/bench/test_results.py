"""Files, tables and pictures of what was measured."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedmate.bench import tables
from fedmate.bench.case import Case
from fedmate.bench.measure import Timing
from fedmate.bench.pictures import check_growth, draw_growth
from fedmate.bench.results import Results, Row, combine, describe
from fedmate.bench.roofline import Roofline, Work
from fedmate.errors import UserError

CASE = Case(network="digits_cnn", clients=20, samples=40, device="cuda")


def timing(ran_by: str, *milliseconds: float) -> Timing:
    return Timing(ran_by, 1.5, 2.5, milliseconds, tuple(2 * ms for ms in milliseconds), 2**30, 2**29)


def make() -> Results:
    about = {
        "date": "2026-01-02T03:04:05+00:00",
        "device": "cuda",
        "repeat": 3,
        "load": 0.1,
        "hardware": {"cpu": "Abacus", "cores": 4, "gpu": "Loom"},
        "versions": {"fedmate": "1.2", "torch": "3.4", "jax": "5.6", "triton": None},
    }
    return Results(
        about,
        Roofline({"strict": 2e12}, 1e12),
        [
            Row(CASE, timing("vectorised", 20, 10, 15), Work(10**9, 10**6)),
            Row(replace(CASE, runner="plain_loop"), timing("plain_loop", 50, 100, 60), Work(10**9, 10**6)),
            Row(replace(CASE, runner="jax"), error="jax is not installed"),
            Row(replace(CASE, runner="plain_loop", precision="tf32"), timing("plain_loop", 1), Work(1, 1)),
        ],
    )


def test_a_file_holds_everything(tmp_path: Path) -> None:
    results = make()
    path = tmp_path / "r.json"
    path.write_bytes(results.to_json())
    assert Results.load(path) == results
    first = json.loads(path.read_bytes())["rows"][0]["derived"]
    assert first["ms_per_round"] == 15
    assert first["samples_per_s"] == pytest.approx(20 * 40 * 5 / 0.015)
    assert first["floor_ms"] == pytest.approx(0.5)
    assert first["share_of_roofline"] == pytest.approx(0.5 / 15)


def test_everything_that_was_described_can_be_written() -> None:
    about = describe("cpu", 7)
    assert about["repeat"] == 7
    assert about["hardware"]["cores"] >= 1
    assert about["versions"]["torch"]
    assert json.loads(Results(about).to_json())["about"] == about


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "about": {}}', "\xff", "[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"cannot be read \(.*\); give a file that `fedmate bench --out` wrote\.$"):
        Results.load(path)


def test_a_case_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(make().to_json().replace(b'"clients": 20', b'"clients": -1'))
    with pytest.raises(UserError, match="`clients` is -1"):
        Results.load(path)
    with pytest.raises(UserError, match="No such file"):
        Results.load(tmp_path / "none.json")


def test_files_of_one_machine_are_one_table() -> None:
    one, other = make(), make()
    assert combine([one, other]).rows == one.rows, "the same rows twice say nothing new"
    other.rows = other.rows[:1]
    other.rows[0] = dataclasses.replace(other.rows[0], case=dataclasses.replace(other.rows[0].case, clients=7))
    assert combine([one, other]).rows == one.rows + other.rows
    other.about = {**other.about, "versions": {**other.about["versions"], "torch": "1.0"}}
    with pytest.raises(UserError, match="different versions"):
        combine([one, other])
    other.about = {**other.about, "hardware": {"cpu": "Quill", "cores": 1, "gpu": None}}
    with pytest.raises(UserError, match="different machines"):
        combine([one, other])


# -------------------- tables


def test_cells() -> None:
    results = make()
    assert tables.columns(results.rows) == ["precision", "runner", *tables.MEASURES]
    assert tables.cells(results) == [
        ["strict", "vectorised (auto)", "15", "67 %", "266,667", "30", "1.5", "1,024", "3.3 %", "4.00"],
        ["strict", "plain_loop", "60", "83 %", "66,667", "120", "1.5", "1,024", "0.8 %", "1.00"],
        ["strict", "jax", "-", "", "", "", "", "", "", ""],
        ["tf32", "plain_loop", "1", "0 %", "4,000,000", "2", "1.5", "1,024", "", "1.00"],
    ]
    assert tables.shared(results.rows) == (
        "fedavg, digits_cnn, 20 clients, 40 samples each, 10 classes, batches of 50, 5 epochs, cuda"
    )
    assert tables.remarks(results) == ["Not measured: fedavg, digits_cnn, 20 x 40: jax: jax is not installed."]


def test_what_a_back_end_said_is_told_once() -> None:
    results = make()
    noted = replace(timing("vectorised", 1), notes=("captured nothing.",))
    results.rows = [Row(CASE, noted)] * 2
    assert tables.remarks(results) == ["Note: fedavg, digits_cnn, 20 x 40: auto: captured nothing."]


def test_the_headline() -> None:
    results = make()
    assert tables.headline(results) == [
        "Loom, 4 cores; n = 1 to 3; 2026-01-02",
        "fedmate 1.2, torch 3.4, jax 5.6",
        "measured peaks: strict 2 TFLOP/s; 1e+03 GB/s",
    ]
    results.about["load"] = 3.0
    assert "Note: others were at work when it began (load 3.0): figures are off." in tables.headline(results)


def test_markdown() -> None:
    lines = tables.to_markdown(make()).splitlines()
    assert lines[2].startswith("| precision | runner | ms/round |")
    assert lines[3].count("---") == lines[2].count("|") - 1
    assert len(lines) == 8


# -------------------- pictures


def grown() -> Results:
    results = make()
    results.rows += [
        Row(replace(CASE, clients=100), timing("vectorised", 40), Work(1, 1)),
        Row(replace(CASE, clients=100, method="fedrep"), timing("vectorised", 40), Work(1, 1)),
    ]
    return results


def test_growth_is_drawn_the_same_each_time() -> None:
    picture = draw_growth(grown(), ".svg")
    assert picture == draw_growth(grown(), ".svg")
    text = picture.decode()
    assert "fedavg, digits_cnn, 40 samples each" in text
    assert "fedrep" not in text, "it was measured with one number of clients only"
    for label in ("vectorised, strict", "plain_loop, tf32", "Loom", ">100<"):
        assert label in text


def test_what_does_not_grow_is_not_drawn() -> None:
    check_growth(row.case for row in grown().rows)
    for rows in (make().rows, grown().rows[-1:], []):
        with pytest.raises(UserError, match="measure `--suite clients`"):
            check_growth(row.case for row in rows)

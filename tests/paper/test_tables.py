"""The generated pages are made of the records alone, and are not older than these; single tables by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paper.__main__ import FOLDER, TABLES, pages
from paper.prototypes import embed, held_prototypes, silhouette
from paper.tables import cost, ranking, time_to_accuracy
from tests.studies.small import Run, results_of, study_of

from fedmate.studies.records import Records, command_of
from fedmate.studies.study import Choice

RECORDS = [*Records(FOLDER, "all").all().values()]


def test_the_pages_are_those_of_the_records() -> None:
    made = dict(pages(plots=False))
    assert {path.name for path in made} == {path.name for path in TABLES.glob("*.md")}
    for path, content in made.items():
        assert path.read_bytes() == content, f"{path.name} is outdated; run `python -m paper`"


def test_numbers_of_the_results_page_are_those_of_the_tables() -> None:
    tables = "".join(path.read_text() for path in TABLES.glob("*.md"))
    known = set(re.findall(r"\d+\.\d\d\b", tables))
    page = (FOLDER.parent / "docs" / "results.md").read_text()
    assert len(page.splitlines()) <= 200
    assert not [number for number in re.findall(r"\d+\.\d\d\b", page) if number not in known]


def test_every_record_says_how_where_and_when_it_was_made() -> None:
    assert len(RECORDS) == 667
    for one in RECORDS:
        assert one.content["command"].replace("fedmate partition ", "fedmate run ") == command_of(one.config)
        assert one.content["date"] > "2026"
        assert one.content["environment"]["commit"]
        assert one.content["environment"]["torch"]


def test_ranking_is_of_one_view_and_common_seeds(tmp_path: Path) -> None:
    results = results_of(
        study_of(tmp_path),
        {
            "s10/fedavg": [Run({"pre": (50.0, 40.0), "global": (60.0, 40.0)})] * 2,
            "s10/local": [Run({"pre": (70.0, 20.0)})],
        },
    )
    sheet = ranking(results)[0]
    assert [row[:3] for row in sheet.rows] == [
        ["1", "local", "70.00 (1 seed)"],
        ["2", "FedAvg / global (global)", "60.00 (1 seed)"],
        ["3", "FedAvg / global", "50.00 (1 seed)"],
    ]


def traffic(up: Mapping[str, int], down: Mapping[str, int]) -> dict[str, Any]:
    return {"bytes_up_items": up, "bytes_down_items": down}


def test_cost_counts_numbers_of_a_client_and_round(tmp_path: Path) -> None:
    # 2 clients x 2 rounds x 4 bytes: 16 bytes are one number.
    model = {"extractor": 160, "classifier": 32, "bookkeeping": 5}
    results = results_of(
        study_of(tmp_path),
        {
            "s10/fedavg": [Run({}, summary=traffic(model, model))],
            "s10/local": [Run({}, summary=traffic({}, {"prototypes": 48}))],
        },
        Choice(only=("s10/*",)),
    )
    first, last = cost(results)[0].rows
    assert first == [
        *("FedAvg / global", "model", "extractor 10, classifier 2", "12", "0.00"),
        *("extractor 10, classifier 2", "12", "0.00", "0.000", "1.0000"),
    ]
    assert last[2:4] == ["prototypes 3", "3"]
    assert last[5:7] == ["nothing", "0"]
    assert last[-1] == "0.1250"


def test_time_is_that_of_the_first_evaluated_round_with_the_target(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    curve = [(1, {"pre": (60.0, 0.0), "post": (60.0, 0.0)}), (2, {"pre": (70.0, 0.0), "post": (69.0, 0.0)})]
    run = Run({"pre": (70.0, 0.0)}, curve, more={"flops_per_round": 5e9})
    results = results_of(study, {"s10/fedavg": [run], "s10/local": [run]})
    rows = [list(row[2:5]) for row in time_to_accuracy(results)[0].rows]
    assert rows == [["2", "2.0", "1.00e+10"], ["not reached", "", ""], ["not reached (best 69.00)", "", ""]]


def test_prototypes_of_classes_that_clients_hold() -> None:
    found = torch.arange(12.0).reshape(2, 3, 2)
    found[1, 2] = torch.nan
    held = held_prototypes(found, [[1, 0, 2], [0, 5, 1]])
    assert held.points.tolist() == [[0.0, 1.0], [4.0, 5.0], [8.0, 9.0]]
    assert held.classes.tolist() == [0, 2, 1]
    assert len(held_prototypes(torch.zeros(0, 0, 0), [[1, 2]]).points) == 0


def test_silhouette_and_embedding_of_known_points() -> None:
    near = held_prototypes(torch.tensor([[[0.0, 0.0], [9.0, 9.0]], [[0.0, 0.1], [9.0, 9.1]]]), [[1, 1], [1, 1]])
    number = silhouette(near)
    assert number == pytest.approx(1 - 0.1 / np.hypot(9, 9.0), abs=1e-3)
    assert silhouette(near._replace(classes=np.zeros(4, dtype=np.int64))) is None
    assert embed(near.points).shape == (4, 2)
    assert np.array_equal(embed(near.points), embed(near.points))
    assert embed(near.points[:2]).shape == (0, 2)

"""Studies and results from plain numbers: nothing is run.

study = study_of(tmp_path)
results = results_of(study, {"s10/fedavg": [Run({"pre": (50.0, 60.0)}), None]})
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedmate.studies.records import FORMAT, RunSummary
from fedmate.studies.statistics import Results
from fedmate.studies.study import Choice, Study, StudyRun, load_study

TESTS = ("balanced", "own")
STUDY = """
title = "Small"
source = "Table 7"
reference = "local"
[base]
rounds = 2
eval_every = 1
backend = "sequential"
partition = { clients = 3, examples = 20 }
training = { epochs = 1 }
[quick]
rounds = 1
[settings.s10]
name = "s = 10"
partition.share = 10
[settings.s70]
partition.share = 70
[methods.fedavg]
name = "FedAvg"
method.name = "fedavg"
published = { s10 = 49.39 }
[methods.global]
view = "global"
method.name = "fedavg"
[methods.local]
method.name = "local"
"""

Accuracy = Mapping[str, tuple[float | None, float | None] | None]
"""By view: on the balanced and on the own test; `None` for a view that the method does not have."""


class Run(NamedTuple):
    """The result of a run: its accuracies at the end and by round, and further entries of its record."""

    accuracy: Accuracy
    curve: Sequence[tuple[int, Accuracy]] = ()
    diverged_in: int | None = None
    partition: str = "ab" * 32
    summary: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}


def study_of(folder: Path, text: str = STUDY) -> Study:
    folder.mkdir(exist_ok=True)
    path = folder / "small.toml"
    path.write_text(text)
    return load_study(path)


def results_of(study: Study, given: Mapping[str, Sequence[Run | None]], choice: Choice | None = None) -> Results:
    """Return results with as many seeds as some method has; `None` is a run that is not finished."""
    choice = (choice or Choice())._replace(seeds=max(map(len, given.values()), default=1))
    runs = study.runs(choice)
    found = {}
    for run in runs:
        of_seeds = given.get(run.key, ())
        one = of_seeds[run.seed] if run.seed < len(of_seeds) else None
        if one is not None:
            found[run.name] = summary_of(run, one)
    return Results(study, choice, runs, found)


def summary_of(run: StudyRun, one: Run) -> RunSummary:
    accuracy = {
        view: figures and {test: {"mean": figure} for test, figure in zip(TESTS, figures, strict=True)}
        for view, figures in one.accuracy.items()
    }
    curve = [
        {
            "round": number,
            "seconds": float(number),
            "accuracy": {view: dict(zip(TESTS, f, strict=True)) for view, f in figures.items() if f is not None},
        }
        for number, figures in one.curve
    ]
    return RunSummary(
        {
            "format": FORMAT,
            "config": tomllib.loads(run.experiment.to_toml()),
            "summary": {
                "accuracy": accuracy,
                "partition_sha256": one.partition,
                "diverged_in_round": one.diverged_in,
                **one.summary,
            },
            "holdings": [[3, 1], [1, 3]],
            "class_names": ["a", "b"],
            "curve": curve,
            **one.more,
        }
    )

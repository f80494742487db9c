"""What came of a search: a table of its trials, and the best of them as an experiment and as a preset."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedmate import storage
from fedmate.methods import METHODS
from fedmate.report.tables import Sheet, to_csv
from fedmate.studies.records import Records, RunSummary, command_of
from fedmate.tune.search import TRIALS, Search, Trial, ranked

SAID = re.compile(r"# Trial \d+ of `(?P<command>.*)`: (?P<score>[\d.]+) % on validation samples\.\n")
"""The first line of what is saved as the best."""

BUDGET = re.compile(r" --trials (\d+)")
"""What says in a command how many trials there are, if not the usual number."""


def sheet_of(search: Search, trials: Sequence[Trial]) -> Sheet:
    """Return the trials as a table, the best of them first."""
    order = ranked(trials)
    head = ["trial", *(short(key) for key in search.start), *(run.name for run in search.runs), "score"]
    rows = [
        [
            str(trial.number),
            *map(number, trial.settings.values()),
            *map(_figure, trial.accuracies),
            _figure(trial.score),
        ]
        for trial in order
    ]
    return Sheet(
        "trials",
        f"{search.experiment.method.name} on {search.experiment.dataset.name}, {len(trials)} trials, the best first",
        head,
        rows,
        notes=[
            f"balanced accuracy of `{search.view}` on validation samples, in percent; score: the mean over a trial's "
            "runs; trial 0 has the experiment's own settings"
        ],
        bold=frozenset((0, column) for column in range(len(head))),
    )


def preset_of(search: Search, trials: Sequence[Trial], store: Records) -> str:
    """Return the best trial as an entry of a file of presets: `experiment.tuned` says what is in one."""
    best, first = ranked(trials)[0], trials[0]
    experiment = search.experiment
    lines = [header(experiment.method.name, experiment.dataset.name)]
    for section in ("training", "method"):
        own = {key: value for key, value in best.settings.items() if key.startswith(f"{section}.")}
        values = ", ".join(f"{key.partition('.')[2]} = {_toml(value)}" for key, value in own.items())
        lines += [f"{section} = {{ {values} }}"] if own else []
    kept = [_kept(store, name) for trial in trials for name in trial.runs]
    lines.append(f"date = {_toml(max(one.content['date'] for one in kept))}")
    commit = _kept(store, best.runs[0]).content["environment"].get("commit")
    lines += [] if commit is None else [f"commit = {_toml(commit)}"]
    lines += [f"command = {_toml(command(search))}", f"trials = {len(trials)}", f"view = {_toml(search.view)}"]
    lines.append(f"score = {_figure(best.score)}")
    # A score that is not there says that the defaults diverged.
    lines += [] if first.score is None else [f"default_score = {_figure(first.score)}"]
    return "\n".join(lines) + "\n"


def save(search: Search, trials: Sequence[Trial], folder: Path) -> bool:
    """Write the table and the best experiment, over those of an earlier call.

    Those of the same search with more trials stay if they are better; returns whether something was written.
    """
    best = ranked(trials)[0]
    earlier = _saved(search, folder)
    if earlier is not None and earlier.trials > search.trials and earlier.score > float(_figure(best.score)):
        return False
    experiment = search.experiment_with(best.settings)
    said = f"# Trial {best.number} of `{command(search)}`: {_figure(best.score)} % on validation samples."
    storage.make_folder(folder)
    # Several processes may share a search, and end at the same time.
    table = sheet_of(search, trials)
    table = replace(table, head=["trial", *search.start, *table.head[1 + len(search.start) :]])
    storage.replace_by_parts(folder / "trials.csv", [to_csv(table).encode()])
    storage.replace_by_parts(folder / "best.toml", [f"{said}\n{experiment.to_toml()}".encode()])
    return True


class _Earlier(NamedTuple):
    """What is saved of an earlier call: how many trials it had, and the score of the best."""

    trials: int
    score: float


def _saved(search: Search, folder: Path) -> _Earlier | None:
    """Return what is saved there, if it is of the same search, however many its trials were."""
    try:
        found = SAID.match((folder / "best.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    usual = command(replace(search, trials=TRIALS))
    if found is None or BUDGET.sub("", found["command"]) != usual:
        return None
    budget = BUDGET.search(found["command"])
    return _Earlier(TRIALS if budget is None else int(budget[1]), float(found["score"]))


def command(search: Search) -> str:
    """Return the command that makes the same search: its experiment, and its budget where that is not the usual."""
    experiment = search.experiment
    settings = shlex.split(command_of(tomllib.loads(experiment.to_toml())))[6:]
    words = ["fedmate", "tune", experiment.method.name, "--dataset", experiment.dataset.name, *settings]
    shares = dict.fromkeys(f"{run.values['partition']['share']:g}" for run in search.runs if "partition" in run.values)
    seeds = {run.values["seed"] for run in search.runs}
    words += ["--shares", ",".join(shares)] if shares else []
    words += ["--seeds", str(len(seeds))] if len(seeds) > 1 else []
    words += ["--trials", str(search.trials)] if search.trials != TRIALS else []
    words += ["--view", search.view] if search.view != METHODS[experiment.method.name].primary_view else []
    return shlex.join(words)


def header(method: str, dataset: str) -> str:
    """Return the line that begins an entry."""
    return f"[{_key(method)}.{_key(dataset)}]"


def short(key: str) -> str:
    """Return what a setting is called in a sentence: without its section, and in words, which a table can break."""
    return key.partition(".")[2].replace("_", " ")


def number(value: float | None) -> str:
    """Return a setting as it is read."""
    return "none" if value is None else f"{value:g}"


def _key(name: str) -> str:
    return name if name.replace("-", "_").isidentifier() and name.isascii() else _toml(name)


def _kept(store: Records, name: str) -> RunSummary:
    kept = store.find(name)
    assert kept is not None, f"{name} was there a moment ago"
    return kept


def _toml(value: Any) -> str:
    # JSON's strings and numbers are TOML's too.
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def _figure(figure: float | None) -> str:
    return "diverged" if figure is None else f"{figure:.2f}"

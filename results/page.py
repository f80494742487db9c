"""docs/results.md from the files in this folder: every number in its tables is read from a record, none is typed.

    make results

`paper.json` has the published figures, `remarks.md` what we make of the comparison, `cifar10/` the records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "results.md"
VIEWS = ("pre", "post", "global")
TESTS = ("balanced", "own")
SHARES = (10, 70)
"""The settings of the table: s, the share of a client's samples that is spread evenly over classes."""
ANCHOR = 20

INTRODUCTION = """\
# Results

Made by `make results` from the records in `results/`; every number in a table is read from one of them, and
the last section says when, where, from which commit and with which command each came about. Accuracies are in
percent, means over clients.

- `balanced`: every class of the test split weighs alike. `own`: classes weigh as in the client's training samples.
- `pre`: what a client holds right after the last broadcast, before it trains. `post`: after local training. `global`:
  the aggregated model.
"""


LIKE = ("rounds", "seed", "precision", "training", "dataset", "model")
"""What is the same in all runs of this page; of the partition the share alone differs."""


class Run:
    """A record, as this page reads it."""

    def __init__(self, path: Path) -> None:
        """Read it."""
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.config: dict[str, Any] = self.content["config"]
        self.method: str = self.config["method"]["name"]
        self.share: float | None = self.config["partition"].get("share")
        # The command has the options that were set, and the file is named after them.
        words = (word.partition(".") for word in self.content["command"].split() if word.startswith("method."))
        self.options = ", ".join(option.replace("=", " = ") for _, _, option in words)
        self.label = f"{self.method} ({self.options})" if self.options else self.method

    @property
    def setting(self) -> dict[str, Any]:
        """What it has in common with the other runs."""
        partition = {key: value for key, value in self.config["partition"].items() if key != "share"}
        return {**{key: self.config[key] for key in LIKE}, "partition": partition}

    def accuracy(self, view: str, test: str) -> float | None:
        """Return the figure of a view, if the method has it."""
        figures = self.content["summary"]["accuracy"].get(view)
        mean: float | None = figures and figures[test]["mean"]
        return mean

    @property
    def extra_views(self) -> list[str]:
        """The names of the views that not every method has."""
        return [view for view in self.content["summary"]["accuracy"] if view not in VIEWS]


def main() -> None:
    """Write the page."""
    PAGE.write_text(make_page(), encoding="utf-8")
    print(PAGE)


def make_page() -> str:
    """Return the page."""
    runs = [Run(path) for path in sorted((FOLDER / "cifar10").glob("*.json"))]
    if not runs:
        sys.exit("results/cifar10 has no records: keep some with results/keep.py.")
    for run in runs:
        if run.share is None or run.setting != runs[0].setting:
            sys.exit(f"{run.path} is a run in another setting than {runs[0].path}: keep it in a folder of its own.")
    parts = [INTRODUCTION, _setting(runs), _reproduction(runs)]
    parts += [_everything(runs, share) for share in SHARES]
    parts += [_ranking(runs), _anchors(runs), (FOLDER / "remarks.md").read_text(encoding="utf-8"), _sources(runs)]
    return "\n".join(parts)


def _setting(runs: list[Run]) -> str:
    config, environment = runs[0].config, runs[0].content["environment"]
    partition, training = config["partition"], config["training"]
    notes = " ".join(dict.fromkeys(run.content["note"] for run in runs if run.content["note"]))
    return f"""\
## CIFAR-10, {partition["clients"]} clients x {partition["examples"]} images, T = {config["rounds"]}

Batch {training["batch_size"]}, {training["epochs"]} epochs, SGD with learning rate \
{training["learning_rate"]}, momentum {training["momentum"]}, \
weight decay {training["weight_decay"]}; crops and flips; {environment["gpu"] or "CPU"}, torch {environment["torch"]}, \
`precision = "{config["precision"]}"`, one seed. \
Every method with its default options unless the table names some; SCAFFOLD has a momentum of its own, 0. {notes} \
`results/subset.py` makes that data set.
"""


def _reproduction(runs: list[Run]) -> str:
    """Hold the published rows against ours, in the view that each of them evidently shows."""
    paper = json.loads((FOLDER / "paper.json").read_text(encoding="utf-8"))
    lines = [f"### Against the paper\n\n{paper['source']}; balanced test, in the view that each row evidently shows.\n"]
    lines.append("| method | view |" + "".join(f" s = {s}: paper | ours | difference |" for s in SHARES))
    lines.append("|---|---|" + "---|---|---|" * len(SHARES))
    for row in paper["rows"]:
        for label, options in {run.label: run.options for run in runs if run.method == row["method"]}.items():
            cells = []
            for share in SHARES:
                ours = _one(runs, label, share)
                figure = None if ours is None else ours.accuracy(row["view"], "balanced")
                published = row[str(share)]
                cells += [f"{published:.2f}", _cell(figure), "" if figure is None else f"{figure - published:+.2f}"]
            named = f"{row['name']} ({options})" if options else row["name"]
            lines.append(f"| {named} | `{row['view']}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _everything(runs: list[Run], share: int) -> str:
    """Return every view and both tests of every method."""
    lines = [f"### Every view, both tests, s = {share}\n"]
    columns = [(test, view) for test in TESTS for view in VIEWS]
    lines.append(
        "| method |"
        + "".join(f" {test} `{view}` |" for test, view in columns)
        + " further views: balanced / own | MB up |"
    )
    lines.append("|---" * (len(columns) + 3) + "|")
    for run in sorted((run for run in runs if run.share == share), key=lambda run: run.label):
        cells = [_cell(run.accuracy(view, test)) for test, view in columns]
        more = "; ".join(
            f"`{view}` {_cell(run.accuracy(view, 'balanced'))} / {_cell(run.accuracy(view, 'own'))}"
            for view in run.extra_views
        )
        megabytes = run.content["summary"]["bytes_up"] / 1e6
        lines.append(f"| {run.label} | {' | '.join(cells)} | {more} | {megabytes:,.0f} |")
    return "\n".join(lines) + "\n"


def _ranking(runs: list[Run]) -> str:
    """Order everybody by one and the same view: what a client holds after the last broadcast."""
    lines = [
        "### One ranking\n\nEverybody in the same view, `pre`: what a client would use after the last broadcast.\n"
    ]
    head = [f"s = {share}, {test}" for share in SHARES for test in TESTS]
    lines.append("| place |" + "".join(f" {name} |" for name in head))
    lines.append("|---" * (len(head) + 1) + "|")
    columns = []
    for share in SHARES:
        for test in TESTS:
            found = [(run.accuracy("pre", test), run.label) for run in runs if run.share == share]
            ranked = sorted(((figure, label) for figure, label in found if figure is not None), reverse=True)
            columns.append([f"{label} {figure:.2f}" for figure, label in ranked])
    for place in range(max(map(len, columns))):
        cells = [column[place] if place < len(column) else "" for column in columns]
        lines.append(f"| {place + 1} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _anchors(runs: list[Run]) -> str:
    """Return the figures that FedPAC's own users report, in their setting."""
    found = [run for run in runs if run.share == ANCHOR]
    lines = [
        f"### FedPAC's own setting, s = {ANCHOR}, own test\n",
        "Reported about FedPAC's released code, one run: FedAvg 69.7 / 76.6, FedPAC 81.1 / 78.7 (`pre` / `post`).\n",
        "| method | `pre` | `post` |",
        "|---|---|---|",
    ]
    lines += [
        f"| {run.label} | {_cell(run.accuracy('pre', 'own'))} | {_cell(run.accuracy('post', 'own'))} |" for run in found
    ]
    return "\n".join(lines) + "\n"


def _sources(runs: list[Run]) -> str:
    """Say where every number comes from."""
    lines = [
        "## The runs\n",
        "| record | date | commit | hardware | command |",
        "|---|---|---|---|---|",
    ]
    for run in runs:
        environment = run.content["environment"]
        commit = (environment["commit"] or "unknown")[:10]
        hardware = f"{environment['gpu'] or environment['machine']}, torch {environment['torch']}"
        name = f"[{run.path.name}](../results/cifar10/{run.path.name})"
        cells = (
            name,
            run.content["date"],
            commit,
            hardware,
            f"`{run.content['command']}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _one(runs: list[Run], label: str, share: int) -> Run | None:
    return next((run for run in runs if run.label == label and run.share == share), None)


def _cell(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2f}"


if __name__ == "__main__":
    main()

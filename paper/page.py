"""docs/results.md from what is kept in `cells/`: every number in its tables is read from a run, none is typed.

Which runs those are, and the command of each, is in docs/runs.md.

    make results

`remarks/NAME.md` says what we make of an experiment. New cells come with `fedmate reproduce NAME --out results`, or
from another machine with `--merge DIR`.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmate.experiment import tuned
from fedmate.report.figures import Picture
from fedmate.report.sheets import Sheet, to_markdown
from fedmate.studies.grid import SETTINGS, Wanted
from fedmate.studies.kept import Kept
from fedmate.studies.outcome import OTHER_VERSION, Outcome
from fedmate.studies.presentation import SHOWS
from fedmate.studies.reading import load_grid
from fedmate.studies.saving import folder_name
from fedmate.studies.stand_ins import with_records
from fedmate.studies.store import Store

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent / "docs"
PAGE, RUNS, PICTURES = DOCS / "results.md", DOCS / "runs.md", DOCS / "pictures" / "results"
NAMES = (
    *("generalization", "ablation", "components", "adaptability", "classwise", "prototypes", "redundancy"),
    *("distributions", "transmission", "convergence", "cost", "lambda_e", "lambda_c", "time_to_accuracy"),
    *("harmony", "beyond"),
)
"""The experiments in the order of the paper, then what goes beyond it."""

SEEDS = {"generalization": 3, "harmony": 3, "beyond": 3}
"""How many are shown where it is more than one: rows of a table are to be compared, so most of them have as many."""

FEW_CLASSES = (
    *("fedmate", "fedmate_rate", "fedmate_still*", "fedmate_plus*"),
    *("fedpac", "fedpac_calibrated*", "fedpac_momentum*", "fedavg_*"),
)
"""The rows that `harmony` has where clients of the small setting hold few classes."""

CELLS = {
    "beyond": ("small_s10/*", "*/fedmate", "*/rate", "*/still", "*/plus", "small_pathological/absent"),
    "harmony": ("cifar*/*", "small_s10/*", *(f"small_pathological/{row}" for row in FEW_CLASSES)),
}
"""Which are shown where it is not all of them: what was not run would be most of the table."""

TUNED = ("generalization", "harmony")
"""What is shown with tuned settings, too; others have a few of their cells."""

ONCE = ("published in: ", OTHER_VERSION)
"""How notes of a table begin that stand elsewhere."""

INTRODUCTION = """\
# Results

Made by `make results` from the runs kept in `paper/cells/`: every number in a table is read from one of them, and
[runs.md](runs.md) says when, where, from which commit and with which command each came about. Accuracies are in
percent, means over clients; `±` is the standard deviation between seeds, where there are several, or their standard
error where a table says so.

- `balanced`: every class of the test split weighs alike. `own`: classes weigh as in the client's training samples.
- `pre`: what a client holds right after the last broadcast, before it trains. `post`: after local training. `global`:
  the aggregated model.
- "paper": what was published. The paper does not say in which view; "ours" is the one in which a row can best be met,
  chosen afterwards (`experiments/*.toml` give the reasons), and every view follows. Where another data set stands in,
  nothing is subtracted.
"""


def outcomes() -> Iterator[Outcome]:
    """Yield what was found of every experiment, with the paper's settings and with tuned ones, in full and quick."""
    store = Store(FOLDER)
    for name in NAMES:
        grid, shown = load_grid(name), set[str]()
        for quick in (False, True):
            for settings in SETTINGS if name in TUNED else SETTINGS[:1]:
                wanted = Wanted(SEEDS.get(name, 1), settings, quick, CELLS.get(name, ()))
                found = Outcome.of(with_records(grid, wanted, store), wanted, store)
                # Where nothing is trained, nothing is cut short.
                if not found.found.keys() <= shown:
                    yield found
                shown |= found.found.keys()


def make_page(found: list[Outcome]) -> str:
    """Return the page."""
    return "\n".join([INTRODUCTION, _summary(found), *map(_section, found), _tuning()])


def pictures(found: list[Outcome]) -> dict[Path, Picture]:
    """Return the pictures by the files they belong into."""
    return {
        PICTURES / f"{_folder(outcome)}_{picture.name}.svg": picture
        for outcome in found
        for picture in _shown(outcome)
        if isinstance(picture, Picture)
    }


def _summary(found: list[Outcome]) -> str:
    """Return what there is in one table, and what there is not."""
    lines = [
        "| experiment | runs | published figures to compare with | within 2 points | largest difference |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for outcome in found:
        differences = list(_differences(outcome))
        close = str(sum(abs(one) <= 2 for one in differences)) if differences else ""
        largest = f"{max(differences, key=abs):+.2f}" if differences else ""
        link = f"[{_title(outcome)}](#{_anchor(_title(outcome))})"
        lines.append(f"| {link} | {len(outcome.found)} | {len(differences) or ''} | {close} | {largest} |")
    shown = {outcome.grid.name for outcome in found}
    missing = ", ".join(f"`{name}`" for name in NAMES if name not in shown)
    lines += ["", f"Not run yet: {missing}." if missing else "", ""]
    return "\n".join(lines)


def _differences(outcome: Outcome) -> Iterator[float]:
    """Yield what our figures lie above the published ones, where they may be compared."""
    for column in outcome.columns:
        for row in outcome.rows:
            figure = outcome.figure(row, column, row.view, column.test)
            if figure is not None and column.key in row.paper and column.stands_in_for is None:
                yield round(figure.mean, 2) - row.paper[column.key]


def _section(outcome: Outcome) -> str:
    """Return what we make of an experiment, then its tables and pictures; what all tables say stands there once."""
    about = "; ".join(filter(None, (f"`{_command(outcome)}`", outcome.grid.source)))
    parts = [f"## {_title(outcome)}\n", f"{about}.\n"]
    remarks = FOLDER / "remarks" / f"{_folder(outcome)}.md"
    parts += [remarks.read_text(encoding="utf-8")] if remarks.exists() else []
    notes, heading = outcome.notes(), "Against the paper" if any(_differences(outcome)) else "Accuracy"
    # With which versions runs were made is said of all of them together, where they are named.
    said = [note for note in notes if not note.startswith(OTHER_VERSION)]
    parts += ["\n".join(f"- {note}" for note in said) + "\n"] if said else []
    for thing in _shown(outcome):
        if isinstance(thing, Sheet):
            title = thing.title.removeprefix(outcome.grid.title).lstrip("; ")
            title = title if title and not title.startswith(",") else heading + title
            own = [note for note in thing.notes if note not in notes and not note.startswith(ONCE)]
            parts.append(to_markdown(replace(thing, title=f"{title[0].upper()}{title[1:]}", notes=own)))
        else:
            parts.append(f"![{thing.title}](pictures/results/{_folder(outcome)}_{thing.name}.svg)\n")
    return "\n".join(parts)


def _folder(outcome: Outcome) -> str:
    return folder_name(outcome.grid.name, outcome.wanted)


def _shown(outcome: Outcome) -> list[Sheet | Picture]:
    return [thing for name in outcome.grid.shows for thing in SHOWS[name](outcome)]


def _title(outcome: Outcome) -> str:
    kind = [*(["tuned settings"] if outcome.wanted.settings == "tuned" else []), *(["quick"] * outcome.wanted.quick)]
    return f"{outcome.grid.title} ({', '.join(kind)})" if kind else outcome.grid.title


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _command(outcome: Outcome) -> str:
    wanted = outcome.wanted
    words = ["fedmate", "reproduce", outcome.grid.name]
    words += ["--seeds", str(wanted.seeds)] if wanted.seeds > 1 else []
    words += ["--settings", wanted.settings] if wanted.settings != SETTINGS[0] else []
    words += ["--quick"] if wanted.quick else []
    words += [word for pattern in wanted.patterns for word in ("--cells", pattern)]
    return shlex.join(words)


def _tuning() -> str:
    """Return the presets of the package that were found by `fedmate tune`."""
    rows = [
        [method, dataset, _settings(entry), entry["view"], f"{entry['default_score']:.2f}", f"{entry['score']:.2f}"]
        for method, by_dataset in sorted(tomllib.loads(tuned.FILE.read_text(encoding="utf-8")).items())
        for dataset, entry in by_dataset.items()
        if entry["command"].startswith("fedmate tune")
    ]
    headings = ["method", "data set", "settings found", "view", "default", "found"]
    note = "accuracy on validation samples that no client holds, in percent; commands: src/fedmate/tuned.toml"
    return to_markdown(Sheet("tuning", "What tuning found", headings, rows, [note])).replace("### ", "## ", 1)


def _settings(entry: Mapping[str, Any]) -> str:
    found = {**entry["training"], **entry.get("method", {})}
    return ", ".join(f"`{key}` {value:g}" for key, value in found.items())


def make_runs(found: list[Outcome]) -> str:
    """Return the page that says where every number comes from."""
    runs = {name: kept for outcome in found for name, kept in sorted(outcome.found.items())}
    lines = [
        f"# The {len(runs)} runs behind the results\n",
        "Made by `make results`: what the tables of [results.md](results.md) are read from.\n",
        _versions(found),
        "Data, by the digest that `fedmate` has for its content:\n",
    ]
    data = {(kept.config["dataset"]["name"], kept.content["data_sha256"]): None for kept in runs.values()}
    lines += [*(f"- {name}: `{digest}`" for name, digest in sorted(data)), ""]
    for where in dict.fromkeys(map(_where, runs.values())):
        lines.append(f"## {where}\n")
        said = {
            kept.content["note"]: None for kept in runs.values() if _where(kept) == where and "note" in kept.content
        }
        lines += [f"{note}\n" for note in said]
        lines += [_source(name, kept) for name, kept in sorted(runs.items()) if _where(kept) == where]
        lines.append("")
    return "\n".join(lines)


def _versions(found: list[Outcome]) -> str:
    """Say once for all experiments what `Outcome.versions` says of each."""
    methods = {name for outcome in found for name in outcome.outdated()}
    named = ", ".join(f"`{name}`" for name in sorted(methods))
    return f"{OTHER_VERSION[0].upper()}{OTHER_VERSION[1:]}: {named}.\n" if methods else ""


def _where(kept: Kept) -> str:
    environment = kept.content["environment"]
    hardware = environment["gpu"] or f"{environment['machine']}, no GPU"
    versions = f"torch {environment['torch']}, Python {environment['python']}"
    commit, _, dirty = (environment["commit"] or "unknown").partition("-")
    return f"{kept.content['date']}, commit {commit[:10]}{f' ({dirty})' * bool(dirty)}, {hardware}, {versions}"


def _source(name: str, kept: Kept) -> str:
    return f"- [{name}](../paper/cells/{name}.json): `{kept.command}`"


def main() -> None:
    """Write both pages and the pictures."""
    found = list(outcomes())
    PAGE.write_text(make_page(found), encoding="utf-8")
    RUNS.write_text(make_runs(found), encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path, picture in pictures(found).items():
        path.write_bytes(picture.draw(".svg"))
    print(PAGE)


if __name__ == "__main__":
    main()

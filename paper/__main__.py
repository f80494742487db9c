"""Makes `paper/tables/` from `paper/records/`: every number of every table is read from a run.

    python -m paper              all pages and plots
    python -m paper --no-plots   the pages alone
    python -m paper flops        count the operations of runs that lack them
    python -m paper prototypes   store the prototypes of the runs in `paper/runs/`

`remarks/NAME.md` has our reading of an experiment. New runs come with `fedmate compare paper/NAME.toml --out paper`, or
from another machine with `--merge DIR`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedmate.errors import UserError
from fedmate.experiment import config
from fedmate.report.plots import Plot
from fedmate.report.tables import Table, to_markdown
from fedmate.studies.plots import curves, tradeoffs
from fedmate.studies.records import Records, RunSummary
from fedmate.studies.statistics import Results
from fedmate.studies.study import Choice, load_study
from fedmate.studies.tables import accuracy, differences, folder_name, tradeoff, views
from paper import flops, prototypes
from paper.plots import classwise, holdings, losses, weights
from paper.tables import cost, partitions, ranking, time_to_accuracy

FOLDER = Path(__file__).parent
TABLES = FOLDER / "tables"


def _accuracy(results: Results) -> list[Table]:
    return [accuracy(results), *(views(results, setting) for setting in results.settings)]


def _both_tests(results: Results) -> list[Table | Plot]:
    groups = [(group, setting) for setting in results.settings for group in results.comparable(setting)]
    # One plot for each setting: that of the methods with every seed, where there is one.
    plots = {plot.name.replace("_seeds", ""): plot for plot in tradeoffs(results)}
    return [*(tradeoff(group, setting) for group, setting in groups), *plots.values()]


Content = Sequence[Table | Plot]

PAGES: dict[str, tuple[Callable[[Results], Content], ...]] = {
    "generalization": (_accuracy, ranking),
    "ablation": (_accuracy,),
    "components": (_accuracy,),
    "adaptability": (_accuracy, ranking),
    "classwise": (classwise, _accuracy),
    "prototypes": (prototypes.prototypes, _accuracy),
    "redundancy": (_accuracy, curves),
    "distributions": (partitions, holdings),
    "transmission": (_accuracy, curves),
    "convergence": (losses,),
    "cost": (cost,),
    "lambda_e": (_accuracy, weights),
    "lambda_c": (_accuracy, weights),
    "time_to_accuracy": (time_to_accuracy, curves),
    "harmony": (_both_tests, _accuracy),
    "beyond": (differences, _accuracy),
}
"""The content of each page, in the order of the paper; the last two are our own experiments."""

SEEDS = {"generalization": 3, "harmony": 3, "beyond": 3}
"""The number of seeds, where it is more than one."""

TUNED = ("generalization", "harmony")
"""The experiments that were run with tuned settings, too."""

FEW_CLASSES = (
    *("fedmate", "fedmate_rate", "fedmate_still*", "fedmate_plus*"),
    *("fedpac", "fedpac_calibrated*", "fedpac_momentum*", "fedavg_*"),
)
"""The methods that `harmony` has where clients of the small setting hold few classes."""

ONLY = {
    "beyond": ("small_s10/*", "*/fedmate", "*/rate", "*/still", "*/plus", "small_pathological/absent"),
    "harmony": ("cifar*/*", "small_s10/*", *(f"small_pathological/{key}" for key in FEW_CLASSES)),
}
"""The runs that are shown, where most of the table would be empty otherwise."""

INDEX = """\
# Tables of the paper's experiments

Made by `python -m paper` from the runs in `paper/records/`. Accuracies are in percent, means over clients; `±` is the
standard deviation between seeds, or their standard error where a table says so.

- `balanced`: all classes of the test split weigh alike. `own`: they weigh as in the client's training samples.
- `pre`: the client's model after a broadcast, before it trains. `post`: after local training. `global`: the aggregated
  model.
- "published": the paper's figure. The paper does not name the view; ours is the one in which a method comes closest,
  chosen afterwards (`paper/*.toml` give the reasons). Where another data set stands in, nothing is subtracted.
- The record of each run has its command, commit, versions, hardware and date.

| experiment | runs | published figures | within 2 points | largest difference |
| --- | ---: | ---: | ---: | ---: |
"""


def all_results() -> Iterator[Results]:
    """Yield the results of every experiment: default and tuned settings, full and quick runs."""
    for name in PAGES:
        study, records, shown = load_study(FOLDER / f"{name}.toml"), Records(FOLDER, name), set[str]()
        for quick in (False, True):
            for is_tuned in (False, True)[: 1 + (name in TUNED)]:
                choice = Choice(SEEDS.get(name, 1), is_tuned, quick, ONLY.get(name, ()))
                results = Results.of(study.with_records(choice, records.all()), choice, records)
                if not results.found.keys() <= shown:
                    yield results
                shown |= results.found.keys()


def pages(plots: bool = True) -> Iterator[tuple[Path, bytes]]:
    """Yield the content of every file of `tables/`."""
    index = []
    for results in all_results():
        name, content = folder_name(results), [one for make in PAGES[results.study.name] for one in make(results)]
        yield TABLES / f"{name}.md", _page(results, content).encode()
        index.append(_index_row(results))
        for one in content if plots else []:
            if isinstance(one, Plot):
                yield TABLES / f"{name}_{one.name}.svg", one.draw(".svg")
    yield TABLES / "README.md", f"{INDEX}{''.join(index)}\n{_tuning()}".encode()


def _page(results: Results, content: Content) -> str:
    """Return a page: our reading of the experiment, its tables and plots, and the origin of the runs."""
    about = "; ".join(filter(None, (f"`{_command(results)}`", results.study.source)))
    remarks, notes = FOLDER / "remarks" / f"{folder_name(results)}.md", results.notes()
    parts = [f"# {_title(results)}\n", f"{about}.\n"]
    parts += [remarks.read_text(encoding="utf-8")] if remarks.exists() else []
    parts += ["\n".join(f"- {note}" for note in notes) + "\n"] if notes else []
    for one in content:
        if isinstance(one, Table):
            title = one.title.removeprefix(results.study.title).lstrip("; ") or "accuracy"
            own = [note for note in one.notes if note not in notes and not note.startswith("published in: ")]
            shown = replace(one, title=f"{title[0].upper()}{title[1:]}".lstrip(", "), notes=own)
            parts.append(to_markdown(shown).replace("### ", "## ", 1))
        else:
            parts.append(f"![{one.title}]({folder_name(results)}_{one.name}.svg)\n")
    return "\n".join([*parts, _origin(list(results.found.values()))])


def _title(results: Results) -> str:
    kinds = ["tuned settings"] * results.choice.tuned + ["quick"] * results.choice.quick
    return f"{results.study.title} ({', '.join(kinds)})" if kinds else results.study.title


def _command(results: Results) -> str:
    choice = results.choice
    words = ["fedmate", "compare", f"paper/{results.study.name}.toml"]
    words += ["--seeds", str(choice.seeds)] if choice.seeds > 1 else []
    words += ["--tuned"] * choice.tuned + ["--quick"] * choice.quick
    words += [word for pattern in choice.only for word in ("--only", pattern)]
    return shlex.join(words)


def _origin(runs: Sequence[RunSummary]) -> str:
    """Return where and when the runs were made, and the digests of their data."""
    places = [_place(run) for run in runs]
    lines = [f"- {places.count(place)} runs: {place}" for place in dict.fromkeys(places)]
    lines += [f"- {note}" for note in dict.fromkeys(run.content["note"] for run in runs if "note" in run.content)]
    data = {(run.config["dataset"]["name"], run.content["data_sha256"]): None for run in runs}
    lines += [f"- data of {name}: `{digest}`" for name, digest in sorted(data)]
    return "## Origin of the runs\n\n" + "\n".join(lines) + "\n"


def _place(run: RunSummary) -> str:
    environment = run.content["environment"]
    hardware = environment["gpu"] or f"{environment['machine']}, no GPU"
    commit, _, dirty = (environment["commit"] or "unknown").partition("-")
    versions = f"torch {environment['torch']}, Python {environment['python']}"
    return f"{run.content['date']}, commit {commit[:10]}{f' ({dirty})' * bool(dirty)}, {hardware}, {versions}"


def _index_row(results: Results) -> str:
    differences = [
        one for s in results.settings for m in results.methods if (one := results.difference(m, s)) is not None
    ]
    cells = [f"[{_title(results)}]({folder_name(results)}.md)", str(len(results.found))]
    cells += [str(len(differences)), str(sum(abs(one) <= 2 for one in differences))] if differences else ["", ""]
    cells += [f"{max(differences, key=abs):+.2f}" if differences else ""]
    return f"| {' | '.join(cells)} |\n"


def _tuning() -> str:
    """Return the presets of the package that were found by `fedmate tune`."""
    rows = []
    for method, by_dataset in sorted(tomllib.loads(config.TUNED_FILE.read_text(encoding="utf-8")).items()):
        for dataset, entry in by_dataset.items():
            if entry["command"].startswith("fedmate tune"):
                found = {**entry["training"], **entry.get("method", {})}
                settings = ", ".join(f"`{key}` {value:g}" for key, value in found.items())
                scores = (f"{entry['default_score']:.2f}", f"{entry['score']:.2f}")
                rows.append([method, dataset, settings, entry["view"], *scores])
    head = ["method", "data set", "settings found", "view", "default", "found"]
    note = (
        "accuracy on validation samples that no client holds, in percent; commands: src/fedmate/tuned.toml, trials: "
        "paper/tuning/"
    )
    return to_markdown(Table("tuning", "What tuning found", head, rows, [note])).replace("### ", "## ", 1)


def main() -> None:
    """Do as the docstring of this file says."""
    parser = argparse.ArgumentParser(prog="python -m paper", description="Make paper/tables/ from paper/records/.")
    parser.add_argument("what", nargs="?", choices=("flops", "prototypes"), help="complete these records instead")
    parser.add_argument("--no-plots", action="store_true", help="make the pages alone")
    asked = parser.parse_args()
    if asked.what is not None:
        name = {"flops": "time_to_accuracy", "prototypes": "prototypes"}[asked.what]
        records, results = Records(FOLDER, name), next(one for one in all_results() if one.study.name == name)
        (flops.count_missing if name == "time_to_accuracy" else prototypes.collect)(results, records)
        return
    TABLES.mkdir(exist_ok=True)
    for path, content in pages(not asked.no_plots):
        path.write_bytes(content)
    print(TABLES / "README.md")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"Error: {error}")

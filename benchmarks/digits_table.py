"""The README's table: every method on digits with the default settings, three seeds.

Claim: none; it reports. Hardware: 2 CPU cores, torch 2.13.0. n = 3 seeds, 20 clients x 40 samples, s = 10, T = 50.

    .venv/bin/python benchmarks/digits_table.py runs/digits_table
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from fedmate.experiment.config import parse_set
from fedmate.experiment.prepare import new_runs, run_all
from fedmate.experiment.record import Record
from fedmate.experiment.request import Request
from fedmate.progress import RunProgress

METHODS = ("fedmate", "fedrep", "fedper", "fedavg", "local")
SEEDS = (0, 1, 2)
COLUMNS = [(test, view) for test in ("balanced", "own") for view in ("pre", "post", "global")]


def cell(summaries: list[dict[str, Any]], test: str, view: str) -> str:
    """Return mean ± standard deviation over seeds, bold where it is the method's headline."""
    if summaries[0]["accuracy"][view] is None:
        return ""
    values = [summary["accuracy"][view][test]["mean"] for summary in summaries]
    text = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
    headline = summaries[0]["headline"]
    return f"**{text}**" if (headline["test"], headline["view"]) == (test, view) else text


def main(folder: Path) -> None:
    """Run everything into `folder`, which must not exist, and print the table."""
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for seed in SEEDS:
        request = Request(None, METHODS, "digits", parse_set([f"seed={seed}"]))
        with new_runs(request, folder / f"seed{seed}") as jobs:
            for sentence in run_all(jobs, lambda: RunProgress(Console(stderr=True))):
                sys.exit(sentence)
            for job in jobs:
                rows[job.folder.name].append(Record(job.folder).summary)
    print("| method | " + " | ".join(f"{test} `{view}`" for test, view in COLUMNS) + " | kB per round up / down |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for method, summaries in rows.items():
        first = summaries[0]
        crossing = [f"{first[key] / first['rounds'] / 1000:.0f}" for key in ("bytes_up", "bytes_down")]
        cells = [cell(summaries, test, view) for test, view in COLUMNS]
        print(f"| {method} | " + " | ".join(cells) + f" | {' / '.join(crossing)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The README's table: every method on digits, three seeds.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/digits_table"), help="for the records")
    main(parser.parse_args().folder)

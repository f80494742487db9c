"""Results as tables and as a plot. Results are what `--out` writes: `about` and a row for each case."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import AUTO, Case
from benchmarks.measure import Json
from fedmate.backends.sequential import available_cores
from fedmate.errors import UserError
from fedmate.experiment.prepare import environment

FORMAT = 1

OTHERS = ("triton", "jax", "flwr", "ray", "pfl")
"""Packages whose version is recorded where they are installed."""

BUSY = 0.4
"""The load of a core above which other processes disturb the timing."""

PROPERTIES = [field.name for field in fields(Case) if field.name != "runner"]
MEASURES = ("ms/round", "spread", "samples/s", "CPU ms", "first s", "peak MB", "x plain")

LEGEND = (
    "ms/round: the median; spread: slowest less fastest, of the median; CPU ms: of all threads together.",
    "samples/s: clients x samples x epochs, the samples that extractors are trained on; other passes are not counted.",
    "first s: to set up and run the first round. peak MB: of tensors on a GPU, of the process on a CPU.",
    "x plain: how many times faster than a plain PyTorch loop of the same precision, median to median.",
)


def describe(device: str, repeat: int) -> Json:
    """Return where and when something is measured."""
    gpu = None if device == "cpu" else torch.cuda.get_device_name(device)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "repeat": repeat,
        "load": os.getloadavg()[0] if sys.platform != "win32" else None,
        "hardware": {"cpu": _cpu(), "cores": available_cores(), "gpu": gpu},
        "versions": {**environment(), **{name: _version(name) for name in OTHERS}},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def to_json(results: Json) -> bytes:
    """Return the file of results."""
    return json.dumps({"format": FORMAT, **results}, indent=1).encode() + b"\n"


def load(paths: Sequence[Path]) -> Json:
    """Return what several files of one machine hold, or raise `UserError`."""
    found: list[Json] = []
    for path in paths:
        try:
            found.append(json.loads(path.read_bytes()))
            for row in found[-1]["rows"]:
                Case(**row["case"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"`{path}` cannot be read ({error}); give a file that `--out` wrote.") from None
    if len({json.dumps(one["about"]["hardware"], sort_keys=True) for one in found}) > 1:
        raise UserError("`--show` got files of different machines, which cannot be compared; show them one by one.")
    return {**found[0], "rows": [row for one in found for row in one["rows"]]}


def summary(results: Json) -> list[str]:
    """Return where and how it was measured, in a few lines."""
    about, rows = results["about"], results["rows"]
    hardware, versions = about["hardware"], about["versions"]
    others = [f"{name} {versions[name]}" for name in OTHERS if versions.get(name)]
    counts = sorted({len(row["timing"]["rounds_ms"]) for row in rows if row["timing"]} or {about["repeat"]})
    repeated = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    lines = [
        f"{hardware['gpu'] or hardware['cpu']}, {hardware['cores']} cores; n = {repeated}; {about['date'][:10]}",
        ", ".join([f"fedmate {versions['fedmate']}", f"torch {versions['torch']}", *others]),
    ]
    if (about["load"] or 0) > BUSY * hardware["cores"]:
        lines.append(f"Note: other processes ran when it began (load {about['load']:.1f}): figures are off.")
    same = [f"{name} {rows[0]['case'][name]}" for name in PROPERTIES if rows and name not in _varied(rows)]
    return [*lines, ", ".join(same)]


def remarks(results: Json) -> list[str]:
    """Return why rows could not be measured, and the notes of the others."""
    found: list[str] = []
    for row in results["rows"]:
        title, timing = Case(**row["case"]).title, row["timing"]
        found += [f"Note: {title}: {note}" for note in timing["notes"]] if timing else []
        found += [] if timing else [f"Not measured: {title}: {row['error'].rstrip('.')}."]
    return list(dict.fromkeys(found))


def table(results: Json) -> list[list[str]]:
    """Return the heads of columns, then the cells of each row; what all rows share has no column."""
    rows = results["rows"]
    varied = _varied(rows)
    lines = [[*varied, "runner", *MEASURES]]
    for row in rows:
        runner, timing = row["case"]["runner"], row["timing"]
        if timing and runner == AUTO:
            runner = f"{timing['ran_by']} (auto)"
        lines.append([*(str(row["case"][name]) for name in varied), runner, *_measures(rows, row)])
    return lines


def to_markdown(lines: list[list[str]]) -> str:
    """Return a table for documents."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], ["---"] * len(lines[0]), *lines[1:]))


def _varied(rows: Sequence[Json]) -> list[str]:
    return [name for name in PROPERTIES if len({row["case"][name] for row in rows}) > 1]


def _measures(rows: Sequence[Json], row: Json) -> list[str]:
    timing = row["timing"]
    if not timing:
        return ["-", *[""] * (len(MEASURES) - 1)]
    walls, derived = timing["rounds_ms"], row["derived"]
    median, plain = derived["ms_per_round"], _plain_ms(rows, row)
    return [
        _number(median),
        f"{100 * (max(walls) - min(walls)) / median:.0f} %",
        f"{derived['samples_per_s']:,.0f}",
        _number(statistics.median(timing["cpu_ms"])),
        f"{timing['cold_s']:.1f}",
        "" if timing["peak_bytes"] is None else f"{timing['peak_bytes'] / 2**20:,.0f}",
        "" if plain is None else f"{plain / median:.2f}",
    ]


def _plain_ms(rows: Sequence[Json], row: Json) -> float | None:
    """Return the milliseconds of the plain loop at the same work, if that was measured."""
    wanted = {**row["case"], "runner": "plain_loop"}
    found: list[float] = [
        other["derived"]["ms_per_round"] for other in rows if other["timing"] and other["case"] == wanted
    ]
    return min(found, default=None)


def _number(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"


# -------------------- the plot


def plot_growth(results: Json, suffix: str) -> bytes:
    """Return a plot of training samples a second against the number of clients, with a panel for each kind of work."""
    from matplotlib import style
    from matplotlib.figure import Figure

    from fedmate.report.drawing import FORMATS, STYLE

    panels = _panels(results["rows"])
    if not panels:
        raise UserError("`--plot` needs cases that differ only in the number of clients; measure `--suite clients`.")
    names = sorted({name for lines in panels.values() for name in lines})
    hardware, drawn = results["about"]["hardware"], io.BytesIO()
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for name, points in lines.items():
                # One colour for a runner in all panels.
                colour = f"C{names.index(name)}"
                axes.plot(*zip(*sorted(points), strict=True), label=name, color=colour, marker="o", markersize=4)
            ticks = sorted({clients for points in lines.values() for clients, _ in points})
            axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="training samples a second")
            axes.set_xticks(ticks, labels=[str(number) for number in ticks], minor=False)
            axes.set_xticks([], minor=True)
            axes.set_title(title, fontsize=8)
            axes.grid(which="both", color="#dddddd", linewidth=0.4)
            axes.legend(fontsize=7)
        figure.suptitle(hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} cores")
        figure.savefig(drawn, format=suffix.removeprefix("."), metadata=FORMATS[suffix], dpi=150)
    return drawn.getvalue()


def _panels(rows: Sequence[Json]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return by kind of work, then by runner: numbers of clients and samples a second, where these numbers differ."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    measured = [row for row in rows if row["timing"]]
    precise = len({row["case"]["precision"] for row in measured}) > 1
    for row in measured:
        case: dict[str, Any] = row["case"]
        name = f"{row['timing']['ran_by']}, {case['precision']}" if precise else row["timing"]["ran_by"]
        kind = (
            "{method}, {network}, {samples} samples each\n{classes} classes, batches of {batch_size}, {epochs} epochs"
        )
        title = kind.format(**case) + (", augmented" if case["augment"] else "")
        point = case["clients"], row["derived"]["samples_per_s"]
        panels.setdefault(title, {}).setdefault(name, []).append(point)
    return {
        title: lines
        for title, lines in panels.items()
        if len({clients for points in lines.values() for clients, _ in points}) > 1
    }

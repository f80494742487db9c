"""What was measured, as a table: what all rows share stands above it, what tells them apart in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from fedmate.bench.case import AUTO, Case
from fedmate.bench.results import Results, Row

MEASURES = ("ms/round", "spread", "samples/s", "CPU ms", "first s", "peak MB", "roofline", "x plain")
"""What each row says of a case."""

BUSY = 0.4
"""The load of a core above which somebody else is at work."""

NOTES = (
    "ms/round: the median; spread: slowest less quickest, of the median; CPU ms: of all threads together.",
    "samples/s: clients x samples x epochs, the samples that extractors are trained on; other passes are not counted.",
    "first s: to make ready and run the first round. peak MB: of tensors on a GPU, of the process on a CPU.",
    "roofline: the least time that the training steps would take at the measured peaks, by the time taken.",
    "x plain: how many times faster than a plain PyTorch loop of the same precision, median to median.",
)


def headline(results: Results) -> list[str]:
    """Return where and how it was measured, in a few lines."""
    about = results.about
    hardware, versions = about["hardware"], about["versions"]
    others = [f"{name} {versions[name]}" for name in ("triton", "jax", "flwr", "pfl") if versions.get(name)]
    counts = sorted({len(row.timing.rounds_ms) for row in results.rows if row.timing}) or [about["repeat"]]
    repeated = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    lines = [
        f"{hardware['gpu'] or hardware['cpu']}, {hardware['cores']} cores; n = {repeated}; {about['date'][:10]}",
        ", ".join([f"fedmate {versions['fedmate']}", f"torch {versions['torch']}", *others]),
    ]
    if (about["load"] or 0) > BUSY * hardware["cores"]:
        lines.append(f"Note: others were at work when it began (load {about['load']:.1f}): figures are off.")
    if results.roofline:
        peaks = (f"{name} {peak / 1e12:.3g}" for name, peak in results.roofline.operations_per_s.items())
        lines.append(f"measured peaks: {', '.join(peaks)} TFLOP/s; {results.roofline.bytes_per_s / 1e9:.3g} GB/s")
    return lines


def shared(rows: Sequence[Row]) -> str:
    """Say what all rows have in common."""
    varied = _varied(rows)
    words = {
        "method": "{}",
        "network": "{}",
        "clients": "{} clients",
        "samples": "{} samples each",
        "classes": "{} classes",
        "batch_size": "batches of {}",
        "epochs": "{} epochs",
        "device": "{}",
        "precision": "{}",
    }
    first = rows[0].case
    said = [form.format(getattr(first, name)) for name, form in words.items() if name not in varied]
    if first.augment and "augment" not in varied:
        said.append("augmented")
    return ", ".join(said)


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the heads of the columns."""
    return [*_varied(rows), "runner", *MEASURES]


def cells(results: Results) -> list[list[str]]:
    """Return a line of the table for each row."""
    varied = _varied(results.rows)
    return [
        [*(str(getattr(row.case, name)) for name in varied), _runner(row), *_measures(results, row)]
        for row in results.rows
    ]


def remarks(results: Results) -> list[str]:
    """Say of each row that could not be measured why, and what should be known about the others."""
    failed = [row for row in results.rows if row.timing is None]
    missing = [f"Not measured: {row.case.title}: {(row.error or '').rstrip('.')}." for row in failed]
    said = [f"Note: {row.case.title}: {note}" for row in results.rows if row.timing for note in row.timing.notes]
    return list(dict.fromkeys(missing + said))


def to_markdown(results: Results) -> str:
    """Return the table as documents want it."""
    heads = columns(results.rows)
    lines = [heads, ["---"] * len(heads), *cells(results)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{shared(results.rows)}\n\n{table}\n"


def _varied(rows: Sequence[Row]) -> list[str]:
    """Return the properties in which cases differ, but for who runs them."""
    names = [field.name for field in fields(Case) if field.name != "runner"]
    return [name for name in names if len({getattr(row.case, name) for row in rows}) > 1]


def _runner(row: Row) -> str:
    if row.timing is not None and row.case.runner == AUTO:
        return f"{row.timing.ran_by} (auto)"
    return row.case.runner


def _measures(results: Results, row: Row) -> list[str]:
    timing = row.timing
    if timing is None:
        return ["-", *[""] * (len(MEASURES) - 1)]
    share, speed = results.share(row), _times_plain(results, row)
    return [
        _number(timing.milliseconds),
        f"{100 * timing.spread:.0f} %",
        f"{row.samples_per_s:,.0f}",
        _number(timing.cpu_milliseconds),
        f"{timing.cold_s:.1f}",
        "" if timing.peak_bytes is None else f"{timing.peak_bytes / 2**20:,.0f}",
        "" if share is None else f"{100 * share:.1f} %",
        "" if speed is None else f"{speed:.2f}",
    ]


def _times_plain(results: Results, row: Row) -> float | None:
    """Return how many times faster than the plain loop a row is, if that was measured, too."""
    plain = [
        other.timing.milliseconds
        for other in results.rows
        if other.timing
        and other.case.runner == "plain_loop"
        and (other.case.work, other.case.precision) == (row.case.work, row.case.precision)
    ]
    return min(plain) / row.timing.milliseconds if plain and row.timing else None


def _number(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"

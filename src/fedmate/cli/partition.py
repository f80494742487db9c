"""`fedmate partition`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmate.cli.app import DataDir, Settings, SkipBad, make_console, one_line, read_settings

if TYPE_CHECKING:
    from rich.table import Table

    from fedmate.experiment.config import Section
    from fedmate.report.plots import PartitionPlot

MOST_CLASSES, MOST_CLIENTS = 12, 40
"""Larger partitions are summed up instead of printed as a table."""


def partition(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="Experiment; the default is the data set digits.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set.")] = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for a plot: `.svg`, `.png` or `.pdf`.")
    ] = None,
) -> None:
    """Show how samples are distributed over clients."""
    from fedmate.experiment.config import load_file
    from fedmate.experiment.partitioning import split_samples
    from fedmate.experiment.request import Request, UserInputs, compose
    from fedmate.report.drawing import check_plot
    from fedmate.report.plots import PartitionPlot
    from fedmate.storage import check_new, write_for_user

    if plot is not None:
        check_plot(plot)
        check_new(plot)
    base, inputs = None if experiment is None else load_file(experiment), UserInputs(folder=data_dir)
    (chosen,) = compose(Request(base, (), dataset, read_settings(set_, skip_bad), inputs))
    split = split_samples(chosen, inputs)
    title = f"{chosen.dataset.name}, {_describe(chosen.partition)}, seed {chosen.general.seed}"
    holdings = PartitionPlot("partition", title, split.class_counts(), split.names(), split.arrays.class_names)
    if plot is not None:
        write_for_user(plot, holdings.draw(plot.suffix))
    console = make_console()
    for note in split.arrays.notes:
        console.out(f"Note: {one_line(note)}", highlight=False)
    if holdings.counts.shape[0] <= MOST_CLIENTS and holdings.counts.shape[1] <= MOST_CLASSES:
        table = _table(holdings)
        # A line that wraps is better than a number that is cut.
        console.print(table, highlight=False, width=max(console.width, console.measure(table).minimum), crop=False)
    else:
        console.out("\n".join(map(one_line, _summary(holdings))), highlight=False)
    tested = "Test split" if split.validation is None else "Validation, of training samples that no client holds"
    lines = [f"{tested}: {len(split.test.y)} samples", f"Data set:  sha256 {split.data_sha256}"]
    lines += [f"Partition: sha256 {split.sha256}", *([f"Plot: {plot}"] if plot else [])]
    console.out("\n".join(lines), highlight=False)


def _describe(section: Section) -> str:
    """Name a partition with its first own option, and others that are not at their defaults."""
    from fedmate.core.options import options_of
    from fedmate.data.partitions import PARTITIONS, Partition

    common, options = options_of(Partition), options_of(PARTITIONS[section.name])
    own = [key for key in options if key not in common]
    shown = own[:1] + [key for key in own[1:] if section.options[key] != options[key].default]
    values = {key: section.options[key] for key in shown}
    words = ", ".join(f"{key} = {f'{v:g}' if isinstance(v, float) else v}" for key, v in values.items())
    return f"{section.name} ({words})" if words else section.name


def _table(holdings: PartitionPlot) -> Table:
    """Return a row for each client and a column for each class, with sums."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    counts = holdings.counts
    table = Table(title=Text(holdings.title), box=box.SIMPLE_HEAD, pad_edge=False, show_footer=True)
    table.add_column("client", "all", no_wrap=True)
    for name, total in zip(holdings.classes, counts.sum(0), strict=True):
        table.add_column(Text(one_line(name)), str(total), justify="right", no_wrap=True)
    table.add_column("all", str(counts.sum()), justify="right", no_wrap=True)
    for client, row in zip(holdings.clients, counts, strict=True):
        table.add_row(client, *map(str, row), str(row.sum()))
    return table


def _summary(holdings: PartitionPlot) -> list[str]:
    """Return a summary of many clients or classes."""
    import numpy as np

    counts = holdings.counts
    lines = [holdings.title, f"Clients: {counts.shape[0]}, classes: {counts.shape[1]}, samples: {counts.sum()}"]
    for name, numbers in (("Samples", counts.sum(1)), ("Classes", (counts > 0).sum(1))):
        lines.append(f"{name} of a client: {numbers.min()} to {numbers.max()}, median {np.median(numbers):g}")
    return [*lines, f"Classes without any client: {(counts.sum(0) == 0).sum()}"]

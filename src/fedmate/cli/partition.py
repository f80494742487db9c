"""`fedmate partition`: who would hold what, without any training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmate.cli.app import DataDir, Settings, SkipBad, make_console, one_line, read_settings

if TYPE_CHECKING:
    from rich.table import Table

    from fedmate.experiment.config import Experiment, Section
    from fedmate.experiment.partitioning import ClientSplit
    from fedmate.report.plots import Holdings

MOST_CLASSES, MOST_CLIENTS = 12, 40
"""Up to here a table shows everybody; beyond it sums up."""

MOST_NAMED = 10
"""Classes that are named in a line."""


def partition(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="Whose samples to deal; defaults to digits.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set.")] = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for a picture: `.svg`, `.png` or `.pdf`.")
    ] = None,
) -> None:
    """Deal the samples of an experiment and show who holds what; nothing is trained."""
    from fedmate.experiment.config import load_file
    from fedmate.experiment.partitioning import split_samples
    from fedmate.experiment.prepare import Request, compose
    from fedmate.experiment.user_inputs import UserInputs
    from fedmate.report.plots import check_picture, draw_holdings
    from fedmate.storage import check_new, write_for_user

    if plot is not None:
        check_picture(plot)
        check_new(plot)
    base = None if experiment is None else load_file(experiment)
    given = UserInputs(folder=data_dir)
    (chosen,) = compose(Request(base, (), dataset, read_settings(set_, skip_bad), given))
    dealt = split_samples(chosen, given)
    holdings = _holdings(chosen, dealt)
    if plot is not None:
        write_for_user(plot, draw_holdings(holdings, plot.suffix))
    _show(holdings, dealt)
    if plot is not None:
        make_console().out(f"Picture: {plot}", highlight=False)


def _holdings(experiment: Experiment, dealt: ClientSplit) -> Holdings:
    from fedmate.report.plots import Holdings

    title = f"{experiment.dataset.name}, {_described(experiment.partition)}, seed {experiment.general.seed}"
    return Holdings(dealt.class_counts(), dealt.names(), dealt.arrays.class_names, title)


def _described(section: Section) -> str:
    """Name a partition with its own options: the first, and others that are not as they come."""
    from fedmate.core.options import options_of
    from fedmate.data.partitions import PARTITIONS, Partition

    common, options = options_of(Partition), options_of(PARTITIONS[section.name])
    own = [key for key in options if key not in common]
    shown = own[:1] + [key for key in own[1:] if section.options[key] != options[key].default]
    values = {key: section.options[key] for key in shown}
    words = ", ".join(f"{key} = {f'{v:g}' if isinstance(v, float) else v}" for key, v in values.items())
    return f"{section.name} ({words})" if words else section.name


def _show(holdings: Holdings, dealt: ClientSplit) -> None:
    """Print notes, who holds what, and what tells this deal from others."""
    console = make_console()
    for note in dealt.arrays.notes:
        console.out(f"Note: {one_line(note)}", highlight=False)
    clients, classes = holdings.counts.shape
    if clients <= MOST_CLIENTS and classes <= MOST_CLASSES:
        table = _table(holdings)
        # A line that wraps is better than a number that is cut.
        width = max(console.width, console.measure(table).minimum)
        console.print(table, highlight=False, width=width, crop=False)
    else:
        for line in _summary(holdings):
            console.out(one_line(line), highlight=False)
    tested = "Test split" if dealt.validation is None else "Validation, of training samples that no client holds"
    console.out(f"{tested}: {len(dealt.test.y)} samples", highlight=False)
    console.out(f"Data set:  sha256 {dealt.data_sha256}", highlight=False)
    console.out(f"Partition: sha256 {dealt.sha256}", highlight=False)


def _table(holdings: Holdings) -> Table:
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


def _summary(holdings: Holdings) -> list[str]:
    """Return what can be said of many clients or classes in a few lines."""
    import numpy as np

    counts = holdings.counts
    unheld = [name for name, total in zip(holdings.classes, counts.sum(0), strict=True) if not total]
    names = ", ".join(unheld[:MOST_NAMED]) + (", ..." if len(unheld) > MOST_NAMED else "")
    lines = [holdings.title, f"Clients: {counts.shape[0]}, classes: {counts.shape[1]}, samples: {counts.sum()}"]
    for what, figures in (("Samples", counts.sum(1)), ("Classes", (counts > 0).sum(1))):
        middle = f"{np.median(figures):g}"
        lines.append(f"{what} of a client: {figures.min()} to {figures.max()}, median {middle}")
    lines.append(f"Classes that nobody holds: {len(unheld)}" + (f" ({names})" if unheld else ""))
    return lines

"""Commands that train nothing: `fedmate partition`, `data`, `list` and `cite`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize

from fedmate.cli import (
    DataDir,
    DatasetName,
    Settings,
    SkipBad,
    make_console,
    one_line,
    read_request,
    read_settings,
)
from fedmate.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedmate.data import Arrays, Dataset
    from fedmate.experiment.sections import Section
    from fedmate.report.plots import PartitionPlot

NAMED = 10
"""How many class names are printed."""

MOST_CLASSES, MOST_CLIENTS = 12, 40
"""Larger partitions are summed up instead of printed as a table."""


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[settings|training|methods|datasets|partitions|models|backends]",
            help="Table to show. [default: all]",
        ),
    ] = None,
) -> None:
    """List the names that an experiment can use, with options and defaults.

    A method is listed with the parts that it shares and keeps private, and with the numbers that cross in a round.
    """
    from fedmate.catalogue import catalogue

    for line in catalogue(kind):
        typer.echo(line)


def cite(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or comparisons, finished or not.")
    ],
) -> None:
    """Print the citations of runs, their methods and data, as BibTeX."""
    from fedmate.catalogue import bibliography

    for block in bibliography(folders):
        typer.echo(block)


def partition(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="[EXPERIMENT.toml]", help="File of an experiment; without one, the defaults are shown."),
    ] = None,
    dataset: DatasetName = None,
    set_: Settings = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for a plot: `.svg`, `.png` or `.pdf`.")
    ] = None,
) -> None:
    """Show how samples are distributed over clients."""
    from fedmate.experiment.inputs import split_samples
    from fedmate.experiment.prepare import compose
    from fedmate.report.drawing import check_plot
    from fedmate.report.plots import PartitionPlot
    from fedmate.report.tables import Table, show
    from fedmate.storage import check_new, write_for_user

    if plot is not None:
        check_plot(plot)
        check_new(plot)
    request = read_request(experiment, [], dataset, set_, skip_bad, data_dir)
    (chosen,) = compose(request)
    split = split_samples(chosen, request.inputs)
    title = f"{chosen.dataset.name}, {_name(chosen.partition)}, seed {chosen.general.seed}"
    holdings = PartitionPlot("partition", title, split.class_counts(), split.names(), split.arrays.class_names)
    if plot is not None:
        write_for_user(plot, holdings.draw(plot.suffix))
    console = make_console()
    for note in split.arrays.notes:
        console.out(f"Note: {one_line(note)}")
    if holdings.counts.shape[0] <= MOST_CLIENTS and holdings.counts.shape[1] <= MOST_CLASSES:
        rows = [*zip(holdings.clients, holdings.counts, strict=True), ("all", holdings.counts.sum(0))]
        cells = [[client, *map(str, row), str(row.sum())] for client, row in rows]
        show(Table("partition", title, ["client", *holdings.classes, "all"], cells), console)
    else:
        console.out("\n".join(map(one_line, _summary(holdings))))
    tested = "Test split" if split.validation is None else "Validation, of training samples that no client holds"
    console.out(f"{tested}: {len(split.test.y)} samples")
    console.out(f"Data set:  sha256 {split.data_sha256}\nPartition: sha256 {split.sha256}")
    if plot is not None:
        console.out(f"Plot: {plot}")


def data(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Data set. Omit to list all.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="dataset.KEY=VALUE", help="Set an option of the data set; repeatable."),
    ] = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
) -> None:
    """Download a data set, check it and describe its content. List all data sets if no name is given."""
    from fedmate.data import DATASETS, sources
    from fedmate.experiment.config import ConfigSource, resolve

    folder, console = sources.data_folder(data_dir), make_console()
    lines = _list(folder)
    if name is not None:
        base = ConfigSource("the command", {"dataset": {"name": name}})
        section = resolve([base, read_settings(set_, skip_bad)]).dataset
        dataset: Dataset = DATASETS[section.name](**section.options)
        found = _find(section.name, dataset, folder, console)
        published = {Path(file.path).name: file for file in dataset.downloads}
        checked = [path for path in found if path.name in published]
        for path in checked:
            sources.check(published[path.name], path)
        with console.status(f"reading {section.name}"):
            arrays = dataset.load(folder)
        lines = _describe(dataset, arrays, found, bool(checked))
    for line in lines:
        console.out(one_line(line))


def _name(section: Section) -> str:
    """Name a partition with its first own option, and others that are not at their defaults."""
    from fedmate.core.options import options_of
    from fedmate.data.partitions import PARTITIONS, Partition

    options = options_of(PARTITIONS[section.name])
    own = [key for key in options if key not in options_of(Partition)]
    shown = own[:1] + [key for key in own[1:] if section.options[key] != options[key].default]
    values = {key: section.options[key] for key in shown}
    words = ", ".join(f"{key} = {f'{v:g}' if isinstance(v, float) else v}" for key, v in values.items())
    return f"{section.name} ({words})" if words else section.name


def _summary(holdings: PartitionPlot) -> list[str]:
    """Return a summary of many clients or classes."""
    counts = holdings.counts
    lines = [holdings.title, f"Clients: {counts.shape[0]}, classes: {counts.shape[1]}, samples: {counts.sum()}"]
    for name, numbers in (("Samples", counts.sum(1).tolist()), ("Classes", (counts > 0).sum(1).tolist())):
        lines.append(f"{name} of a client: {min(numbers)} to {max(numbers)}, median {median(numbers):g}")
    return [*lines, f"Classes without any client: {(counts.sum(0) == 0).sum()}"]


def _find(name: str, dataset: Dataset, folder: Path, console: Console) -> list[Path]:
    """Return the files of a data set; if it is missing, download it or print how to get it."""
    from fedmate.data import sources

    try:
        return dataset.find(folder)
    except UserError:
        if dataset.instructions:
            for number, step in enumerate(dataset.instructions, 1):
                console.out(f"{number}. {step.format(folder=folder)}")
            raise UserError(
                f"`{name}` is not in `{folder}`, or not complete; follow the steps above, then repeat the command."
            ) from None
        if not dataset.downloads:
            raise
    sources.download(dataset.downloads, folder)
    return dataset.find(folder)


def _describe(dataset: Dataset, arrays: Arrays, found: Sequence[Path], is_checked: bool) -> Iterator[str]:
    names, samples = arrays.class_names, arrays.train.x
    yield _title(type(dataset))
    yield f"  training   {len(arrays.train.y):,} samples"
    yield f"  test       {f'{len(arrays.test.y):,} samples' if arrays.test else 'the samples that no client holds'}"
    yield f"  classes    {len(names)}: {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}"
    yield f"  a sample   {' x '.join(map(str, samples.shape[1:]))}, {samples.dtype}"
    if arrays.clients is not None:
        yield f"  clients    {len(set(arrays.clients.tolist()))} natural clients"
    if found:
        yield f"  place      {found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''}"
    if is_checked:
        yield "  checksum   as published"
    yield from (f"Note: {note}" for note in arrays.notes)


def _list(folder: Path) -> Iterator[str]:
    """Yield the lines that name all data sets, and say which of them are in the folder."""
    from fedmate.data import DATASETS

    yield f"data sets in {folder}:"
    for name in DATASETS.names():
        try:
            dataset = DATASETS[name]()
        except UserError as error:
            yield f"  {name:<14} {error}"
            continue
        yield f"  {name:<14} {_title(type(dataset))}"
        try:
            found = dataset.find(folder)
            yield f"      here: {found[0]}" if found else "      nothing to download"
        except (UserError, OSError):
            if dataset.downloads:
                size = filesize.decimal(sum(file.size for file in dataset.downloads))
                yield f"      not here: `fedmate data {name}` downloads it ({size})"
            elif dataset.instructions:
                yield f"      not here: `fedmate data {name}` tells how to get it"
            else:
                yield "      yours: `--set dataset.path=PATH` names it"


def _title(cls: type[Dataset]) -> str:
    return (cls.__doc__ or cls.__name__).partition("\n")[0].rstrip(".")

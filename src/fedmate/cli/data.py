"""`fedmate data`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize

from fedmate.cli.app import DataDir, SkipBad, make_console, one_line, read_settings
from fedmate.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedmate.data import Arrays, Dataset

NAMED = 10
"""How many class names are printed."""


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
        console.out(one_line(line), highlight=False)


def _find(name: str, dataset: Dataset, folder: Path, console: Console) -> list[Path]:
    """Return the files of a data set; if it is missing, download it or print how to get it."""
    from fedmate.data import sources

    try:
        return dataset.find(folder)
    except UserError:
        if dataset.instructions:
            for number, step in enumerate(dataset.instructions, 1):
                console.out(f"{number}. {step.format(folder=folder)}", highlight=False)
            raise UserError(
                f"`{name}` is not in `{folder}`, or not complete; follow the steps above, then repeat the command."
            ) from None
        if not dataset.downloads:
            raise
    sources.download(dataset.downloads, folder)
    return dataset.find(folder)


def _describe(dataset: Dataset, arrays: Arrays, found: Sequence[Path], is_checked: bool) -> Iterator[str]:
    """Yield the lines that describe the content of a data set."""
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

"""`fedmate data`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize

from fedmate.cli.app import DataDir, SkipBad, make_console
from fedmate.errors import UserError

if TYPE_CHECKING:
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
    from fedmate.data.sources import check, data_folder, download

    if name is None and (set_ or skip_bad):
        raise UserError("`--set` and `--skip-bad` are about one data set; name it.")
    folder, console = data_folder(data_dir), make_console()
    if name is None:
        lines = _list(folder)
    else:
        dataset = _choose(name, set_ or [], skip_bad)
        try:
            found = dataset.find(folder)
        except UserError:
            for number, step in enumerate(dataset.instructions, 1):
                console.out(f"{number}. {step.format(folder=folder)}", highlight=False)
            if dataset.instructions:
                raise UserError(
                    f"`{name}` is not in `{folder}`, or not complete; follow the steps above, then repeat the command."
                ) from None
            if not dataset.downloads:
                raise
            download(dataset.downloads, folder)
            found = dataset.find(folder)
        published = {Path(file.path).name: file for file in dataset.downloads}
        checked = [path for path in found if path.name in published]
        for path in checked:
            check(published[path.name], path)
        with console.status(f"reading {name}"):
            arrays = dataset.load(folder)
        lines = _describe(dataset, arrays, found, bool(checked))
    for line in lines:
        console.out(line, highlight=False)


def _choose(name: str, assignments: Sequence[str], skip_bad: bool) -> Dataset:
    """Return the data set with the options that were asked for."""
    from fedmate.core.options import options_of
    from fedmate.data import DATASETS
    from fedmate.experiment.config import ConfigSource, check_shape, lookup, nest, parse_set, resolve

    cls = lookup("dataset", DATASETS, name, "the command")
    settings = parse_set(assignments)
    check_shape(settings)
    other = next((key for key in settings.values if key != "dataset"), None)
    if other is not None:
        raise UserError(f"`--set` got `{other}`, which is not about the data set; set `dataset.key=value` here.")
    if "name" in settings.values.get("dataset", {}):
        raise UserError(f"`--set dataset.name` is given beside `{name}`; leave it out.")
    layers = [ConfigSource("the command", {"dataset": {"name": name}}), settings]
    if skip_bad:
        if "skip_bad" not in options_of(cls):
            raise UserError(f"`--skip-bad` is for files of images, which `{name}` does not have; leave it out.")
        layers.append(nest("--skip-bad", [("dataset.skip_bad", True)]))
    dataset: Dataset = cls(**resolve(layers).dataset.options)
    return dataset


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
            cls = DATASETS[name]
        except UserError as error:
            yield f"  {name:<14} {error}"
        else:
            yield f"  {name:<14} {_title(cls)}"
            yield f"      {_availability(name, cls(), folder)}"


def _availability(name: str, dataset: Dataset, folder: Path) -> str:
    from fedmate.core.options import options_of

    with suppress(UserError, OSError):
        found = dataset.find(folder)
        return f"here: {found[0]}" if found else "nothing to download"
    if dataset.downloads:
        size = filesize.decimal(sum(file.size for file in dataset.downloads))
        return f"not here: `fedmate data {name}` downloads it ({size})"
    if "path" in options_of(type(dataset)):
        return "yours: `--set dataset.path=PATH` names it"
    return f"not here: `fedmate data {name}` tells how to get it"


def _title(cls: type[Dataset]) -> str:
    return (cls.__doc__ or cls.__name__).partition("\n")[0].rstrip(".")

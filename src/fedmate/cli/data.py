"""`fedmate data`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self, final

import typer
from rich import filesize
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fedmate.cli.app import DataDir, SkipBad, make_console, status
from fedmate.errors import UserError

if TYPE_CHECKING:
    from fedmate.data import Arrays, Dataset
    from fedmate.data.sources import File, Origin

NAMED = 10
"""How many classes are named before the rest is left to the reader."""


def data(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which data set; all are listed if left out.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="dataset.KEY=VALUE", help="Set an option of the data set; repeatable."),
    ] = None,
    skip_bad: SkipBad = False,
    data_dir: DataDir = None,
) -> None:
    """Fetch a data set, check it and tell what it holds; list all without a name."""
    from fedmate.data.paths import data_folder

    if name is None and (set_ or skip_bad):
        raise UserError("`--set` and `--skip-bad` are about one data set; name it.")
    folder, console = data_folder(data_dir), make_console()
    if name is None:
        lines = _list(folder)
    else:
        dataset = _choose(name, set_ or [], skip_bad)
        found = _find(name, dataset, folder, console)
        checked = _check(_origin(name), found)
        with console.status(f"reading {name}"):
            arrays = dataset.load(folder)
        lines = _describe(name, arrays, found, checked)
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
    foreign = next((key for key in settings.values if key != "dataset"), None)
    if foreign is not None:
        raise UserError(f"`--set` got `{foreign}`, which is not about the data set; set `dataset.key=value` here.")
    if "name" in settings.values.get("dataset", {}):
        raise UserError(f"`--set dataset.name` is given beside `{name}`; leave it out.")
    layers = [ConfigSource("the command", {"dataset": {"name": name}}), settings]
    if skip_bad:
        if "skip_bad" not in options_of(cls):
            raise UserError(f"`--skip-bad` is for files of images, which `{name}` does not have; leave it out.")
        layers.append(nest("--skip-bad", [("dataset.skip_bad", True)]))
    dataset: Dataset = cls(**resolve(layers).dataset.options)
    return dataset


def _origin(name: str) -> Origin:
    from fedmate.data.sources import OFFICIAL, Origin

    return OFFICIAL.get(name, Origin(""))


def _find(name: str, dataset: Dataset, folder: Path, console: Console) -> list[Path]:
    """Return the files of a data set; what is not there is fetched, or said how to get."""
    from fedmate.data.files import FileDataset

    if not isinstance(dataset, FileDataset):
        return []
    try:
        return dataset.find(folder)
    except UserError:
        origin = _origin(name)
        if origin.steps:
            for number, step in enumerate(origin.steps, 1):
                console.out(f"{number}. {step.format(folder=folder)}", highlight=False)
            raise UserError(
                f"`{name}` is not in `{folder}`, or not all of it, and cannot be fetched without an account; do what "
                "is said above, then give the same command again."
            ) from None
        if not origin.files:
            raise
    _fetch(name, origin.files, folder, console)
    return dataset.find(folder)


def _fetch(name: str, files: Sequence[File], folder: Path, console: Console) -> None:
    from fedmate.data.download import fetch

    try:
        with _Arrivals(console) as arrivals:
            fetch(name, files, folder, arrivals.report)
    except KeyboardInterrupt as error:
        typer.echo("Stopped. What has arrived is kept: the same command goes on from there.", err=True)
        raise typer.Exit(status(error)) from None


@final
class _Arrivals:
    """Shows files that arrive: a bar for each on a terminal, a line for each anywhere else."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = _bars(console) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        (self._bars or nullcontext()).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._bars or nullcontext()).__exit__(kind, error, trace)

    def report(self, file: File, have: int, total: int | None) -> None:
        """Move a bar on, or say once what is fetched."""
        if self._bars is not None:
            if file.name not in self._tasks:
                self._tasks[file.name] = self._bars.add_task(file.name, total=total, completed=have)
            self._bars.update(self._tasks[file.name], completed=have)
        elif file.name not in self._tasks:
            self._tasks[file.name] = TaskID(0)
            size = filesize.decimal(file.size if total is None else total)
            before = f"from {filesize.decimal(have)} on, " if have else ""
            self._console.out(f"fetching {file.url} ({before}{size})", highlight=False)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def _check(origin: Origin, found: Sequence[Path]) -> list[File]:
    """Return which published files were found, or raise `UserError` if one of them is not what was published."""
    from fedmate.data.download import check

    # By the last part of the name: loaders look into other folders, too.
    published = {PurePosixPath(file.name).name: file for file in (*origin.files, *origin.others)}
    checked = [path for path in found if path.name in published]
    for path in checked:
        check(published[path.name], path)
    return [published[path.name] for path in checked]


def _describe(name: str, arrays: Arrays, found: Sequence[Path], checked: Sequence[File]) -> Iterator[str]:
    """Yield the lines that tell what a data set holds."""
    names, samples = arrays.class_names, arrays.train.x
    yield _origin(name).title or name
    yield f"  training   {len(arrays.train.y):,} samples"
    if arrays.test is None:
        yield "  test       none of its own: what no client holds"
    else:
        yield f"  test       {len(arrays.test.y):,} samples"
    yield f"  classes    {len(names)}: {', '.join(names[:NAMED])}{', ...' if len(names) > NAMED else ''}"
    yield f"  a sample   {' x '.join(map(str, samples.shape[1:]))}, {samples.dtype}"
    if arrays.clients is not None:
        yield f"  clients    {len(set(arrays.clients.tolist()))} of its own"
    if found:
        yield f"  place      {_places(found, Path())}"
    if checked:
        sources = ", ".join(dict.fromkeys(file.source for file in checked))
        yield f"  checksum   as published ({sources})"
    yield from (f"Note: {note}" for note in arrays.notes)


def _list(folder: Path) -> Iterator[str]:
    """Yield the lines that tell which data sets there are, and which of them are at hand."""
    from fedmate.data import DATASETS

    yield f"data sets in {folder}:"
    for name in DATASETS.names():
        try:
            cls = DATASETS[name]
        except UserError as error:
            yield f"  {name:<14} {error}"
        else:
            yield f"  {name:<14} {_origin(name).title or (cls.__doc__ or '').split('.')[0]}"
            yield f"      {_standing(name, cls(), folder)}"


def _standing(name: str, dataset: Dataset, folder: Path) -> str:
    """Say whether a data set is at hand, and how to get it if it is not."""
    from fedmate.data.files import FileDataset

    if isinstance(dataset, FileDataset):
        with suppress(UserError, OSError):
            return f"here: {_places(dataset.find(folder), folder)}"
    origin = _origin(name)
    if origin.files:
        size = filesize.decimal(sum(file.size for file in origin.files))
        return f"not here: `fedmate data {name}` fetches it ({size})"
    if origin.steps:
        return f"not here: `fedmate data {name}` says how to get it"
    return origin.hint or f"`fedmate data {name}` looks for it"


def _places(found: Sequence[Path], folder: Path) -> str:
    first = found[0].relative_to(folder) if found[0].is_relative_to(folder) else found[0]
    return f"{first} and {len(found) - 1} more" if len(found) > 1 else str(first)

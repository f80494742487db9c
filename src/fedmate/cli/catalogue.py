"""`fedmate list` and `fedmate cite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    from fedmate.citations import bibliography

    for block in bibliography(folders):
        typer.echo(block)

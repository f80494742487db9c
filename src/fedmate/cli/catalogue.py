"""`fedmate list`."""

from __future__ import annotations

from typing import Annotated

import typer


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[settings|training|methods|datasets|partitions|models|backends]",
            help="Which table; all of them if left out.",
        ),
    ] = None,
) -> None:
    """List what an experiment can name, with options and defaults.

    Of a method, also what it shares, what it keeps private, and how many numbers cross in a round.
    """
    from fedmate.catalogue import catalogue

    for line in catalogue(kind):
        typer.echo(line)

"""`fedmate cite`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def cite(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs or comparisons, finished or not.")
    ],
) -> None:
    """Print what to cite for runs, their methods and data, as BibTeX."""
    from fedmate.citations import bibliography

    for block in bibliography(folders):
        typer.echo(block)

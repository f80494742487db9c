"""The command itself: what all of its parts are hung on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.console import Console

from fedmate import __version__

if TYPE_CHECKING:
    from fedmate.experiment.config import ConfigSource

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where data sets lie. [default: $FEDMATE_DATA, or your cache]"),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read: `dataset.skip_bad=true`.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override `key` or `section.key`; repeatable."),
]


class Terminated(KeyboardInterrupt):
    """The system asks the process to end, as a scheduler does when time is up: what Ctrl-C saves is saved then, too.

    Args:
        status: the exit status that says so.
    """

    def __init__(self, status: int) -> None:
        """Remember how to end."""
        super().__init__()
        self.status = status


def status(stopped: KeyboardInterrupt) -> int:
    """Return the exit status of a command that was stopped."""
    return stopped.status if isinstance(stopped, Terminated) else 130


def say_stopped(stopped: KeyboardInterrupt) -> int:
    """Say that a command was stopped, and return its exit status."""
    typer.echo("Stopped.", err=True)
    return status(stopped)


class _Group(typer.core.TyperGroup):
    """The commands; one that is stopped says so, where typer would end silently and with the status of Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run one of them."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(say_stopped(error)) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Personalised federated learning: FedMate and the methods it is compared with.",
)


class Command(typer.core.TyperCommand):
    """A command whose help shows `[required]` as it is: typer escapes the bracket although nobody unescapes it."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return super().get_help(ctx).replace("\\[", "[")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedmate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Carry the options of the command itself."""


def read_settings(assignments: list[str] | None, skip_bad: bool) -> ConfigSource:
    """Return what `--set` and `--skip-bad` say."""
    from fedmate.experiment.config import ConfigSource, nest, parse_set

    given = parse_set(assignments or [])
    if not skip_bad:
        return given
    if not assignments:
        return nest("--skip-bad", [("dataset.skip_bad", True)])
    section = given.values.get("dataset", {})
    # What is no section is refused where sections are read.
    more = {**section, "skip_bad": True} if isinstance(section, dict) else section
    return ConfigSource(given.source, {**given.values, "dataset": more})


def make_console() -> Console:
    """Return a console that does not squeeze tables when nobody looks at it."""
    return Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 140)


def one_line(sentence: str) -> str:
    """Escape line breaks and control characters that came with the user's own words."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

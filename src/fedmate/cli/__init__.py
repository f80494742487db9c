"""The command `fedmate` and what its parts share. A part is imported when it is asked for, torch when it needs it."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.console import Console

from fedmate import __version__
from fedmate.errors import DivergedError, FedmateError, UserError, nearest

if TYPE_CHECKING:
    from fedmate.experiment.config import ConfigSource
    from fedmate.experiment.prepare import Request

COMMANDS = {
    "run": "run:run",
    "partition": "data:partition",
    "data": "data:data",
    "export": "models:export",
    "predict": "models:predict",
    "adapt": "models:adapt",
    "cite": "data:cite",
    "compare": "compare:compare",
    "track": "run:track",
    "tune": "tune:tune",
    "deploy": "deploy:deploy",
    "list": "data:list_",
}
"""Each command's function, in the order of the help."""

DatasetName = Annotated[str | None, typer.Option(metavar="D", help="Data set. [default: the file's, or digits]")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Folder of data sets. [default: $FEDMATE_DATA, or your cache]"),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read: `dataset.skip_bad=true`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override `key` or `section.key`; repeatable."),
]


def status(stopped: KeyboardInterrupt) -> int:
    """Return the exit status of a command that was stopped, by Ctrl-C or by the signal that the exception carries."""
    return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)


class Command(typer.core.TyperCommand):
    """A command whose help shows `[required]` as it is: typer escapes the bracket."""

    def get_help(self, ctx: Any) -> str:
        """Return the help."""
        return super().get_help(ctx).replace("\\[", "[")


class _Commands(typer.core.TyperGroup):
    """Imports the commands one by one; one that is stopped says so, where typer would end silently."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Import a command."""
        if name not in COMMANDS:
            ctx.fail(f"No such command '{name}'; {nearest(name, COMMANDS)}")
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(f"fedmate.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name, cls=Command)(found)
            found = alone
        return typer.main.get_command(found)

    def invoke(self, ctx: Any) -> Any:
        """Run one of them."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo("Stopped.", err=True)
            raise typer.Exit(status(error)) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Personalised federated learning: FedMate and the methods it is compared with.",
)


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


def main() -> None:
    """Run the command; a mistake of the user is one sentence and status 2, divergence status 3."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # A signal that is ignored stays ignored.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)
    try:
        app()
    except OSError as error:
        typer.echo(f"Error: {one_line(str(error))}.", err=True)
        sys.exit(1)
    except FedmateError as error:
        sentence = error.spelled(lambda name: f"--{name}") if isinstance(error, UserError) else str(error)
        typer.echo(f"Error: {one_line(sentence)}", err=True)
        sys.exit(3 if isinstance(error, DivergedError) else 2)


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    # As a scheduler asks when time is up: what Ctrl-C saves is saved then, too.
    raise KeyboardInterrupt(signal_number)


def read_settings(assignments: list[str] | None, skip_bad: bool) -> ConfigSource:
    """Return what `--set` and `--skip-bad` say."""
    from fedmate.experiment.config import parse_set

    return parse_set([*(assignments or []), *["dataset.skip_bad=true"] * skip_bad])


def read_request(
    experiment: Path | None,
    methods: list[str],
    dataset: str | None,
    assignments: list[str] | None,
    skip_bad: bool,
    data_dir: Path | None,
) -> Request:
    """Return what the arguments ask for that several commands share."""
    from fedmate.experiment.config import load_file
    from fedmate.experiment.inputs import UserInputs
    from fedmate.experiment.prepare import Request

    base = None if experiment is None else load_file(experiment)
    return Request(base, methods, dataset, read_settings(assignments, skip_bad), UserInputs(folder=data_dir))


def make_console() -> Console:
    """Return a console that colours no words, and does not squeeze tables that go to a file."""
    return Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 140, highlight=False)


def one_line(sentence: str) -> str:
    """Escape line breaks and control characters that came with the user's own words."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

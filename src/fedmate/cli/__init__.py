"""The command `fedmate`. It imports torch only when a command needs it, so that help is quick."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer

from fedmate.cli import catalogue, cite, compare, data, deploy, models, partition, run, tune
from fedmate.cli.app import Command, Terminated, app, one_line, say_stopped
from fedmate.errors import DivergedError, FedmateError

# The order of the help.
app.command()(run.run)
app.command()(partition.partition)
app.command()(data.data)
app.command(cls=Command)(models.export)
app.command(cls=Command)(models.predict)
app.command(cls=Command)(models.adapt)
app.command(cls=Command)(cite.cite)
app.command(cls=Command)(compare.compare)
app.command(cls=Command)(tune.tune)
app.add_typer(deploy.deploy, name="deploy")
app.command("list")(catalogue.list_)


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + signal_number)


def _listen() -> None:
    """Let a request to end, and a terminal that goes away, save the run; one that is ignored stays ignored."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def main() -> None:
    """Run the command; a mistake of the user is one sentence and status 2, divergence status 3."""
    _listen()
    try:
        app()
    except OSError as error:
        typer.echo(f"Error: {one_line(str(error))}.", err=True)
        sys.exit(1)
    except KeyboardInterrupt as error:
        sys.exit(say_stopped(error))
    except FedmateError as error:
        typer.echo(f"Error: {one_line(str(error))}", err=True)
        sys.exit(3 if isinstance(error, DivergedError) else 2)

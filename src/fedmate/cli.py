"""The command `fedmate`. It imports torch only when a command needs it, so that help is quick."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
from rich.console import Console

from fedmate import __version__
from fedmate.errors import DivergedError, FedmateError, UserError

if TYPE_CHECKING:
    from fedmate.experiment.jobs import Job


class _Group(typer.core.TyperGroup):
    """The commands; one that is stopped says so, where typer would end silently and with the status of Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run one of them."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(_say_stopped(error)) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Personalised federated learning: FedMate and the methods it is compared with.",
)


class _Command(typer.core.TyperCommand):
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


@app.command()
def run(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="What to run; defaults to FedRep on digits.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="M", help="Method; give it several times to compare.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(metavar="D", help="Data set.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override `key` or `section.key`; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the record; it must not exist. [default: runs/...]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Continue the interrupted run or comparison in this folder.")
    ] = None,
) -> None:
    """Run an experiment, or compare methods, and keep the record."""
    from fedmate.experiment.compose import Request
    from fedmate.experiment.config import load_file, parse_set
    from fedmate.experiment.jobs import resumed, started

    base = None if experiment is None else load_file(experiment)
    request = Request(base, method or [], dataset, parse_set(set_ or []))
    if resume is not None:
        if out is not None:
            raise UserError("`--out` begins a new run and `--resume` goes on with an old one; give one of them.")
        with resumed(request, resume) as jobs:
            _run_all(jobs, resume)
    else:
        with started(request, out) as jobs:
            _run_all(jobs, jobs[0].folder if len(jobs) == 1 else jobs[0].folder.parent)


@app.command(cls=_Command)
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="New file for the model: `.safetensors` or `.pt2`.")],
    client: Annotated[int | None, typer.Option(metavar="N", help="The model of this client.")] = None,
    global_: Annotated[bool, typer.Option("--global", help="The aggregated model instead.")] = False,
) -> None:
    """Take one model out of a run, to be used without it."""
    from fedmate.experiment.export import export_model
    from fedmate.experiment.portable import check_target

    if (client is None) != global_:
        raise UserError("`--client` and `--global` choose the model; give exactly one of them.")
    check_target(to)
    model = export_model(folder, client)
    model.save(to)
    who = "the global model" if client is None else f"the model of client {client}"
    typer.echo(f"{to}: {who} of {folder} after round {model.origin['round']}")


@app.command(cls=_Command)
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What `fedmate export` wrote.")],
    samples: Annotated[Path, typer.Argument(metavar="INPUT", help="Raw samples: `.npy`, `.npz` or `.csv`.")],
    to: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="New file for the answers.")] = None,
) -> None:
    """Tell the class of each sample and how probable it is, as CSV."""
    from fedmate.experiment.portable import check_new, load_model, write_for_user

    if to is not None:
        if to.suffix != ".csv":
            raise UserError(f"`--to` is `{to}`, but the answers are CSV; name the file `.csv`.")
        check_new(to)
    answers = load_model(model).predict(samples).to_csv()
    if to is None:
        typer.echo(answers, nl=False)
    else:
        write_for_user(to, answers.encode())


@app.command(cls=_Command)
def adapt(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="A new client's raw samples: `.npz` (`train_x`, `train_y`) or `.csv` (column `label`)."
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for its model: `.safetensors` or `.pt2`.")
    ] = None,
) -> None:
    """Let a new client make a run's model its own, and test it."""
    from fedmate.experiment.adapt import adapt
    from fedmate.report.tables import adapted, samples_by_class

    newcomer, console = adapt(folder, data, to), _console()
    for note in newcomer.notes:
        console.out(f"Note: {note}", highlight=False)
    origin = newcomer.model.origin
    what = f"{origin['method']} on {origin['dataset']}, after round {origin['round']}"
    console.out(f"A newcomer to {what}:", highlight=False)
    for table in (adapted(newcomer.accuracy), samples_by_class(newcomer.samples)):
        console.print(table, highlight=False)
    if to is not None:
        console.out(f"Model: {to}", highlight=False)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[settings|training|methods|datasets|partitions|models|backends]",
            help="Which table; all of them if left out.",
        ),
    ] = None,
) -> None:
    """List what an experiment can name, with options and defaults."""
    from fedmate.catalogue import catalogue

    for line in catalogue(kind):
        typer.echo(line)


def _console() -> Console:
    """Return a console that does not squeeze tables when nobody looks at it."""
    return Console(width=None if sys.stdout is not None and sys.stdout.isatty() else 140)


def _run_all(jobs: list[Job], folder: Path) -> None:
    """Run what is not finished, and print one table of all."""
    from fedmate.experiment.jobs import run_jobs
    from fedmate.experiment.record import Record
    from fedmate.progress import Display

    console = _console()
    for job in jobs:
        if job.built is None:
            diverged_in = Record(job.folder).summary.get("diverged_in_round")
            how = "" if diverged_in is None else f" (it diverged in round {diverged_in})"
            console.out(f"{job.folder} is finished already{how}: nothing to do.", highlight=False)
    with Display(console) as display:
        display.notes(note for job in jobs for note in job.notes)
        try:
            diverged = run_jobs(jobs, display.observer)
        except (KeyboardInterrupt, OSError) as error:
            stopped: KeyboardInterrupt | OSError | None = error
        else:
            stopped = None
    gone = next((job.folder for job in jobs if not job.folder.exists()), None)
    if gone is not None:
        raise UserError(
            f"`{gone}` is gone: it was moved or deleted while it was being run; if you moved it, continue with "
            "`fedmate run --resume` and its new place."
        )
    _print_results(console, [job.folder for job in jobs])
    if stopped is not None:
        raise _say_how_to_continue(stopped, jobs, folder)
    if diverged:
        raise DivergedError(" ".join(diverged))


def _say_how_to_continue(stopped: KeyboardInterrupt | OSError, jobs: list[Job], folder: Path) -> typer.Exit:
    """Tell what is saved, as the disk has it now, and return the exit status."""
    from fedmate.experiment.checkpoint import Checkpoint
    from fedmate.experiment.record import Record

    job = next((job for job in jobs if not Record(job.folder).finished), jobs[-1])
    done, of = Checkpoint(job.folder).standing.round, Record(job.folder).config["rounds"]
    reason = "Stopped" if isinstance(stopped, KeyboardInterrupt) else f"Error: {_one_line(str(stopped))}"
    command = f"fedmate run --resume {shlex.quote(str(folder))}"
    typer.echo(f"{reason}. {job.folder} is saved after round {done} of {of}. Continue with: {command}", err=True)
    return typer.Exit(_status(stopped) if isinstance(stopped, KeyboardInterrupt) else 1)


def _print_results(console: Console, folders: list[Path]) -> None:
    from fedmate.experiment.record import Record
    from fedmate.report.tables import comparison, newcomers

    summaries = [record.summary for record in map(Record, folders) if record.finished]
    ended = [summary for summary in summaries if summary.get("diverged_in_round") is None]
    if not ended:
        return
    for table in (comparison(ended), newcomers(ended)):
        if table is not None:
            # A line that wraps is better than a number that is cut.
            width = max(console.width, console.measure(table).minimum)
            console.print(table, highlight=False, width=width, crop=False)
    console.out(f"Records: {', '.join(map(str, folders))}", highlight=False)


class Terminated(KeyboardInterrupt):
    """The system asks the process to end, as a scheduler does when time is up: what Ctrl-C saves is saved then, too.

    Args:
        status: the exit status that says so.
    """

    def __init__(self, status: int) -> None:
        """Remember how to end."""
        super().__init__()
        self.status = status


def _status(stopped: KeyboardInterrupt) -> int:
    return stopped.status if isinstance(stopped, Terminated) else 130


def _say_stopped(stopped: KeyboardInterrupt) -> int:
    typer.echo("Stopped.", err=True)
    return _status(stopped)


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
        typer.echo(f"Error: {_one_line(str(error))}.", err=True)
        sys.exit(1)
    except KeyboardInterrupt as error:
        sys.exit(_say_stopped(error))
    except FedmateError as error:
        typer.echo(f"Error: {_one_line(str(error))}", err=True)
        sys.exit(3 if isinstance(error, DivergedError) else 2)


def _one_line(sentence: str) -> str:
    """Escape line breaks and control characters that came with the user's own words."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

"""`fedmate export`, `predict` and `adapt`: models that leave, and clients that arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmate.cli.app import make_console, one_line
from fedmate.errors import UserError


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="New file for the model: `.safetensors` or `.pt2`.")],
    client: Annotated[int | None, typer.Option(metavar="N", help="The model of this client.")] = None,
    global_: Annotated[bool, typer.Option("--global", help="The aggregated model instead.")] = False,
) -> None:
    """Take one model out of a run, to be used without it."""
    from fedmate.experiment.export import export_model
    from fedmate.experiment.predict import check_target

    if (client is None) != global_:
        raise UserError("`--client` and `--global` choose the model; give exactly one of them.")
    check_target(to)
    model = export_model(folder, client)
    model.save(to)
    who = "the global model" if client is None else f"the model of client {client}"
    typer.echo(f"{to}: {who} of {folder} after round {model.origin['round']}")


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What `fedmate export` wrote.")],
    samples: Annotated[Path, typer.Argument(metavar="INPUT", help="Raw samples: `.npy`, `.npz` or `.csv`.")],
    to: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="New file for the answers.")] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="PRIOR",
            help="How likely classes are, for a calibrated model: `own`, `uniform`, `estimated` from INPUT, or numbers "
            "with commas, in the order of classes. [default: `own` for a client's model, else `uniform`]",
        ),
    ] = None,
) -> None:
    """Tell the class of each sample and how probable it is, as CSV."""
    from fedmate.experiment.predict import load_model
    from fedmate.storage import check_new, write_for_user

    if to is not None:
        if to.suffix != ".csv":
            raise UserError(f"`--to` is `{to}`, but the answers are CSV; name the file `.csv`.")
        check_new(to)
    answers = load_model(model).predict(samples, prior)
    for note in answers.notes:
        # Beside the answers, which may be on their way into another program.
        typer.echo(f"Note: {one_line(note)}", err=True)
    if to is None:
        typer.echo(answers.to_csv(), nl=False)
    else:
        write_for_user(to, answers.to_csv().encode())


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

    newcomer, console = adapt(folder, data, to), make_console()
    for note in newcomer.notes:
        console.out(f"Note: {note}", highlight=False)
    origin = newcomer.model.origin
    what = f"{origin['method']} on {origin['dataset']}, after round {origin['round']}"
    console.out(f"A newcomer to {what}:", highlight=False)
    for table in (adapted(newcomer.accuracy), samples_by_class(newcomer.samples)):
        console.print(table, highlight=False)
    if to is not None:
        console.out(f"Model: {to}", highlight=False)

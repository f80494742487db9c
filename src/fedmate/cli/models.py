"""`fedmate export`, `predict` and `adapt`: exported models and unseen clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmate.cli import make_console, one_line
from fedmate.errors import UserError


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="New file for the model: `.safetensors` or `.pt2`.")],
    client: Annotated[int | None, typer.Option(metavar="N", help="The model of this client.")] = None,
    global_: Annotated[bool, typer.Option("--global", help="The aggregated model instead.")] = False,
) -> None:
    """Export one model of a run."""
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
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A `.safetensors` file that `fedmate export` wrote.")],
    samples: Annotated[Path, typer.Argument(metavar="INPUT", help="Raw samples: `.npy`, `.npz` or `.csv`.")],
    to: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="New file for the predictions.")] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="PRIOR",
            help="Class shares, for a calibrated model: `own`, `uniform`, `estimated` (from INPUT), or numbers with "
            "commas, in the order of classes. [default: `own` for a client's model, else `uniform`]",
        ),
    ] = None,
) -> None:
    """Predict the class of each sample, with its probability, as CSV."""
    from fedmate.experiment.predict import load_model
    from fedmate.storage import check_new, write_for_user

    if to is not None:
        if to.suffix != ".csv":
            raise UserError(f"`--to` is `{to}`, but predictions are CSV; name the file `.csv`.")
        check_new(to)
    predictions = load_model(model).predict(samples, prior)
    for note in predictions.notes:
        # Not on standard output, which may be piped.
        typer.echo(f"Note: {one_line(note)}", err=True)
    if to is None:
        typer.echo(predictions.to_csv(), nl=False)
    else:
        write_for_user(to, predictions.to_csv().encode())


def adapt(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="An unseen client's raw samples: `.npz` (`train_x`, `train_y`) or `.csv` (column `label`).",
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for its model: `.safetensors` or `.pt2`.")
    ] = None,
) -> None:
    """Let an unseen client adapt a run's model, and test it before and after."""
    from fedmate.experiment.export import adapt
    from fedmate.report.tables import adapted, samples_by_class, show

    found, console = adapt(folder, data, to=to), make_console()
    for note in found.notes:
        console.out(f"Note: {note}", highlight=False)
    origin = found.model.origin
    console.out(
        f"Unseen client, {origin['method']} on {origin['dataset']}, after round {origin['round']}:", highlight=False
    )
    for table in (adapted(found.accuracy), samples_by_class(found.samples)):
        show(table, console)
    if to is not None:
        console.out(f"Model: {to}", highlight=False)

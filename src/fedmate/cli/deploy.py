"""`fedmate deploy`: keys for a federation, whether a site is ready, and how far things have come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmate.cli import Command, one_line
from fedmate.errors import UserError
from fedmate.flower import need_flower

deploy = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Put a federation on machines of its own: keys, checks, status; see docs/deploy.md.",
)


@deploy.command(cls=Command)
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for keys; existing ones stay.")],
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name or an address by which sites reach the server; repeatable."),
    ] = None,
    sites: Annotated[str, typer.Option(metavar="N", help="The number of sites, or their names: `berlin,essen`.")] = "",
    days: Annotated[
        int, typer.Option(metavar="N", min=1, max=3650, help="How long the server's certificate is valid.")
    ] = 397,
) -> None:
    """Make the certificate of a server and the keys of sites; add to them later."""
    if not server and not sites:
        raise UserError("`fedmate deploy keys` makes nothing yet; give `--server`, `--sites` or both.")
    need_flower()
    from fedmate.flower.deploy import make_keys, site_names

    items = make_keys(folder, server or [], site_names(sites) if sites else [], days)
    wide = max(len(str(item.path)) for item in items)
    for item in items:
        typer.echo(f"{'made ' if item.is_new else 'there'} {item.path!s:<{wide}}  {item.place}")
    for item in items:
        if item.is_new and item.path.suffix == ".pub":
            typer.echo(f"Register with: flwr supernode register {item.path} deploy")


@deploy.command(cls=Command)
def check(
    site: Annotated[Path | None, typer.Argument(metavar="[SITE.toml]", help="The file of a site.")] = None,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Whether this SuperLink can be reached.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority's `ca.crt`. [default: those of the system]")
    ] = None,
    experiment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The experiment that the site's data has to fit.")
    ] = None,
) -> None:
    """Look whether a site is ready, before a SuperNode is started; status 2 if it is not."""
    need_flower()
    from fedmate.flower.deploy import check

    if site is None and superlink is None:
        raise UserError("`fedmate deploy check` has nothing to look at; give a site's file, `--superlink` or both.")
    if site is None and experiment is not None:
        raise UserError("`--experiment` is compared with a site's data; give the site's file, too.")
    if superlink is None and root_certificates is not None:
        raise UserError("`--root-certificates` is for a connection; give `--superlink`, too.")
    is_fine = True
    for point in check(site, superlink, root_certificates, experiment):
        typer.echo(one_line(f"{'ok  ' if point.is_fine else 'FAIL'} {point.name:<9}  {point.text}"))
        is_fine &= point.is_fine
    raise typer.Exit(0 if is_fine else 2)


@deploy.command(cls=Command)
def status(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="A site's SITE.toml or `state` folder, or a run's folder. [default: $FEDMATE_STATE]",
        ),
    ] = None,
) -> None:
    """Show how far a site or a server has come; nothing is changed."""
    need_flower()
    from fedmate.flower.deploy import status
    from fedmate.flower.node import default_state
    from fedmate.flower.site_data import read_site

    place = default_state() if folder is None else read_site(folder).state if folder.is_file() else folder
    for line in status(place):
        typer.echo(one_line(line))

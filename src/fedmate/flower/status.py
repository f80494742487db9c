"""How far a site or a server has come, read from its folder; nothing is written, and nobody is disturbed."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fedmate.core.serialise import DamagedError, unpack
from fedmate.errors import UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.record import Record, whole_lines
from fedmate.flower.client import moment
from fedmate.flower.client_state import AUDIT


class SiteStatus(NamedTuple):
    """One client in one experiment, as its site knows it.

    Attributes:
        experiment: what tells the experiment from others.
        partition: the client's number.
        round: the last round it has taken part in, from 1; 0 before the first.
        when: when that was, as the log has it.
        sent: bytes that left the site, all rounds together.
        damage: what is wrong with what it keeps, if something is.
    """

    experiment: str
    partition: int
    round: int
    when: str
    sent: int
    damage: str = ""


class ClientStatus(NamedTuple):
    """One client, as the server knows it.

    Attributes:
        client: its number.
        asked: in how many rounds it was asked.
        answered: in how many of these its answer counted.
        last: the last round of these, from 1; 0 if there is none.
    """

    client: int
    asked: int
    answered: int
    last: int


class ServerStatus(NamedTuple):
    """A run, as its server knows it.

    Attributes:
        round: how many rounds are done.
        rounds: how many there are to be.
        when: when the last one was, in UTC, as sites' logs have it.
        is_finished: whether the run came to its end.
        clients: those that were asked.
    """

    round: int
    rounds: int
    when: str
    is_finished: bool
    clients: list[ClientStatus]


def is_run(folder: Path) -> bool:
    """Tell whether a folder is that of a run."""
    return (folder / "config.toml").is_file()


# -------------------- a site


def site_status(folder: Path) -> list[SiteStatus]:
    """Return what a site's folder for states tells, the latest experiment last, or raise `UserError`."""
    if not folder.is_dir():
        raise UserError(f"`{folder}` is no folder; give a site's `state` folder, or that of a run.")
    places = [place for place in folder.glob("*/*") if place.name.isdecimal() and _of_client(place)]
    if not places:
        raise UserError(
            f"`{folder}` holds nothing of a site and nothing of a run; a site's `state` folder does, once it was asked."
        )
    return [_site(place) for place in sorted(places, key=lambda place: (_changed(place), place))]


def _of_client(place: Path) -> bool:
    return any((place / name).is_file() for name in ("state.safetensors", "audit.csv", "lock"))


def _changed(place: Path) -> float:
    return max((path.stat().st_mtime for path in place.glob("*.[sc]*")), default=0.0)


def _site(place: Path) -> SiteStatus:
    entries = list(_audit(place / "audit.csv"))
    damage, last = "", 0
    try:
        content = (place / "state.safetensors").read_bytes()
        last = int(unpack(content)[1]["round"]) + 1
    except FileNotFoundError:
        pass
    except OSError as error:
        damage = f"its state cannot be read ({error.strerror})"
    except (DamagedError, KeyError, TypeError, ValueError) as error:
        damage = f"its state is damaged ({error})"
    when = entries[-1][0] if entries else ""
    return SiteStatus(place.parent.name, int(place.name), last, when, sum(size for _, size in entries), damage)


def _audit(path: Path) -> Iterator[tuple[str, int]]:
    """Yield when something left the site, and how much; a line that a kill has torn is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for row in csv.DictReader(whole_lines(text), fieldnames=AUDIT):
        if row["when"] != AUDIT[0]:
            with suppress(TypeError, ValueError):
                yield row["when"], int(row["bytes"])


# -------------------- a server


def server_status(folder: Path) -> ServerStatus:
    """Return what a run's folder tells, or raise `UserError`."""
    record, standing = Record(folder), Checkpoint(folder).state
    rows = [row for row in record.rounds if int(row["round"]) <= standing.round]
    clients = sorted({int(row["client"]) for row in rows})
    manifest = folder / "checkpoint" / "checkpoint.json"
    return ServerStatus(
        round=standing.round,
        rounds=int(record.config["rounds"]),
        when=moment(manifest.stat().st_mtime),
        is_finished=record.finished,
        clients=[_client(client, [row for row in rows if int(row["client"]) == client]) for client in clients],
    )


def _client(client: int, rows: list[dict[str, object]]) -> ClientStatus:
    counted = [int(str(row["round"])) for row in rows if int(str(row["valid"]))]
    return ClientStatus(client, len(rows), len(counted), max(counted, default=0))

"""How far a site or a server has come, read from its folder; nothing is written."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fedmate.core.serialise import DamagedError, unpack
from fedmate.errors import UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.record import Record, whole_lines
from fedmate.flower.client_state import AUDIT, COLUMNS, STATE, utc


def status(folder: Path) -> Iterator[str]:
    """Return lines about a run's folder, or about a site's folder for states; raise `UserError` if it is neither."""
    return _run(folder) if (folder / "config.toml").is_file() else _site(folder)


def _site(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        raise UserError(f"`{folder}` is no folder; give a site's `state` folder, or that of a run.")
    clients = [place for place in folder.glob("*/*") if any((place / name).is_file() for name in (STATE, AUDIT))]
    if not clients:
        raise UserError(f"`{folder}` is neither a run nor the `state` folder of a site that has taken part in one.")
    for place in sorted(clients, key=lambda place: (place.stat().st_mtime, place)):
        yield from _client(place)


def _client(place: Path) -> Iterator[str]:
    entries = list(_audit(place / AUDIT))
    done, damage = "no round done", ""
    with suppress(FileNotFoundError):
        try:
            last = int(unpack((place / STATE).read_bytes())[1]["round"]) + 1
            done = f"round {last} done, {entries[-1][0] if entries else 'at an unknown time'}"
        except OSError as error:
            damage = f"  its state cannot be read ({error.strerror})"
        except (DamagedError, KeyError, TypeError, ValueError) as error:
            damage = f"  its state is damaged ({error})"
    sent = sum(size for _, size in entries)
    yield f"experiment {place.parent.name}, client {place.name}: {done}; {sent:,} bytes sent in all"
    if damage:
        yield damage


def _audit(path: Path) -> Iterator[tuple[str, int]]:
    """Yield time and bytes of each line of the audit log, without a line that a kill has torn."""
    if path.is_file():
        for row in csv.DictReader(whole_lines(path.read_text(encoding="utf-8")), fieldnames=COLUMNS):
            with suppress(TypeError, ValueError):
                yield row["when"], int(row["bytes"])


def _run(folder: Path) -> Iterator[str]:
    record, done = Record(folder), Checkpoint(folder).state.round
    changed = (folder / "checkpoint" / "checkpoint.json").stat().st_mtime
    end = ", finished" if record.finished else ""
    yield f"{folder}: round {done} of {record.config['rounds']} done, {utc(changed)}{end}"
    asked: dict[int, list[int]] = {}
    for row in record.rounds:
        if int(row["round"]) <= done:
            rounds = asked.setdefault(int(row["client"]), [])
            # Zero stands for a round that it was left out of.
            rounds.append(int(row["round"]) * int(row["valid"]))
    for client, rounds in sorted(asked.items()):
        last = f"last answered in round {max(rounds)}" if any(rounds) else "has not answered"
        missed = f"; left out {rounds.count(0)} of {len(rounds)} times" if 0 in rounds else ""
        yield f"  client {client}: {last}{missed}"

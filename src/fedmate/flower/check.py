"""`fedmate deploy check` and `status`: whether a site is ready, and how far a site or a server has come."""

from __future__ import annotations

import csv
import datetime
import http.client
import itertools
import os
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from fedmate.core.tree import DamagedError, unpack
from fedmate.errors import FedmateError, UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import load_file, resolve
from fedmate.experiment.record import Record, whole_lines
from fedmate.flower.client_state import AUDIT, COLUMNS, STATE, utc
from fedmate.flower.site_data import load_data, read_site

TIMEOUT = 10.0
"""Seconds to wait for a SuperLink."""

MOST_AHEAD, MOST_BEHIND = 5.0, 300.0
"""Seconds by which a site's clock may be off: a SuperLink refuses signatures from the future, and old ones."""


class Point(NamedTuple):
    """One thing that has to be in order: its name, whether it is, and how it is."""

    name: str
    is_fine: bool
    text: str


def check(
    site: Path | None, superlink: str | None, root_certificates: Path | None, experiment: Path | None
) -> Iterator[Point]:
    """Yield the points that can be looked at: of a SuperLink at `HOST:PORT`, and of a site's file."""
    if superlink is not None:
        yield from _superlink(superlink, root_certificates)
    if site is None:
        return
    name = "site"
    try:
        file = read_site(site)
        yield Point("site", True, f"`{site}` says that `{file.loader.name}` reads its data")
        name = "state"
        nearest = next(place for place in (file.state, *file.state.parents) if place.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"`{file.state}` cannot be written to; choose another folder for `state`.")
        is_there = "exists" if nearest == file.state else "will be made"
        yield Point("state", True, f"`{file.state}` {is_there}, for the site's private state")
        name = "data"
        if experiment is not None:
            asked = resolve([load_file(experiment)])
            train, test = (data.y.tolist() for data in load_data(file, asked, keep=False))
            held, classes = len({*train}), len(asked.dataset.options["classes"])
            samples = f"{len(train):,} training and {len(test):,} test samples"
            yield Point("data", True, f"{samples}, of {held} of the experiment's {classes} classes")
    except FedmateError as error:
        yield Point(name, False, str(error))
    except OSError as error:
        yield Point(name, False, f"`{error.filename}` cannot be read ({error.strerror})")


def _superlink(superlink: str, root_certificates: Path | None) -> Iterator[Point]:
    host, _, port = superlink.rpartition(":")
    try:
        trusted = ssl.create_default_context(cafile=root_certificates)
        connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=TIMEOUT, context=trusted)
        with closing(connection):
            connection.request("GET", "/health")
            valid_until = str((connection.sock.getpeercert() or {})["notAfter"])
            date = connection.getresponse().headers["date"]
    except ssl.SSLCertVerificationError as error:
        hint = "is `--root-certificates` the server's `ca.crt`, and did `deploy keys --server` name this address?"
        yield Point("superlink", False, f"the certificate of `{superlink}` is refused ({error.verify_message}): {hint}")
        return
    except (OSError, ValueError, http.client.HTTPException) as error:
        text = f"`{superlink}` is not reached ({error}): are address and `ca.crt` right, and is its port open?"
        yield Point("superlink", False, text)
        return
    until = datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(valid_until), datetime.UTC)
    text = f"`{superlink}` is reached over TLS; its certificate is valid until {until:%Y-%m-%d}"
    yield Point("superlink", True, text)
    if date is not None:
        behind = (parsedate_to_datetime(date) - datetime.datetime.now(datetime.UTC)).total_seconds()
        is_fine = -MOST_AHEAD < behind < MOST_BEHIND
        advice = "" if is_fine else "; it would refuse this site's signatures, so set the clock right"
        text = f"this machine's clock is {abs(behind):.0f} s {'behind' if behind > 0 else 'ahead of'} the SuperLink's"
        yield Point("clock", is_fine, text + advice)


# -------------------- status


def status(folder: Path) -> Iterator[str]:
    """Return lines about a run's folder, or about a site's folder for states; raise `UserError` if it is neither."""
    if (folder / "config.toml").is_file():
        return _run(folder)
    clients = [place for place in folder.glob("*/*") if any((place / name).is_file() for name in (STATE, AUDIT))]
    if not clients:
        raise UserError(f"`{folder}` is neither a run nor the `state` folder of a site that has taken part in one.")
    return itertools.chain(*map(_client, sorted(clients, key=lambda place: (place.stat().st_mtime, place))))


def _client(place: Path) -> Iterator[str]:
    sent, when, done, damage = 0, "at an unknown time", "no round done", ""
    with suppress(FileNotFoundError):
        for row in csv.DictReader(whole_lines((place / AUDIT).read_text(encoding="utf-8")), fieldnames=COLUMNS):
            # The first line has names, and a line that a kill has torn is none.
            with suppress(TypeError, ValueError):
                sent, when = sent + int(row["bytes"]), row["when"]
    try:
        done = f"round {int(unpack((place / STATE).read_bytes())[1]['round']) + 1} done, {when}"
    except (OSError, DamagedError, KeyError, TypeError, ValueError) as error:
        damage = "" if isinstance(error, FileNotFoundError) else f"  its state is damaged ({error})"
    yield f"experiment {place.parent.name}, client {place.name}: {done}; {sent:,} bytes sent in all"
    if damage:
        yield damage


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

"""Whether a site is ready: point by point, before its SuperNode is started."""

from __future__ import annotations

import datetime
import http.client
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from fedmate.errors import FedmateError, UserError
from fedmate.experiment.config import load_file, resolve
from fedmate.flower.site_data import SiteFile, load_data, read_site

TIMEOUT = 10.0
"""Seconds to wait for a SuperLink."""

SOON = datetime.timedelta(days=30)
"""Before the end of a certificate from which on a check mentions it."""

MOST_AHEAD, MOST_BEHIND = 5.0, 300.0
"""Seconds by which a site's clock may be off: a SuperLink refuses signatures from the future, and old ones."""


class Point(NamedTuple):
    """One thing that has to be in order.

    Attributes:
        name: of the point.
        is_fine: whether it is in order.
        text: how it is.
    """

    name: str
    is_fine: bool
    text: str


def check(
    site: Path | None, superlink: str | None, root_certificates: Path | None, experiment: Path | None
) -> Iterator[Point]:
    """Yield the points that can be looked at, one after the other.

    Args:
        site: the site's file.
        superlink: the address of its SuperLink, `HOST:PORT`.
        root_certificates: the file of the authority that signed the SuperLink's certificate; the system's if `None`.
        experiment: the file of the experiment whose classes and shape its data has to fit.
    """
    if superlink is not None:
        yield from _superlink(superlink, root_certificates)
    if site is not None:
        yield from _site(site, experiment)


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
    soon = ": the server needs another one soon" if until - _now() < SOON else ""
    yield Point(
        "superlink", True, f"`{superlink}` is reached over TLS; its certificate is valid until {until:%Y-%m-%d}{soon}"
    )
    if date is not None:
        behind = (parsedate_to_datetime(date) - _now()).total_seconds()
        is_fine = -MOST_AHEAD < behind < MOST_BEHIND
        advice = "" if is_fine else "; it would refuse this site's signatures, so set the clock right"
        text = f"this machine's clock is {abs(behind):.0f} s {'behind' if behind > 0 else 'ahead of'} the SuperLink's"
        yield Point("clock", is_fine, text + advice)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _site(path: Path, experiment: Path | None) -> Iterator[Point]:
    try:
        site = read_site(path)
    except FedmateError as error:
        yield Point("site", False, str(error))
        return
    yield Point("site", True, f"`{path}` says that `{site.loader.name}` reads its data")
    yield _point("state", lambda: _state(site.state))
    if experiment is not None:
        yield _point("data", lambda: _fit(site, experiment))


def _point(name: str, look: Callable[[], str]) -> Point:
    """Look at something; an error is a point that is not in order."""
    try:
        return Point(name, True, look())
    except FedmateError as error:
        return Point(name, False, str(error))
    except OSError as error:
        return Point(name, False, f"`{error.filename}` cannot be read ({error.strerror})")


def _state(folder: Path) -> str:
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"`{folder}` cannot be written to; choose another folder for `state`.")
    return f"`{folder}` {'will be made' if nearest != folder else 'exists'}, for what the site keeps"


def _fit(site: SiteFile, file: Path) -> str:
    experiment = resolve([load_file(file)])
    train, test = load_data(site, experiment, keep=False)
    samples = [f"{int(data.mask.sum()):,}" for data in (train, test)]
    held, classes = len(set(train.y.tolist())), len(experiment.dataset.options["classes"])
    return f"{samples[0]} training and {samples[1]} test samples, of {held} of the experiment's {classes} classes"

"""Whether a site is ready: point by point, before a SuperNode is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedmate.core import ClientData
from fedmate.errors import FedmateError
from fedmate.experiment.config import Experiment, load_file, resolve
from fedmate.flower.certificates import need_cryptography, now, read_key
from fedmate.flower.probe import is_registered, reach
from fedmate.flower.site_data import SiteFile, load_data, read_site

SOON = 30
"""Days before its end from which a certificate is spoken of."""

MOST_AHEAD, MOST_BEHIND = 5.0, 300.0
"""How many seconds a site's clock may be off: a SuperLink refuses signatures from the future, and old ones."""

TOLD = 2.0
"""From how many seconds on a difference is told: the SuperLink says what time it is in whole ones."""


class Point(NamedTuple):
    """One thing that has to be in order.

    Attributes:
        name: what it is about.
        is_fine: whether it is.
        told: how it is.
    """

    name: str
    is_fine: bool
    told: str


class Link(NamedTuple):
    """How a site gets to its SuperLink.

    Attributes:
        superlink: its address, `HOST:PORT`.
        root_certificates: the file of the authority that signed its certificate; the system's own if there is none.
        key: the file of the site's private key, if that is to be looked at.
    """

    superlink: str
    root_certificates: Path | None = None
    key: Path | None = None


def check(site: Path | None, link: Link | None, experiment: Path | None) -> Iterator[Point]:
    """Yield the points that can be looked at, one after the other.

    Args:
        site: the site's file.
        link: how it gets to its SuperLink.
        experiment: the file of the experiment whose classes and shape its data has to fit.
    """
    if link is not None:
        yield from _link(link)
    if site is not None:
        yield from _data(site, experiment)


def _point(name: str, look: Callable[[], str | Point]) -> Point:
    """Look at something; an error is what is told about it."""
    try:
        told = look()
    except FedmateError as error:
        return Point(name, False, str(error).removesuffix("."))
    except OSError as error:
        return Point(name, False, f"`{error.filename}` cannot be read ({error.strerror})")
    return told if isinstance(told, Point) else Point(name, True, told)


def _link(link: Link) -> Iterator[Point]:
    try:
        reached = reach(link.superlink, link.root_certificates)
    except FedmateError as error:
        yield Point("superlink", False, str(error))
        return
    left = (reached.until - now()).days
    soon = f", {left} days: the server needs another one soon" if left < SOON else ""
    until = f"{reached.until:%Y-%m-%d}{soon}"
    yield Point("superlink", True, f"`{link.superlink}` is reached over TLS; its certificate is good until {until}")
    if reached.behind is not None:
        yield _clock(reached.behind)
    if link.key is not None:
        path = link.key
        yield _point("key", lambda: _key(link, path))


def _clock(behind: float) -> Point:
    is_fine = -MOST_AHEAD < behind < MOST_BEHIND
    if abs(behind) < TOLD:
        return Point("clock", True, "this machine's clock agrees with the SuperLink's")
    where = "behind" if behind > 0 else "ahead of"
    told = f"this machine's clock is {abs(behind):.0f} s {where} the SuperLink's"
    return Point("clock", is_fine, told if is_fine else f"{told}, which then refuses its signatures; set it right")


def _key(link: Link, path: Path) -> Point:
    need_cryptography()
    if is_registered(link.superlink, link.root_certificates, read_key(path)):
        return Point("key", True, f"`{path}` is registered")
    hint = (
        f"have `flwr supernode register {path.name}.pub deploy` run at the server; one that was removed needs a new key"
    )
    return Point("key", False, f"`{path}` is not registered; {hint}")


def _data(site: Path, experiment: Path | None) -> Iterator[Point]:
    found = list[SiteFile]()

    def described() -> str:
        found.append(read_site(site))
        return f"`{site}` says that `{found[0].loader.name}` reads its data"

    yield _point("site", described)
    if found:
        yield _point("state", lambda: _state(found[0].state))
    if found and experiment is not None:
        yield _point("data", lambda: _fit(found[0], resolve([load_file(experiment)])))


def _state(folder: Path) -> Point:
    """Look whether the site may write where it keeps what is its own."""
    nearest = next(place for place in (folder, *folder.parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Point("state", False, f"`{folder}` cannot be written to; choose another folder for `state`")
    told = "will be made" if nearest != folder else "is there"
    return Point("state", True, f"`{folder}` {told}, for what the site keeps")


def _fit(site: SiteFile, experiment: Experiment) -> str:
    train, test = load_data(site, experiment, keep=False)
    held = len(set(train.y.tolist()))
    total = len(experiment.dataset.options["classes"])
    return (
        f"{_samples(train)} to train on and {_samples(test)} to test on, of {held} of the experiment's {total} classes"
    )


def _samples(data: ClientData) -> str:
    return f"{int(data.mask.sum()):,} samples"

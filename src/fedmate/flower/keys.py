"""The keys of a federation, as files in one folder.

ca.crt ca.key            the authority: its certificate goes to every site, its key stays where it is
server.crt server.key    what the SuperLink shows to the sites, signed by the authority
NAME NAME.pub            what a site shows to the SuperLink: the public half is registered there

Nothing is overwritten. What exists is used again, so that a site can be added later, and what a kill left half done is
completed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedmate import storage
from fedmate.errors import UserError
from fedmate.flower import certificates

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 397
"""How long a server's certificate is good: a little over a year, as on the web."""

AUTHORITY_DAYS = 3650
"""How long the authority's is: a new one means a new file for every site."""

HERE = ("localhost", "127.0.0.1", "::1")
"""What a SuperLink's own processes, and whoever runs it, call its machine."""

TAKEN = ("ca", "server")
MOST_SITES = 1000


class Item(NamedTuple):
    """A file of a federation.

    Attributes:
        path: where it is.
        is_new: whether it was not there before.
        place: where it belongs.
    """

    path: Path
    is_new: bool
    place: str


def make_keys(folder: Path, servers: Sequence[str], sites: Sequence[str], days: int = DAYS) -> list[Item]:
    """Make what is missing of the keys of sites, and of a server if names for it are given.

    Args:
        folder: where they are kept.
        servers: the names and addresses by which sites reach the server.
        sites: their names.
        days: how long the server's certificate is good.
    """
    certificates.need_cryptography()
    names = list(dict.fromkeys([*map(_checked_server, servers), *HERE])) if servers else []
    try:
        storage.make_folder(folder)
    except FileExistsError:
        raise UserError(f"`{folder}` is a file; give a folder.") from None
    items = _server_items(folder, names, days) if names else []
    for site in sites:
        items += _site_items(folder, site)
    return items


def site_names(text: str) -> list[str]:
    """Return the sites that a number stands for, or names with commas between them.

    >>> site_names("2"), site_names("berlin, essen")
    (['site-0', 'site-1'], ['berlin', 'essen'])
    """
    if re.fullmatch(r"\s*[0-9]+\s*", text):
        if not 1 <= int(text) <= MOST_SITES:
            raise UserError(f"`--sites` got {text.strip()}; give a number from 1 to {MOST_SITES}, or names.")
        return [f"site-{i}" for i in range(int(text))]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name) or name.lower() in TAKEN:
            raise UserError(
                f"`--sites` got `{name}`, which cannot be a site's name; use letters, digits, `-` and `_`, "
                f"and neither {' nor '.join(f'`{taken}`' for taken in TAKEN)}."
            )
    return list(dict.fromkeys(names))


# -------------------- the server


def _server_items(folder: Path, names: Sequence[str], days: int) -> list[Item]:
    """Make a server's certificate if there is none, and an authority to sign it."""
    path = folder / "server.crt"
    if path.exists():
        _check_covers(path, names)
        made = dict.fromkeys(("ca.key", "ca.crt", "server.key", "server.crt"), False)
    else:
        authority_key, authority, made = _authority(folder)
        key, made["server.key"] = _key(folder / "server.key")
        certificate = certificates.new_server(key, names, days, authority, authority_key)
        storage.write_new(path, certificates.as_pem(certificate))
        made["server.crt"] = True
    until = f"{certificates.read_certificate(path).not_valid_after_utc:%Y-%m-%d}"
    places = {
        "ca.key": "stays here, out of reach: whoever has it can pose as the server",
        "ca.crt": "to the server and to every site",
        "server.key": "to the server alone",
        "server.crt": f"to the server; good until {until}",
    }
    return [Item(folder / name, is_new, places[name]) for name, is_new in made.items() if (folder / name).exists()]


def _authority(folder: Path) -> tuple[EllipticCurvePrivateKey, x509.Certificate, dict[str, bool]]:
    """Return the authority, and which of its files are new."""
    path, key_path = folder / "ca.crt", folder / "ca.key"
    if path.exists() and not key_path.exists():
        raise UserError(f"`{key_path}` is missing beside `ca.crt`; put it back, or choose another folder.")
    key, key_is_new = _key(key_path)
    is_new = not path.exists()
    if is_new:
        storage.write_new(path, certificates.as_pem(certificates.new_authority(key, AUTHORITY_DAYS)))
    certificate = certificates.read_certificate(path)
    if certificate.public_key() != key.public_key():
        raise UserError(f"`{key_path}` is not the key of `ca.crt`; put the right one back.")
    if certificate.not_valid_after_utc <= certificates.now():
        raise UserError(f"`{path}` is no longer good; choose another folder, and give sites the `ca.crt` made there.")
    return key, certificate, {"ca.key": key_is_new, "ca.crt": is_new}


def _key(path: Path) -> tuple[EllipticCurvePrivateKey, bool]:
    """Return a key, and whether it had to be made."""
    is_new = not path.exists()
    if is_new:
        storage.write_new(path, certificates.key_as_pem(certificates.new_key()), storage.PRIVATE)
    return certificates.read_key(path), is_new


def _check_covers(path: Path, names: Sequence[str]) -> None:
    covered = certificates.names_of(certificates.read_certificate(path))
    missing = next((name for name in names if name not in covered), None)
    if missing is not None:
        raise UserError(
            f"`{path}` is for {', '.join(covered) or 'nobody'} and not for `{missing}`; "
            "move it elsewhere to have another one made."
        )


def _checked_server(name: str) -> str:
    """Return a name or an address of the server as certificates have it."""
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        if _is_host(name.lower()):
            return name.lower()
        raise UserError(
            f"`--server` got `{name}`, which is no name and no address of a machine; give one, without a port."
        ) from None
    if address.is_unspecified:
        raise UserError(f"`--server` got `{name}`, which stands for any address; give the one that sites connect to.")
    return str(address)


def _is_host(name: str) -> bool:
    labels = name.split(".")
    fit = all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label) for label in labels)
    # What ends with a number is meant to be an address.
    return fit and len(name) < 254 and not labels[-1].isdecimal()


# -------------------- sites


def _site_items(folder: Path, site: str) -> list[Item]:
    """Make a site's pair of keys; a public half that is missing is made from the private one."""
    private, public = folder / site, folder / f"{site}.pub"
    if public.exists() and not private.exists():
        # A site that made its keys itself, or was given them, keeps the private one.
        return [Item(public, False, "to the server, to be registered there")]
    is_new, public_is_new = not private.exists(), not public.exists()
    if is_new:
        storage.write_new(private, certificates.key_as_ssh(certificates.new_key()), storage.PRIVATE)
    if public_is_new:
        storage.write_new(public, certificates.public_as_ssh(certificates.read_key(private), site))
    return [
        Item(private, is_new, f"to {site} alone"),
        Item(public, public_is_new, "to the server, to be registered there"),
    ]

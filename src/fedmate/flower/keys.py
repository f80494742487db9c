"""The keys of a federation, as files in one folder.

ca.crt ca.key            the authority: its certificate goes to every site, its key stays in the folder
server.crt server.key    the SuperLink's certificate, signed by the authority, and its key
NAME NAME.pub            a site's key for Flower's node authentication; the public half is registered at the SuperLink

Existing files stay as they are and are used again, so that a site can be added later.
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmate import storage
from fedmate.errors import UserError

Key: TypeAlias = ec.EllipticCurvePrivateKey

AUTHORITY_DAYS, MOST_SITES = 3650, 1000

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of the SuperLink's machine for its own processes."""


class Item(NamedTuple):
    """A file of a federation, whether it was made now, and where it belongs."""

    path: Path
    is_new: bool
    place: str


def make_keys(folder: Path, servers: Sequence[str], sites: Sequence[str], days: int) -> list[Item]:
    """Make the missing keys of sites, and of a server if it has names; its certificate is valid for `days`."""
    names = {str(_address(name.strip("[]")) or name.lower()): name for name in servers}
    for found, name in names.items():
        # A name that ends with a number is meant to be an address.
        if not _address(found) and not re.fullmatch(r"([a-z0-9-]{1,63}\.)*(?=[0-9-]*[a-z])[a-z0-9-]{1,63}", found):
            raise UserError(f"`--server` got `{name}`; give the name or address of a machine, without a port.")
    try:
        storage.make_folder(folder)
    except FileExistsError:
        raise UserError(f"`{folder}` is a file; give a folder.") from None
    items = _server_items(folder, [*dict.fromkeys([*names, *LOCAL])], days) if names else []
    for site in sites:
        items += _site_items(folder, site)
    return items


def site_names(text: str) -> list[str]:
    """Return the sites that a number stands for, or names with commas between them.

    >>> site_names("2"), site_names("berlin, essen")
    (['site-0', 'site-1'], ['berlin', 'essen'])
    """
    names = [name.strip() for name in text.split(",")]
    if len(names) == 1 and names[0].isdecimal():
        if not 1 <= int(names[0]) <= MOST_SITES:
            raise UserError(f"`--sites` got {names[0]}; give a number from 1 to {MOST_SITES}, or names.")
        return [f"site-{i}" for i in range(int(names[0]))]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name) or name.lower() in ("ca", "server"):
            raise UserError(
                f"`--sites` got `{name}`, which cannot be a site's name; use letters, digits, `-` and `_`, and neither "
                "`ca` nor `server`."
            )
    return names


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _server_items(folder: Path, names: list[str], days: int) -> list[Item]:
    ca_key, ca_key_is_new = _key(folder / "ca.key")
    ca, ca_is_new = _certificate(folder / "ca.crt", lambda: _sign("fedmate authority", ca_key, AUTHORITY_DAYS, ca_key))
    if ca.public_key() != ca_key.public_key():
        raise UserError(f"`{folder / 'ca.key'}` is not the key of `ca.crt`; put the right one back.")
    key, key_is_new = _key(folder / "server.key")
    path = folder / "server.crt"
    certificate, is_new = _certificate(path, lambda: _sign("fedmate server", key, days, ca_key, ca.subject, names))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    covered = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    missing = next((name for name in names if name not in covered), None)
    if missing is not None:
        raise UserError(
            f"`{path}` is for {', '.join(covered)} and not for `{missing}`; move it elsewhere to have another one made."
        )
    return [
        Item(folder / "ca.key", ca_key_is_new, "stays here, out of reach: its owner can pose as the server"),
        Item(folder / "ca.crt", ca_is_new, "to the server and to every site"),
        Item(folder / "server.key", key_is_new, "to the server alone"),
        Item(path, is_new, f"to the server; valid until {certificate.not_valid_after_utc:%Y-%m-%d}"),
    ]


def _site_items(folder: Path, site: str) -> list[Item]:
    """Make a site's pair of keys; a missing public half is made from the private one."""
    private, public = folder / site, folder / f"{site}.pub"
    is_registered, place = public.exists(), "to the server, to be registered there"
    if is_registered and not private.exists():
        # A site that made its keys itself keeps the private one.
        return [Item(public, False, place)]
    key, is_new = _key(private, openssh=True)
    if not is_registered:
        line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {site}\n".encode()
        storage.write_new(public, line)
    return [Item(private, is_new, f"to {site} alone"), Item(public, not is_registered, place)]


def _key(path: Path, *, openssh: bool = False) -> tuple[Key, bool]:
    """Return the private key in a file, and whether it was made now: ECDSA on P-384, as a SuperLink takes it."""
    is_new = not path.exists()
    if is_new:
        if path.name == "ca.key" and path.with_name("ca.crt").exists():
            raise UserError(f"`{path}` is missing beside `ca.crt`; put it back, or choose another folder.")
        form = PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8
        made = ec.generate_private_key(ec.SECP384R1()).private_bytes(Encoding.PEM, form, NoEncryption())
        storage.write_new(path, made, storage.PRIVATE)
    try:
        key = (load_ssh_private_key if openssh else load_pem_private_key)(path.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Key):
        raise UserError(f"`{path}` is no elliptic-curve private key without a password; move it elsewhere.")
    return key, is_new


def _certificate(path: Path, make: Callable[[], x509.Certificate]) -> tuple[x509.Certificate, bool]:
    """Return the certificate in a file, and whether it was made now."""
    is_new = not path.exists()
    if is_new:
        storage.write_new(path, make().public_bytes(Encoding.PEM))
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise UserError(f"`{path}` is no certificate in PEM form; move it elsewhere.") from None
    if certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise UserError(f"`{path}` has expired; move it elsewhere to have another one made.")
    return certificate, is_new


def _sign(
    name: str, key: Key, days: int, signer: Key, issuer: x509.Name | None = None, servers: Sequence[str] = ()
) -> x509.Certificate:
    """Make a certificate: of a server under these names, or without an `issuer` that of the authority itself."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A site's clock may be behind.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if issuer is None:
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        return builder.add_extension(signs, critical=True).sign(signer, SHA384())
    found = [(name, _address(name)) for name in servers]
    names = x509.SubjectAlternativeName([x509.IPAddress(ip) if ip else x509.DNSName(name) for name, ip in found])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    for extension in (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), names, identifier):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer, SHA384())

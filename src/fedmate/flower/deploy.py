"""`fedmate deploy`: the keys of a federation, whether a site is ready, and how far a site or a server has come.

Keys are files in one folder. Existing files stay as they are and are used again, so that a site can be added later.

ca.crt ca.key            the authority: its certificate goes to every site, its key stays in the folder
server.crt server.key    the SuperLink's certificate, signed by the authority, and its key
NAME NAME.pub            a site's key for Flower's node authentication; the public half is registered at the SuperLink
"""

from __future__ import annotations

import csv
import datetime
import http.client
import ipaddress
import itertools
import os
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmate import storage
from fedmate.core.tree import DamagedError, unpack
from fedmate.errors import FedmateError, UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.experiment.config import load_file, resolve
from fedmate.experiment.record import Record, whole_lines
from fedmate.flower.client import AUDIT, COLUMNS, STATE, utc
from fedmate.flower.site_data import load_data, read_site

Key: TypeAlias = ec.EllipticCurvePrivateKey


class Item(NamedTuple):
    """A file of a federation, whether it was made now, and where it belongs."""

    path: Path
    is_new: bool
    place: str


class Point(NamedTuple):
    """One thing that has to be in order: its name, whether it is, and how it is."""

    name: str
    is_fine: bool
    text: str


# -------------------- keys


def make_keys(folder: Path, servers: Sequence[str], sites: Sequence[str], days: int) -> list[Item]:
    """Make the missing keys of sites, and of a server if it has names; its certificate is valid for `days`."""
    names = {str(_address(name.strip("[]")) or name.lower()): name for name in servers}
    for found, name in names.items():
        # A name that ends with a number is meant to be an address.
        if not _address(found) and not re.fullmatch(r"([a-z0-9-]{1,63}\.)*(?=[0-9-]*[a-z])[a-z0-9-]{1,63}", found):
            raise UserError(f"`--server` got `{name}`; give the name or address of a machine, without a port.")
    if folder.is_file():
        raise UserError(f"`{folder}` is a file; give a folder.")
    storage.make_folder(folder)
    existing = {*folder.iterdir()}
    # The SuperLink's machine has names of its own for its processes.
    covered = [*dict.fromkeys([*names, "localhost", "127.0.0.1", "::1"])]
    places = _server_files(folder, covered, days) if names else {}
    for site in sites:
        places |= _site_files(folder, site)
    return [Item(path, path not in existing, place) for path, place in places.items()]


def site_names(text: str) -> list[str]:
    """Return the sites that a number stands for, or names with commas between them.

    >>> site_names("2"), site_names("berlin, essen")
    (['site-0', 'site-1'], ['berlin', 'essen'])
    """
    names = [name.strip() for name in text.split(",")]
    if len(names) == 1 and names[0].isdecimal():
        if not 1 <= int(names[0]) <= 1000:
            raise UserError(f"`--sites` got {names[0]}; give a number from 1 to 1000, or names.")
        return [f"site-{i}" for i in range(int(names[0]))]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name) or name.lower() in ("ca", "server"):
            raise UserError(
                f"`--sites` got `{name}`, which cannot be a site's name; use letters, digits, `-` and `_`, and neither "
                "`ca` nor `server`."
            )
    return names


def _server_files(folder: Path, names: list[str], days: int) -> dict[Path, str]:
    ca_key = _key(folder / "ca.key")
    ca = _certificate(folder / "ca.crt", lambda: _sign("fedmate authority", ca_key, 3650, ca_key))
    if ca.public_key() != ca_key.public_key():
        raise UserError(f"`{folder / 'ca.key'}` is not the key of `ca.crt`; put the right one back.")
    key, path = _key(folder / "server.key"), folder / "server.crt"
    certificate = _certificate(path, lambda: _sign("fedmate server", key, days, ca_key, ca.subject, names))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    covered = [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]
    missing = next((name for name in names if name not in covered), None)
    if missing is not None:
        raise UserError(
            f"`{path}` is for {', '.join(covered)} and not for `{missing}`; move it elsewhere to have another one made."
        )
    return {
        folder / "ca.key": "stays here, out of reach: its owner can pose as the server",
        folder / "ca.crt": "to the server and to every site",
        folder / "server.key": "to the server alone",
        path: f"to the server; valid until {certificate.not_valid_after_utc:%Y-%m-%d}",
    }


def _site_files(folder: Path, site: str) -> dict[Path, str]:
    """Make a site's pair of keys; a missing public half is made from the private one."""
    private, public = folder / site, folder / f"{site}.pub"
    registered = {public: "to the server, to be registered there"}
    if public.exists() and not private.exists():
        # A site that made its keys itself keeps the private one.
        return registered
    key = _key(private, openssh=True)
    if not public.exists():
        line = key.public_key().public_bytes(Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        storage.write_new(public, line + f" {site}\n".encode())
    return {private: f"to {site} alone", **registered}


def _key(path: Path, *, openssh: bool = False) -> Key:
    """Return the private key in a file, which is made if it is missing: ECDSA on P-384, as a SuperLink takes it."""
    if not path.exists():
        form = serialization.PrivateFormat.OpenSSH if openssh else serialization.PrivateFormat.PKCS8
        made = ec.generate_private_key(ec.SECP384R1())
        data = made.private_bytes(Encoding.PEM, form, serialization.NoEncryption())
        storage.write_new(path, data, storage.PRIVATE)
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        key = load(path.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Key):
        raise UserError(f"`{path}` is no elliptic-curve private key without a password; move it elsewhere.")
    return key


def _certificate(path: Path, make: Callable[[], x509.Certificate]) -> x509.Certificate:
    if not path.exists():
        storage.write_new(path, make().public_bytes(Encoding.PEM))
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise UserError(f"`{path}` is no certificate in PEM form; move it elsewhere.") from None
    if certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        raise UserError(f"`{path}` has expired; move it elsewhere to have another one made.")
    return certificate


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


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


# -------------------- check


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
        connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=10.0, context=trusted)
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
    until = utc(ssl.cert_time_to_seconds(valid_until))[:10]
    yield Point("superlink", True, f"`{superlink}` is reached over TLS; its certificate is valid until {until}")
    if date is not None:
        behind = (parsedate_to_datetime(date) - datetime.datetime.now(datetime.UTC)).total_seconds()
        # A SuperLink refuses signatures from the future, and old ones.
        is_fine = -5 < behind < 300
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
    sent, when, done, damage = 0, "at an unknown time", "no round done", list[str]()
    with suppress(FileNotFoundError):
        for row in csv.DictReader(whole_lines((place / AUDIT).read_text(encoding="utf-8")), fieldnames=COLUMNS):
            # The first line has names, and a line that a kill has torn is none.
            with suppress(TypeError, ValueError):
                sent, when = sent + int(row["bytes"]), row["when"]
    try:
        done = f"round {int(unpack((place / STATE).read_bytes())[1]['round']) + 1} done, {when}"
    except (OSError, DamagedError, KeyError, TypeError, ValueError) as error:
        damage = [] if isinstance(error, FileNotFoundError) else [f"  its state is damaged ({error})"]
    yield from (f"experiment {place.parent.name}, client {place.name}: {done}; {sent:,} bytes sent in all", *damage)


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

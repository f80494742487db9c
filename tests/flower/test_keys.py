"""Keys and certificates: what TLS and a SuperLink take, private where it has to be, and never overwritten."""

from __future__ import annotations

import datetime
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from fedmate import storage
from fedmate.errors import UserError
from fedmate.flower import certificates, keys
from fedmate.flower.keys import Item, make_keys, site_names

x509 = pytest.importorskip("cryptography.x509")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def made(items: list[Item]) -> list[str]:
    return [item.path.name for item in items if item.is_new]


def handshake(folder: Path, authority: Path, name: str) -> dict[str, object]:
    """Let a server show its certificate to a client that calls it `name`; return what the client saw."""
    ours, theirs = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT

    def serve() -> None:
        with theirs, suppress(OSError):
            server.wrap_socket(theirs, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=name) as wrapped:
            return dict(wrapped.getpeercert() or {})
    finally:
        thread.join()


# -------------------- what is made


def test_a_client_with_the_authoritys_certificate_believes_the_server_under_its_names(tmp_path: Path) -> None:
    make_keys(tmp_path, ["Flower.example.org", "192.0.2.7", "2001:db8::1"], [])
    for name in ("flower.example.org", "192.0.2.7", "2001:db8::1", "localhost", "127.0.0.1"):
        assert handshake(tmp_path, tmp_path / "ca.crt", name)
    for name in ("example.org", "192.0.2.8"):
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            handshake(tmp_path, tmp_path / "ca.crt", name)


def test_nobody_else_is_believed(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_keys(tmp_path / name, ["localhost"], [])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "ours", tmp_path / "theirs" / "ca.crt", "localhost")
    # A server's certificate is no authority.
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "ours", tmp_path / "theirs" / "server.crt", "localhost")


@pytest.mark.parametrize("days", [1, 397, 3650])
def test_a_servers_certificate_is_good_for_so_many_days(tmp_path: Path, days: int) -> None:
    items = make_keys(tmp_path, ["localhost"], [], days)
    server = certificates.read_certificate(tmp_path / "server.crt")
    now = datetime.datetime.now(datetime.UTC)
    assert abs(server.not_valid_after_utc - now - datetime.timedelta(days=days)) < datetime.timedelta(minutes=1)
    # A site's clock may be behind.
    assert server.not_valid_before_utc < now - datetime.timedelta(hours=12)
    place = {item.path.name: item.place for item in items}["server.crt"]
    assert f"{server.not_valid_after_utc:%Y-%m-%d}" in place


def test_a_servers_certificate_does_not_outlast_the_authoritys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=10)
    with monkeypatch.context() as past:
        past.setattr(certificates, "now", lambda: earlier)
        make_keys(tmp_path, ["localhost"], [])
    (tmp_path / "server.crt").unlink()
    make_keys(tmp_path, ["localhost"], [], days=3650)
    authority, server = (certificates.read_certificate(tmp_path / name) for name in ("ca.crt", "server.crt"))
    assert server.not_valid_after_utc == authority.not_valid_after_utc


def test_a_sites_keys_are_a_pair_in_openssh_form(tmp_path: Path) -> None:
    make_keys(tmp_path, [], ["essen"])
    assert sorted(contents(tmp_path)) == ["essen", "essen.pub"]
    private, public = (tmp_path / "essen").read_text(), (tmp_path / "essen.pub").read_text()
    assert private.startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    kind, _, comment = public.split()
    assert (kind, comment) == ("ecdsa-sha2-nistp384", "essen")
    try:
        derived = subprocess.run(
            ["ssh-keygen", "-y", "-f", tmp_path / "essen"], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        pytest.skip("no ssh-keygen here")
    assert derived.stdout.split()[:2] == public.split()[:2]


def test_what_is_private_is_its_owners_alone_and_the_rest_is_not(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_keys(tmp_path, ["localhost"], ["essen"])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {
        **dict.fromkeys(("ca.key", "server.key", "essen"), 0o600),
        **dict.fromkeys(("ca.crt", "server.crt", "essen.pub"), 0o644),
    }


def test_every_key_is_another(tmp_path: Path) -> None:
    make_keys(tmp_path, ["localhost"], site_names("3"))
    private = [content for name, content in contents(tmp_path).items() if re.fullmatch(r".*\.key|site-\d", name)]
    assert len(private) == len(set(private)) == 5


# -------------------- what is there


def test_a_site_is_added_later_and_nothing_else_changes(tmp_path: Path) -> None:
    assert made(make_keys(tmp_path, ["flower.example.org"], site_names("2")))[:4] == [
        "ca.key",
        "ca.crt",
        "server.key",
        "server.crt",
    ]
    before = contents(tmp_path)
    items = make_keys(tmp_path, ["flower.example.org"], site_names("3"))
    assert made(items) == ["site-2", "site-2.pub"]
    assert len(items) == 10
    assert {name: contents(tmp_path)[name] for name in before} == before


def test_another_servers_certificate_is_signed_by_the_same_authority(tmp_path: Path) -> None:
    make_keys(tmp_path, ["one.example.org"], [])
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"is for one\.example\.org, .* and not for `two\.example\.org`; move it"):
        make_keys(tmp_path, ["two.example.org"], [])
    assert contents(tmp_path) == before
    (tmp_path / "server.crt").rename(tmp_path / "old.crt")
    assert made(make_keys(tmp_path, ["two.example.org"], [])) == ["server.crt"]
    assert contents(tmp_path)["ca.crt"] == before["ca.crt"]
    assert handshake(tmp_path, tmp_path / "ca.crt", "two.example.org")


@pytest.mark.parametrize("left", range(1, 6))
def test_what_a_kill_left_half_done_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    write, count = storage.write_new, 0

    def killed(path: Path, data: bytes, mode: int = storage.MODE) -> None:
        nonlocal count
        if count == left:
            raise KeyboardInterrupt
        count += 1
        write(path, data, mode)

    monkeypatch.setattr(storage, "write_new", killed)
    with pytest.raises(KeyboardInterrupt):
        make_keys(tmp_path, ["localhost"], ["essen"])
    before = contents(tmp_path)
    assert len(before) == left
    monkeypatch.setattr(storage, "write_new", write)
    assert len(made(make_keys(tmp_path, ["localhost"], ["essen"]))) == 6 - left
    assert {name: contents(tmp_path)[name] for name in before} == before
    assert handshake(tmp_path, tmp_path / "ca.crt", "localhost")
    public = certificates.public_as_ssh(certificates.read_key(tmp_path / "essen"), "essen")
    assert public == contents(tmp_path)["essen.pub"]


def test_a_public_key_that_a_site_has_sent_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "essen.pub").write_text("ecdsa-sha2-nistp384 AAAA essen\n")
    items = make_keys(tmp_path, [], ["essen"])
    assert [(item.path.name, item.is_new) for item in items] == [("essen.pub", False)]
    assert sorted(contents(tmp_path)) == ["essen.pub"]


# -------------------- mistakes


def spoil_authority(folder: Path) -> None:
    make_keys(folder / "other", ["localhost"], [])
    (folder / "ca.key").unlink()
    (folder / "other" / "ca.key").rename(folder / "ca.key")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "ca.key").unlink(), r"`.*ca\.key` is missing beside `ca\.crt`; put it back"),
        (lambda folder: (folder / "ca.key").write_text("x"), r"`.*ca\.key` is no private key"),
        (lambda folder: (folder / "ca.crt").write_text("x"), r"`.*ca\.crt` is no certificate in PEM form"),
        (spoil_authority, r"`.*ca\.key` is not the key of `ca\.crt`"),
    ],
)
def test_an_authority_that_cannot_sign_is_said(tmp_path: Path, spoil: object, sentence: str) -> None:
    make_keys(tmp_path, ["localhost"], [])
    (tmp_path / "server.crt").unlink()
    assert callable(spoil)
    spoil(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(UserError, match=sentence):
        make_keys(tmp_path, ["localhost"], [])
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_authority_that_has_ended_does_not_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path, ["localhost"], [])
    (tmp_path / "server.crt").unlink()
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=keys.AUTHORITY_DAYS + 1)
    monkeypatch.setattr(certificates, "now", lambda: later)
    with pytest.raises(UserError, match=r"ca\.crt` is no longer good"):
        make_keys(tmp_path, ["localhost"], [])


@pytest.mark.parametrize(
    "name", ["", "two words", "host:8000", "http://host", "-host", "a..b", "ho_st", "300.1.1.1", "a" * 64, "ä.org"]
)
def test_what_is_no_machines_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"`--server` got `.*`, which is no name and no address"):
        make_keys(tmp_path / "new", [name], [])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["0.0.0.0", "::"])
def test_any_address_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="stands for any address"):
        make_keys(tmp_path, [name], [])


@pytest.mark.parametrize("text", ["0", "1001", "a,,b", "a/b", "../a", "ca", "Server", "a.pub", " ", "-a", "ä"])
def test_what_is_no_sites_name_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="`--sites` got"):
        site_names(text)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; give a folder"):
        make_keys(tmp_path / "file", [], ["essen"])


def test_the_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.x509", None)
    with pytest.raises(UserError, match=r"run `pip install 'fedmate\[flower\]'`"):
        make_keys(tmp_path, [], ["essen"])
    assert contents(tmp_path) == {}

"""Keys and certificates: accepted by TLS and by a SuperLink, private where needed, and never overwritten."""

from __future__ import annotations

import re
import stat
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography.x509 import DNSName, IPAddress, load_pem_x509_certificate
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedmate.errors import UserError
from fedmate.flower.keys import Item, make_keys, site_names


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def made(items: list[Item]) -> list[str]:
    return [item.path.name for item in items if item.is_new]


def verify(folder: Path, authority: Path, name: str) -> None:
    """Verify the certificate of a server that is called `name`, as a client does that trusts an authority."""
    subject = IPAddress(ip_address(name)) if name[0].isdigit() else DNSName(name)
    trusted, shown = (load_pem_x509_certificate(path.read_bytes()) for path in (authority, folder / "server.crt"))
    PolicyBuilder().store(Store([trusted])).build_server_verifier(subject).verify(shown, [])


def test_a_client_with_the_authoritys_certificate_trusts_the_server_under_its_names(tmp_path: Path) -> None:
    make_keys(tmp_path / "ours", ["Flower.example.org", "192.0.2.7", "2001:db8::1"], [], days=30)
    make_keys(tmp_path / "theirs", ["localhost"], [], days=30)
    for name in ("flower.example.org", "192.0.2.7", "2001:db8::1", "localhost", "127.0.0.1"):
        verify(tmp_path / "ours", tmp_path / "ours" / "ca.crt", name)
    for name in ("example.org", "192.0.2.8"):
        with pytest.raises(VerificationError, match="subjectAltName"):
            verify(tmp_path / "ours", tmp_path / "ours" / "ca.crt", name)
    # Neither another authority nor another server's certificate vouches for it.
    for authority in ("ca.crt", "server.crt"):
        with pytest.raises(VerificationError):
            verify(tmp_path / "ours", tmp_path / "theirs" / authority, "localhost")


def test_private_keys_are_their_owners_alone_and_in_the_form_that_flower_takes(tmp_path: Path) -> None:
    make_keys(tmp_path, ["localhost"], ["essen"], days=30)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "server.key", "essen"}
    assert (tmp_path / "essen").read_text().startswith("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    kind, _, comment = (tmp_path / "essen.pub").read_text().split()
    assert (kind, comment) == ("ecdsa-sha2-nistp384", "essen")


def test_sites_and_servers_are_added_later_and_nothing_else_changes(tmp_path: Path) -> None:
    make_keys(tmp_path, ["one.example.org"], site_names("2"), days=30)
    before = contents(tmp_path)
    assert made(make_keys(tmp_path, ["one.example.org"], site_names("3"), days=30)) == ["site-2", "site-2.pub"]
    assert {name: contents(tmp_path)[name] for name in before} == before
    with pytest.raises(UserError, match=r"is for one\.example\.org, .* and not for `two\.example\.org`; move it"):
        make_keys(tmp_path, ["two.example.org"], [], days=30)
    (tmp_path / "server.crt").rename(tmp_path / "old.crt")
    assert made(make_keys(tmp_path, ["two.example.org"], [], days=30)) == ["server.crt"]
    verify(tmp_path, tmp_path / "ca.crt", "two.example.org")
    # A site that has made its keys itself keeps the private one.
    (tmp_path / "essen.pub").write_text("ecdsa-sha2-nistp384 AAAA essen\n")
    items = make_keys(tmp_path, [], ["essen"], days=30)
    assert [(item.path.name, item.is_new) for item in items] == [("essen.pub", False)]


def test_an_authority_that_cannot_sign(tmp_path: Path) -> None:
    for name, source, sentence in (
        ("ca.crt", "essen.pub", r"`.*ca\.crt` is no certificate in PEM form"),
        ("ca.key", "server.key", r"`.*ca\.key` is not the key of `ca\.crt`"),
    ):
        folder = tmp_path / name
        make_keys(folder, ["localhost"], ["essen"], days=30)
        (folder / "server.crt").unlink()
        (folder / source).replace(folder / name)
        before = contents(folder)
        with pytest.raises(UserError, match=sentence):
            make_keys(folder, ["localhost"], [], days=30)
        assert contents(folder) == before
    with pytest.raises(UserError, match="has expired; move it elsewhere"):
        make_keys(tmp_path / "expired", ["localhost"], [], days=0)


def test_names_that_are_none_are_refused(tmp_path: Path) -> None:
    for name in ("", "host:8000", "300.1.1.1"):
        with pytest.raises(UserError, match=re.escape(f"`--server` got `{name}`")):
            make_keys(tmp_path / "new", [name], [], days=30)
    for text in ("0", "1001", "a,,b", "../a", "Server", "a.pub", "-a"):
        with pytest.raises(UserError, match="`--sites` got"):
            site_names(text)
    assert not (tmp_path / "new").exists()

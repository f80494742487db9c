"""`fedmate deploy`: keys that TLS and a SuperLink accept, and no overwriting; whether a site is ready; status."""

from __future__ import annotations

import datetime
import email.utils
import os
import re
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from cryptography.x509 import DNSName, IPAddress, load_pem_x509_certificate
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from typer.testing import CliRunner

import fedmate
from fedmate.cli.deploy import deploy
from fedmate.errors import UserError
from fedmate.flower.client import ClientState
from fedmate.flower.deploy import Item, Point, check, make_keys, site_names, status

EXPERIMENT = """
[dataset]
name = "sites"
classes = ["cat", "dog", "horse"]
shape = [1, 4, 4]
[partition]
clients = 2
"""
FIRST, SECOND = "ab" * 16, "cd" * 16


class SuperLink(BaseHTTPRequestHandler):
    """Answers with the time."""

    ahead: ClassVar[float] = 0.0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return email.utils.formatdate(datetime.datetime.now().timestamp() + self.ahead, usegmt=True)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve with the certificate in a folder, and give the address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), SuperLink) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def points(link: str | None = None, ca: Path | None = None, site: Path | None = None, **more: Any) -> dict[str, Point]:
    return {point.name: point for point in check(site, link, ca, more.get("experiment"))}


def site_of(folder: Path, names: tuple[str, ...] = ("dog", "horse")) -> Path:
    labels = np.arange(20) % len(names)
    np.savez(folder / "data.npz", train_x=np.zeros((20, 1, 4, 4), np.uint8), train_y=labels)
    text = f'[data]\nloader = "npz"\npath = "data.npz"\nclass_names = {list(names)}\n'
    (folder / "site.toml").write_text(text)
    (folder / "experiment.toml").write_text(EXPERIMENT)
    return folder / "site.toml"


def test_the_data_of_a_site(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    found = points(site=site_of(tmp_path), experiment=experiment)
    assert all(point.is_fine for point in found.values()), found
    assert found["data"].text == "16 training and 4 test samples, of 2 of the experiment's 3 classes"
    assert f"`{tmp_path / 'state'}` will be made" in found["state"].text
    assert not (tmp_path / "state").exists()
    found = points(site=site_of(tmp_path, ("dog", "mouse")), experiment=experiment)
    assert [point.is_fine for point in found.values()] == [True, True, False]
    assert "`mouse`" in found["data"].text
    (tmp_path / "state").touch()
    assert "cannot be written to; choose another folder" in points(site=tmp_path / "site.toml")["state"].text


def taken_part(folder: Path, experiment: str, client: int, rounds: int) -> Path:
    own, state = ClientState(folder, experiment, client), {"w": torch.zeros(3)}
    for t in range(rounds):
        own.save(t, state, state)
        own.log(t, {"extractor": 100, "num_samples": 8})
    return own.folder


def test_a_site_has_a_line_for_each_client_it_has_been_the_latest_last(tmp_path: Path) -> None:
    os.utime(taken_part(tmp_path, SECOND, 1, 3), (2e9, 2e9))
    first = taken_part(tmp_path, FIRST, 1, 2)
    os.utime(first, (1e9, 1e9))
    lines = list(status(tmp_path))
    assert lines[0].startswith(f"experiment {FIRST[:16]}, client 1: round 2 done, ")
    assert lines[1].startswith(f"experiment {SECOND[:16]}, client 1: round 3 done, ")
    assert lines[1].endswith("Z; 324 bytes sent in all")
    (first / "state.safetensors").write_bytes(b"torn")
    with (first / "audit.csv").open("a") as audit:
        audit.write("x,y\n2026-01-02T10:00:00,2,extr")
    line, damage, _ = status(tmp_path)
    assert line.endswith("client 1: no round done; 216 bytes sent in all")
    assert "its state is damaged" in damage


def command(*words: object) -> list[str]:
    return CliRunner().invoke(deploy, list(map(str, words))).output.splitlines()


def test_the_status_of_a_run_a_site_file_and_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    settings = {"rounds": 3, "partition.clients": 3, "partition.examples": 10, "training.epochs": 1}
    fedmate.run(method="fedavg", set=settings, out=run)
    # A record of a federation in which client 1 was away twice, and client 2 never answered.
    head, *rows = (run / "rounds.csv").read_text().splitlines()
    cells = [row.split(",") for row in rows]
    for row in cells:
        row[2] = "0" if row[1] == "2" or (row[1], row[0]) in {("1", "2"), ("1", "3")} else "1"
    (run / "rounds.csv").write_text("\n".join([head, *map(",".join, cells)]) + "\n")
    os.utime(run / "checkpoint" / "checkpoint.json", (86400.0, 86400.0))
    assert command("status", run) == [
        f"{run}: round 3 of 3 done, 1970-01-02T00:00:00Z, finished",
        "  client 0: last answered in round 3",
        "  client 1: last answered in round 1; left out 2 of 3 times",
        "  client 2: has not answered; left out 3 of 3 times",
    ]
    taken_part(tmp_path / "state", FIRST, 5, 2)
    monkeypatch.setenv("FEDMATE_STATE", str(tmp_path / "state"))
    assert len(command("status")) == 1
    assert command("status") == command("status", tmp_path / "state") == command("status", site_of(tmp_path))


def test_the_commands_keys_and_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "keys"
    words = ["keys", folder, "--server", "localhost", "--sites", "2"]
    lines = command(*words)
    assert [line.split()[0] for line in lines] == ["made"] * 8 + ["Register"] * 2
    assert lines[-1] == f"Register with: flwr supernode register {folder / 'site-1.pub'} deploy"
    assert all(line.startswith("there ") for line in command(*words))
    site, experiment = site_of(tmp_path), tmp_path / "experiment.toml"
    make_keys(tmp_path / "others", ["localhost"], [], days=1)
    with serving(folder) as address:
        link = ["--superlink", address, "--root-certificates", folder / "ca.crt"]
        found = command("check", site, *link, "--experiment", experiment)
        other = points(address, tmp_path / "others" / "ca.crt")["superlink"]
        monkeypatch.setattr(SuperLink, "ahead", -400)
        clock = points(address, folder / "ca.crt")["clock"]
    assert [line.split()[:2] for line in found] == [
        ["ok", name] for name in ("superlink", "clock", "site", "state", "data")
    ]
    assert not other.is_fine
    assert "is refused (unable to get local issuer certificate): is `--root" in other.text
    assert not clock.is_fine
    assert "set the clock" in clock.text
    assert "`127.0.0.1:9` is not reached" in points("127.0.0.1:9", folder / "ca.crt")["superlink"].text
    assert CliRunner().invoke(deploy, ["check", str(tmp_path / "no.toml")]).exit_code == 2


# -------------------- keys


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def new(items: list[Item]) -> list[str]:
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
    assert new(make_keys(tmp_path, ["one.example.org"], site_names("3"), days=30)) == ["site-2", "site-2.pub"]
    assert {name: contents(tmp_path)[name] for name in before} == before
    with pytest.raises(UserError, match=r"is for one\.example\.org, .* and not for `two\.example\.org`; move it"):
        make_keys(tmp_path, ["two.example.org"], [], days=30)
    (tmp_path / "server.crt").rename(tmp_path / "old.crt")
    assert new(make_keys(tmp_path, ["two.example.org"], [], days=30)) == ["server.crt"]
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

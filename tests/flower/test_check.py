"""Whether a site is ready: every point that can fail does, in one line that says what to do."""

from __future__ import annotations

import base64
import datetime
import email.utils
import json
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from fedmate import cli
from fedmate.flower import certificates, keys
from fedmate.flower.check import Link, Point, check

pytest.importorskip("flwr")

REGISTERED, UNKNOWN = 2003, 2004
"""What Flower answers to an announcement with an impossible interval."""


class SuperLink(BaseHTTPRequestHandler):
    """Answers announcements as Flower does, and notes them."""

    known: ClassVar[set[bytes]] = set()
    asked: ClassVar[list[str]] = []
    status: ClassVar[int | None] = None
    ahead: ClassVar[float] = 0.0

    def do_GET(self) -> None:
        self.answer(200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        key = base64.b64decode(self.headers["flwr-public-key"])
        assert key in body
        self.asked.append(self.path)
        code = REGISTERED if key in self.known else UNKNOWN
        self.answer(
            self.status or (400 if code == REGISTERED else 412), json.dumps({"code": code, "detail": ""}).encode()
        )

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return email.utils.formatdate(datetime.datetime.now().timestamp() + self.ahead, usegmt=True)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("keys")
    keys.make_keys(place, ["localhost"], ["essen", "stranger"], days=365)
    return place


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


@pytest.fixture
def superlink(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    known = public_key_to_bytes(certificates.read_key(folder / "essen").public_key())
    monkeypatch.setattr(SuperLink, "known", {known})
    monkeypatch.setattr(SuperLink, "asked", [])
    # Nobody's proxy.
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serving(folder) as address:
        yield address


def points(link: Link | None = None, site: Path | None = None, experiment: Path | None = None) -> dict[str, Point]:
    return {point.name: point for point in check(site, link, experiment)}


# -------------------- the SuperLink


def test_a_site_whose_key_is_registered_is_ready(superlink: str, folder: Path) -> None:
    found = points(Link(superlink, folder / "ca.crt", folder / "essen"))
    assert [(point.name, point.is_fine) for point in found.values()] == [
        ("superlink", True),
        ("clock", True),
        ("key", True),
    ]
    until = certificates.read_certificate(folder / "server.crt").not_valid_after_utc
    assert f"good until {until:%Y-%m-%d}" in found["superlink"].told
    # A running SuperNode of the same key is not disturbed: nothing is asked but to be refused.
    assert SuperLink.asked == ["/v1/fleet/activate-node"]


def test_a_key_that_is_not_registered_is_said(superlink: str, folder: Path) -> None:
    found = points(Link(superlink, folder / "ca.crt", folder / "stranger"))["key"]
    assert not found.is_fine
    assert "stranger` is not registered; have `flwr supernode register stranger.pub deploy` run" in found.told


def test_without_a_key_it_is_not_asked_for(superlink: str, folder: Path) -> None:
    assert list(points(Link(superlink, folder / "ca.crt"))) == ["superlink", "clock"]
    assert SuperLink.asked == []


@pytest.mark.parametrize(
    ("ahead", "is_fine", "told"),
    [
        (0, True, ""),
        (60, True, "60 s behind|59 s behind"),
        (400, False, "behind .*set it"),
        (-60, False, "ahead of .*set it"),
    ],
)
def test_a_clock_that_is_wrong_is_said(
    superlink: str, folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, is_fine: bool, told: str
) -> None:
    monkeypatch.setattr(SuperLink, "ahead", ahead)
    found = points(Link(superlink, folder / "ca.crt"))["clock"]
    assert found.is_fine == is_fine
    assert re.search(told, found.told)


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "does not believe this site's signature"), (404, "answers 404"), (502, "does the SuperLink run")],
)
def test_a_superlink_that_does_not_say_is_said(
    superlink: str, folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, told: str
) -> None:
    monkeypatch.setattr(SuperLink, "status", status)
    monkeypatch.setattr(SuperLink, "do_POST", lambda self: SuperLink.answer(self, status, b"{}"))
    found = points(Link(superlink, folder / "ca.crt", folder / "essen"))["key"]
    assert not found.is_fine
    assert told in found.told


def test_a_certificate_that_ends_soon_is_spoken_of(
    superlink: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=344, minutes=-5)
    monkeypatch.setattr("fedmate.flower.check.now", lambda: later)
    found = points(Link(superlink, folder / "ca.crt"))["superlink"]
    assert found.is_fine
    assert "21 days: the server needs another one soon" in found.told


def test_a_server_of_another_authority_is_not_believed(superlink: str, folder: Path, tmp_path: Path) -> None:
    keys.make_keys(tmp_path, ["localhost"], [])
    found = points(Link(superlink, tmp_path / "ca.crt", folder / "essen"))
    assert list(found) == ["superlink"]
    assert "nobody who is trusted here has signed its certificate: give its `ca.crt`" in found["superlink"].told
    assert SuperLink.asked == []


def test_a_server_under_another_name_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "HERE", ())
    keys.make_keys(tmp_path, ["flower.example.org"], [])
    with serving(tmp_path) as address:
        found = points(Link(address, tmp_path / "ca.crt"))["superlink"]
    assert not found.is_fine
    assert "its certificate is for other addresses than this" in found.told


def test_a_certificate_that_has_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)
    with monkeypatch.context() as past:
        past.setattr(certificates, "now", lambda: earlier)
        keys.make_keys(tmp_path, ["localhost"], [], days=1)
    with serving(tmp_path) as address:
        found = points(Link(address, tmp_path / "ca.crt"))["superlink"]
    assert not found.is_fine
    assert "its certificate has expired" in found.told


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1:9", "does the SuperLink run there"),
        ("nobody.invalid:8000", "is the address right"),
        ("", "is not reached"),
        ("127.0.0.1:port", "is not reached"),
    ],
)
def test_a_superlink_that_is_not_there_is_said(folder: Path, superlink: str, address: str, told: str) -> None:
    found = points(Link(address, folder / "ca.crt"))["superlink"]
    assert not found.is_fine
    assert told in found.told


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_root_certificates_that_are_none_are_said(superlink: str, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    found = points(Link(superlink, tmp_path / "ca.crt"))["superlink"]
    assert not found.is_fine
    assert "ca.crt` cannot be read as certificates" in found.told


def test_a_key_that_is_none_is_said(superlink: str, folder: Path) -> None:
    for path, told in ((folder / "ca.crt", "is no private key"), (folder / "nobody", "cannot be read")):
        found = points(Link(superlink, folder / "ca.crt", path))["key"]
        assert not found.is_fine
        assert told in found.told


# -------------------- the data

EXPERIMENT = """
[dataset]
name = "sites"
classes = ["cat", "dog", "horse"]
shape = [1, 4, 4]

[partition]
clients = 2

[model]
name = "mlp"
"""


def site_of(folder: Path, names: tuple[str, ...] = ("dog", "horse"), shape: tuple[int, ...] = (1, 4, 4)) -> Path:
    labels = np.arange(20) % len(names)
    np.savez(folder / "data.npz", train_x=np.zeros((20, *shape), np.uint8), train_y=labels)
    listed = ", ".join(f'"{name}"' for name in names)
    (folder / "site.toml").write_text(f'[data]\nloader = "npz"\npath = "data.npz"\nclass_names = [{listed}]\n')
    (folder / "experiment.toml").write_text(EXPERIMENT)
    return folder / "site.toml"


def test_data_that_fits_is_counted(tmp_path: Path) -> None:
    found = points(site=site_of(tmp_path), experiment=tmp_path / "experiment.toml")
    assert all(point.is_fine for point in found.values()), found
    assert found["data"].told == "16 samples to train on and 4 samples to test on, of 2 of the experiment's 3 classes"
    assert f"`{tmp_path / 'state'}` will be made" in found["state"].told
    # Looking leaves nothing behind.
    assert not (tmp_path / "state").exists()


def test_without_an_experiment_data_is_not_read(tmp_path: Path) -> None:
    site_of(tmp_path)
    (tmp_path / "data.npz").unlink()
    assert list(points(site=tmp_path / "site.toml")) == ["site", "state"]


def test_data_that_does_not_fit_is_said(tmp_path: Path) -> None:
    for names, shape, told in (
        (("dog", "mouse"), (1, 4, 4), "`mouse`"),
        (("dog", "cat"), (1, 5, 5), "[1, 5, 5]"),
    ):
        found = points(site=site_of(tmp_path, names, shape), experiment=tmp_path / "experiment.toml")
        assert [point.is_fine for point in found.values()] == [True, True, False]
        assert told in found["data"].told


def test_a_sites_file_that_is_none_is_said(tmp_path: Path) -> None:
    found = points(site=tmp_path / "site.toml", experiment=tmp_path / "experiment.toml")
    assert [(point.name, point.is_fine) for point in found.values()] == [("site", False)]


def test_a_state_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    path = site_of(tmp_path)
    (tmp_path / "state").touch(mode=0o777)
    found = points(site=path)["state"]
    assert not found.is_fine
    assert "cannot be written to; choose another folder for `state`" in found.told


# -------------------- the command


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["fedmate", "deploy", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


def test_the_command_has_a_line_for_each_point_and_a_status(
    superlink: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = site_of(tmp_path)
    link = ("--superlink", superlink, "--root-certificates", folder / "ca.crt")
    experiment = ("--experiment", tmp_path / "experiment.toml")
    assert command(monkeypatch, "check", site, *link, "--key", folder / "essen", *experiment) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in ("superlink", "clock", "key", "site", "state", "data")
    ]
    assert command(monkeypatch, "check", site, *link, "--key", folder / "stranger", *experiment) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "ok", "FAIL", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    "arguments", [(), ("--key", "x"), ("--root-certificates", "x"), ("--superlink", "x", "--experiment", "y")]
)
def test_the_command_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert command(monkeypatch, "check", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("Error: `")
    assert len(captured.err.splitlines()) == 1


def test_the_command_makes_keys_and_says_where_they_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "keys", tmp_path / "k", "--server", "localhost", "--sites", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert all(line.startswith("made ") for line in lines[:8])
    assert lines[-1] == f"Register with: flwr supernode register {tmp_path / 'k' / 'site-1.pub'} deploy"
    assert command(monkeypatch, "keys", tmp_path / "k", "--server", "localhost", "--sites", "2") == 0
    assert all(line.startswith("there ") for line in capsys.readouterr().out.splitlines())
    assert command(monkeypatch, "keys", tmp_path / "other") == 2
    assert not (tmp_path / "other").exists()

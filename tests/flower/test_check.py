"""Whether a site is ready: every point that can fail does, in one line with a remedy."""

from __future__ import annotations

import datetime
import email.utils
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmate.cli.deploy import deploy
from fedmate.errors import UserError
from fedmate.flower import check as module
from fedmate.flower import keys
from fedmate.flower.check import Point, check

EXPERIMENT = """
[dataset]
name = "sites"
classes = ["cat", "dog", "horse"]
shape = [1, 4, 4]
[partition]
clients = 2
"""


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys.make_keys(tmp_path / "keys", ["localhost"], [], days=365)
    return tmp_path / "keys"


def points(
    superlink: str | None = None,
    root_certificates: Path | None = None,
    site: Path | None = None,
    experiment: Path | None = None,
) -> dict[str, Point]:
    return {point.name: point for point in check(site, superlink, root_certificates, experiment)}


# -------------------- the SuperLink


def test_a_superlink_that_is_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(folder) as address:
        found = points(address, folder / "ca.crt")
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=344)
        monkeypatch.setattr(module, "_now", lambda: later)
        soon = points(address, folder / "ca.crt")["superlink"]
    assert [(point.name, point.is_fine) for point in found.values()] == [("superlink", True), ("clock", True)]
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
    assert f"valid until {until:%Y-%m-%d}" in found["superlink"].text
    assert soon.is_fine
    assert "the server needs another one soon" in soon.text


@pytest.mark.parametrize(
    ("ahead", "is_fine", "word"), [(60, True, "behind"), (400, False, "set the clock"), (-60, False, "ahead of")]
)
def test_a_wrong_clock(folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, is_fine: bool, word: str) -> None:
    monkeypatch.setattr(SuperLink, "ahead", ahead)
    with serving(folder) as address:
        found = points(address, folder / "ca.crt")["clock"]
    assert found.is_fine == is_fine
    assert word in found.text


def test_certificates_that_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make_keys(tmp_path / "others", ["localhost"], [], days=1)
    monkeypatch.setattr(keys, "LOCAL", ())
    keys.make_keys(tmp_path / "names", ["flower.example.org"], [], days=1)
    with pytest.raises(UserError, match="has expired; move it elsewhere"):
        keys.make_keys(tmp_path / "expired", ["127.0.0.1"], [], days=0)
    for place, authority, reason in (
        (folder, tmp_path / "others", "local issuer certificate"),
        (tmp_path / "names", tmp_path / "names", "IP address mismatch"),
        (tmp_path / "expired", tmp_path / "expired", "certificate has expired"),
    ):
        with serving(place) as address:
            found = points(address, authority / "ca.crt")
        assert [point.is_fine for point in found.values()] == [False]
        assert reason in found["superlink"].text


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere.invalid:8000", "", "127.0.0.1:port"])
def test_a_superlink_that_is_not_there(folder: Path, address: str) -> None:
    found = points(address, folder / "ca.crt")
    assert [point.is_fine for point in found.values()] == [False]
    assert f"`{address}` is not reached" in found["superlink"].text


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_root_certificates_that_are_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    assert not points("127.0.0.1:9", tmp_path / "ca.crt")["superlink"].is_fine


# -------------------- the data


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
    assert found["data"].text == "16 training and 4 test samples, of 2 of the experiment's 3 classes"
    assert f"`{tmp_path / 'state'}` will be made" in found["state"].text
    # Looking leaves nothing behind.
    assert not (tmp_path / "state").exists()


def test_sites_that_are_not_ready(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    for names, shape, text in ((("dog", "mouse"), (1, 4, 4), "`mouse`"), (("dog", "cat"), (1, 5, 5), "[1, 5, 5]")):
        found = points(site=site_of(tmp_path, names, shape), experiment=experiment)
        assert [point.is_fine for point in found.values()] == [True, True, False]
        assert text in found["data"].text
    (tmp_path / "data.npz").unlink()
    (tmp_path / "state").touch(mode=0o777)
    # Without an experiment, data is not read.
    found = points(site=tmp_path / "site.toml")
    assert [point.is_fine for point in found.values()] == [True, False]
    assert "cannot be written to; choose another folder for `state`" in found["state"].text
    found = points(site=tmp_path / "no.toml", experiment=experiment)
    assert [(point.name, point.is_fine) for point in found.values()] == [("site", False)]


# -------------------- the commands


def test_the_commands(tmp_path: Path) -> None:
    run, folder = CliRunner().invoke, tmp_path / "keys"
    words = ["keys", str(folder), "--server", "localhost", "--sites", "2"]
    lines = run(deploy, words).output.splitlines()
    assert [line.split()[0] for line in lines] == ["made"] * 8 + ["Register"] * 2
    assert lines[-1] == f"Register with: flwr supernode register {folder / 'site-1.pub'} deploy"
    assert all(line.startswith("there ") for line in run(deploy, words).output.splitlines())
    site, experiment = site_of(tmp_path), tmp_path / "experiment.toml"
    with serving(folder) as address:
        link = ["--superlink", address, "--root-certificates", str(folder / "ca.crt")]
        found = run(deploy, ["check", str(site), *link, "--experiment", str(experiment)])
    assert found.exit_code == 0
    assert [line.split()[:2] for line in found.output.splitlines()] == [
        ["ok", name] for name in ("superlink", "clock", "site", "state", "data")
    ]
    assert run(deploy, ["check", str(tmp_path / "no.toml")]).exit_code == 2
    for odd in (["keys", "x"], ["check"], ["check", "--superlink", "x", "--experiment", "y"]):
        assert run(deploy, odd).exit_code != 0

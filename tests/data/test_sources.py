"""Where data sets are looked for, and downloads from a server on this machine: whole files only."""

from __future__ import annotations

import gc
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedmate.data.sources import VARIABLE, DownloadError, RemoteFile, check, data_folder, download
from fedmate.errors import UserError

# requests leaves the socket of a refused answer to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `whole`, `torn` (the connection ends half-way), `page` (something else) and 404."""

    asked: list[str]

    def file(self, way: str, path: str = "deep/file.gz") -> RemoteFile:
        return RemoteFile(f"http://127.0.0.1:{self.server_address[1]}/{way}", path, len(CONTENT), MD5)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        way = self.path.strip("/")
        self.server.asked.append(way)  # type: ignore[attr-defined]
        body = {"whole": CONTENT, "torn": CONTENT, "page": b"<html>"}.get(way)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write((body or b"")[: len(CONTENT) // 2 if way == "torn" else None])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        gc.collect()
        server.shutdown()
        thread.join()


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_is_missing_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    files = [server.file("whole", "a"), server.file("whole", "deep/b")]
    (tmp_path / "a").write_bytes(CONTENT)
    for _ in range(2):
        download(files, tmp_path)
    assert server.asked == ["whole"]
    assert files_in(tmp_path) == ["a", "deep/b"]
    assert (tmp_path / "deep" / "b").read_bytes() == CONTENT


@pytest.mark.parametrize("way", ["torn", "page", "missing"])
def test_a_failed_download_leaves_nothing_and_says_what_to_do(way: str, server: Server, tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        download([server.file(way)], tmp_path)
    assert str(caught.value).startswith(f"`{server.file(way).url}` cannot be downloaded (")
    assert f"put it into `{tmp_path / 'deep'}` as `file.gz`" in str(caught.value)
    assert files_in(tmp_path) == []


def test_a_wrong_file_is_named_and_never_replaced(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(UserError) as caught:
        download([server.file("whole", "a"), server.file("whole", "b")], tmp_path)
    assert f"`{tmp_path / 'a'}` has the md5 checksum {hashlib.md5(b'mine').hexdigest()}, but {MD5}" in str(caught.value)
    assert (server.asked, files_in(tmp_path)) == ([], ["a"])
    with pytest.raises(UserError, match="cannot be read"):
        check(server.file("whole"), tmp_path)


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_a_folder_that_was_named_has_to_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"`--data-dir` is `.*/no`, which does not exist; make it"):
        data_folder(tmp_path / "no")
    (tmp_path / "file").touch()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"`FEDMATE_DATA` is `.*/file`, which is not a folder"):
        data_folder()

"""A web server on this machine that serves one file in good and in bad ways."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from fedmate.data.sources import File

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
SOURCE = "https://example.org/sums"


class Request(NamedTuple):
    path: str
    range: str | None
    agent: str | None


class Site:
    """What it serves, where, and what it was asked for.

    Paths are ways to serve: `whole`, `plain` (knows no ranges), `dropped` (ends half-way through what it sends),
    `shifted` (sends another range than asked for), `endless` (sends a part and waits), `chunked`, `torn` (chunks that
    end too early), `page`, `moved/WAY`, `loop`, `ftp`, `local`, `status/NUMBER`.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.content = bytes(range(256)) * 1000
        self.requests: list[Request] = []
        self.leave = threading.Event()
        self.address = f"http://127.0.0.1:{server.server_address[1]}"

    def file(self, way: str = "whole", name: str = "archive.tar.gz", content: bytes | None = None) -> File:
        checksum = hashlib.md5(self.content if content is None else content).hexdigest()
        return File(f"{self.address}/{way}", name, len(self.content), checksum, SOURCE)

    def ranges(self) -> list[str | None]:
        return [request.range for request in self.requests]


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Serve until the test is over."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    site = _Handler.site = Site(server)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield site
    finally:
        site.leave.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        way = self.path.removeprefix("/")
        asked = self.headers["Range"]
        self.site.requests.append(Request(way, asked, self.headers["User-Agent"]))
        # Each answer ends its connection, so that a part of one is seen as such.
        self.close_connection = True
        if way.startswith("moved/"):
            self.answer(302, location=f"/{way.removeprefix('moved/')}")
        elif way in ("loop", "ftp", "local"):
            self.answer(302, location={"loop": "/loop", "ftp": "ftp://127.0.0.1/x", "local": "file:///x"}[way])
        elif way.startswith("status/"):
            self.answer(int(way.removeprefix("status/")), b"nothing")
        elif way == "page":
            self.answer(200, b"<html>sorry</html>", kind="text/html; charset=utf-8")
        elif way in ("chunked", "torn"):
            self.send_chunks(self.site.content, torn=way == "torn")
        else:
            self.send_file(way, asked)

    def send_file(self, way: str, asked: str | None) -> None:
        content = self.site.content
        begin = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and way != "plain" else 0  # type: ignore[index]
        if begin >= len(content):
            self.answer(416)
            return
        rest = content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("Content-Type", "application/x-gzip")
        if begin:
            self.send_header("Content-Range", f"bytes {begin + (way == 'shifted')}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(rest[: len(rest) // 2] if way in ("dropped", "endless") else rest)
        if way == "endless":
            self.wfile.flush()
            self.site.leave.wait(60)

    def send_chunks(self, content: bytes, *, torn: bool) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            if torn:
                return
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, code: int, body: bytes = b"", kind: str = "text/plain", location: str | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

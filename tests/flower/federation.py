"""One SuperLink and SuperNodes on this machine, over TLS and with authentication: a deployment in small.

Sites reach the SuperLink through a gate that passes what is for sites and nothing else, as docs/deploy.md advises, and
that keeps the bytes that cross.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from tests.flower.processes import MARK, wait_for, with_mark

from fedmate.flower.environment import QUIET
from fedmate.flower.keys import make_keys

APP = Path(__file__).parents[2] / "flower"
FOR_SITES = "/v1/fleet/"
HERE = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        return int(taken.getsockname()[1])


class Federation:
    """The processes of a federation, with a node config for each SuperNode; keys and logs lie in a folder."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes, self.keys = folder, nodes, folder / "keys"
        self.port, self.token = free_port(), secrets.token_hex(8)
        make_keys(self.keys, [HERE], [*self.sites, "stranger"], days=1)
        for name in ("home", "log"):
            (folder / name).mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink.deploy]\naddress = "{HERE}:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"\n'
        )
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def sites(self) -> list[str]:
        return [f"site-{number}" for number in range(len(self.nodes))]

    def __enter__(self) -> Self:
        try:
            self.start_superlink()
            self.gate = Gate(self.keys, self.port)
            for site in self.sites:
                self.command("flwr", "supernode", "register", self.keys / f"{site}.pub", "deploy")
            for number in range(len(self.nodes)):
                self.start_node(number)
            wait_for(lambda: all(map(self.is_online, range(len(self.nodes)))), 60, "all sites are online")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes, also those of processes: SIGTERM first, then SIGKILL."""
        # Sites first: without a SuperLink they would try again and again to say goodbye.
        for name in sorted(self._started, key=lambda name: name == "superlink"):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                self._started[name].send_signal(signal.SIGTERM)
                if name != "superlink":
                    self._started[name].wait(3)
        with suppress(TimeoutError):
            wait_for(lambda: not self.alive(), 10, "everything has ended")
        for number in self.alive():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for process in self._started.values():
            process.wait()
        if "gate" in vars(self):
            self.gate.close()
        wait_for(lambda: not self.alive(), 10, "everything has been killed")

    def alive(self, command: str = "") -> list[int]:
        """Return the numbers of the processes of this federation, or of those with a word in their command line."""
        return with_mark(self.token, command)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"FLWR_HOME": str(self.folder / "home"), MARK: self.token, "PATH": path, "OMP_NUM_THREADS": "1"}
        return {**os.environ, **QUIET, **own, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}

    def start(self, name: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start a process in a group of its own, with a log of its name."""
        with (self.folder / "log" / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                list(map(str, arguments)),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )
        return self._started[name]

    def command(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            list(map(str, arguments)), env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def start_superlink(self) -> None:
        certificate = ("--ssl-certfile", self.keys / "server.crt", "--ssl-keyfile", self.keys / "server.key")
        process = self.start(
            "superlink",
            *("flower-superlink", "--ssl-ca-certfile", self.keys / "ca.crt", *certificate),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
            *("--database", self.folder / "superlink.db", "--host", HERE, "--port", str(self.port)),
        )

        def listens() -> bool:
            assert process.poll() is None, self.log("superlink")
            with socket.socket() as probe:
                return probe.connect_ex((HERE, self.port)) == 0

        wait_for(listens, 60, "the SuperLink listens")

    def run(self, name: str, app: Path, config: Mapping[str, str | int | float]) -> subprocess.Popen[bytes]:
        """Start a run of an app; the process ends with it."""
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        return self.start(name, "flwr", "run", app, "deploy", "--stream", "--run-config", settings)

    def run_status(self, name: str) -> str:
        """Return how Flower says that a run has ended."""
        number = self.log(name).partition("Successfully started run ")[2].split()[0]
        told = json.loads(self.command("flwr", "list", "deploy", "--run-id", number, "--format", "json"))
        return str(told["runs"][0]["status"])

    def node_command(self, key: str | None, config: str) -> list[str | Path]:
        """Return the command that starts a SuperNode, with a key or with none."""
        address = ("--superlink", f"{HERE}:{self.gate.port}", "--root-certificates", self.keys / "ca.crt")
        own = () if key is None else ("--auth-supernode-private-key", self.keys / key)
        place = ("--node-config", config, "--host", HERE, "--port", str(free_port()))
        return ["flower-supernode", *address, *own, *place]

    def start_node(self, number: int) -> subprocess.Popen[bytes]:
        name = self.sites[number]
        (self.folder / "log" / f"{name}.log").unlink(missing_ok=True)
        return self.start(name, *self.node_command(name, self.nodes[number]))

    def is_online(self, number: int) -> bool:
        return "SuperNode ID" in self.log(self.sites[number])

    def kill_node(self, number: int) -> None:
        """Kill a SuperNode and all that it has started, without a warning."""
        process = self._started[self.sites[number]]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def supervise_node(self, number: int, pause: float = 3.0, seconds: float = 90.0) -> None:
        """Start a SuperNode again and again until it is accepted, as a supervisor does."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            process = self.start_node(number)
            while process.poll() is None:
                if self.is_online(number):
                    return
                time.sleep(0.1)
            time.sleep(pause)
        raise TimeoutError(self.log(self.sites[number]))


# -------------------- the gate


class Gate:
    """Passes requests of sites on to the SuperLink, and keeps both ways' bytes."""

    def __init__(self, keys: Path, port: int) -> None:
        self.crossings: list[tuple[bytes, bytes]] = []
        shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.load_cert_chain(keys / "server.crt", keys / "server.key")
        trusted = ssl.create_default_context(cafile=keys / "ca.crt")
        self._server = _Server((HERE, 0), _handler(self, port, trusted))
        # A handshake is the business of the thread that serves it.
        self._server.socket = shown.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Let a site that is killed go in silence."""


def _handler(gate: Gate, port: int, trusted: ssl.SSLContext) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith(FOR_SITES):
                self.reply(403, [], b"")
                return
            connection = http.client.HTTPSConnection(HERE, port, context=trusted, timeout=60)
            try:
                with closing(connection):
                    connection.request(self.command, self.path, body, dict(self.headers))
                    response = connection.getresponse()
                    content = response.read()
            except OSError:
                self.reply(502, [], b"")
                return
            gate.crossings.append((body, content))
            self.reply(response.status, response.getheaders(), content)

        def reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler

"""One SuperLink and SuperNodes on this machine, over TLS and with authentication: a deployment in small."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from fedmate.flower import QUIET
from fedmate.flower.deploy import make_keys

APP = Path(__file__).parents[2] / "flower"
HERE = "127.0.0.1"
MARK = "FEDMATE_TEST"
"""Processes that a test has started, at first or second hand, have it in their environment."""


def with_mark(mark: str, command: str = "") -> list[int]:
    """Return the numbers of the other processes with a mark, and with a word in their command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        # A process may end while it is looked at; those of others cannot be read.
        with suppress(OSError):
            ours = f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0")
            if ours and int(place.name) != os.getpid() and command.encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


def wait_for(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.1) -> None:
    """Wait until something holds, or raise `TimeoutError`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}, not in {seconds:g} s")
        time.sleep(pause)


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
            '[superlink.local]\naddress = ":local:"\n'
        )
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def sites(self) -> list[str]:
        return [f"site-{number}" for number in range(len(self.nodes))]

    def __enter__(self) -> Self:
        try:
            self.start_superlink()
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
            list(map(str, arguments)),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=240,
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

    def node_command(self, key: str | None, config: str) -> list[str | Path]:
        """Return the command that starts a SuperNode, with a key or with none."""
        address = ("--superlink", f"{HERE}:{self.port}", "--root-certificates", self.keys / "ca.crt")
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

    def supervise_node(self, number: int) -> None:
        """Start a SuperNode again and again until it is accepted, as a supervisor does."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            process = self.start_node(number)
            while process.poll() is None:
                if self.is_online(number):
                    return
                time.sleep(0.1)
            time.sleep(3)
        raise TimeoutError(self.log(self.sites[number]))

"""The real command in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FEDMATE = str(Path(sys.executable).with_name("fedmate"))
SMALL = ("rounds=3", "partition.clients=4", "partition.examples=20", "training.epochs=1", "backend=sequential")
"""Quickly begun: trying the vectorised back end loads much. The installed wheel is run without a word about it."""


def settings(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


def environment() -> dict[str, str]:
    """Return this process's environment without what makes pipes look like terminals."""
    unwanted = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR", "PYTHONPATH", "PYTHONWARNINGS")
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def call(command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120, check=False)


def test_help_leaves_torch_alone(tmp_path: Path) -> None:
    program = """
import sys
from fedmate.cli import main
sys.argv = ["fedmate", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print("status", end.code)
print("heavy", sorted({"torch", "numpy", "sklearn", "scipy"} & set(sys.modules)))
"""
    for arguments in (["--help"], ["run", "--help"], ["--version"]):
        answer = call([sys.executable, "-c", program, *arguments], tmp_path)
        assert answer.stdout.splitlines()[-2:] == ["status 0", "heavy []"], answer.stderr


def test_an_interrupt_leaves_a_record_that_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    long = settings(*SMALL, "rounds=100000", "eval_every=1")
    process = subprocess.Popen(
        [FEDMATE, "run", "--method", "local", *long, "--out", "record"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs these tests in the background may have told their children to ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 90
        metrics = folder / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") >= 2):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    said = re.fullmatch(
        r"Stopped\. record is saved after round (\d+) of 100000\. Continue with: fedmate run --resume record\n", err
    )
    assert said is not None, err
    assert "Traceback" not in out
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) - 1 <= int(said[1]) <= len(rows)
    assert not (folder / "summary.json").exists()

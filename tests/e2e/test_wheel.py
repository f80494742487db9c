"""The wheel builds, holds what it should, and runs on its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(command: Sequence[str], cwd: Path, **variables: str) -> str:
    """Run a command that must succeed, without any network, and return what it says."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "FORCE_COLOR")}
    offline = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    env = {**inherited, **offline, **variables}
    answer = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    pip = [sys.executable, "-m", "pip", "wheel", ".", "--no-index", "--no-deps", "--no-build-isolation", "-w", "dist"]
    call(pip, folder)
    (made,) = (folder / "dist").glob("*.whl")
    return made


def test_the_wheel_holds_the_package_and_what_belongs_to_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(f"{info}/METADATA").decode()
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
        commands = archive.read(f"{info}/entry_points.txt").decode()
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "fedmate").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {"fedmate/py.typed", "fedmate/tuned.toml"} < names
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "License-Expression: Apache-2.0" in metadata.splitlines()
    assert "fedmate = fedmate.cli:main" in commands
    assert {name.split("/")[0] for name in names} == {"fedmate", info}


def test_the_installed_wheel_runs_on_its_own(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", str(site), str(wheel)]
    call(pip, tmp_path)
    command = [str(site / "bin" / "fedmate"), "run", "--method", "fedavg", "--out", "record"]
    for assignment in ("rounds=2", "partition.clients=3", "partition.examples=10", "training.epochs=1"):
        command += ["--set", assignment]
    said = call(command, elsewhere, PYTHONPATH=str(site))
    assert said.splitlines()[-1] == "Records: record"
    summary = json.loads((elsewhere / "record" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["method"], summary["rounds"], summary["clients"]) == ("fedavg", 2, 3)
    # Not the checkout's commit: this copy does not lie in it.
    assert json.loads((elsewhere / "record" / "environment.json").read_text(encoding="utf-8"))["commit"] is None

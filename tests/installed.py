"""The package in `examples/`, as if it were installed."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

EXAMPLES = Path(__file__).parents[1] / "examples"


@contextmanager
def installed_example() -> Iterator[None]:
    """Let the entry points that `examples/pyproject.toml` declares be found, as `pip install -e examples` does."""
    project = tomllib.loads((EXAMPLES / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    with TemporaryDirectory() as folder:
        info = Path(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [
            line
            for group, points in project["entry-points"].items()
            for line in (f"[{group}]", *(f"{key} = {value}" for key, value in points.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        added = [folder, str(EXAMPLES)]
        sys.path += added
        try:
            yield
        finally:
            for path in added:
                sys.path.remove(path)

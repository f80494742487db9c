"""Print how large the house is: `make house`, or `python tests/house.py [--tree OTHER_CHECKOUT]`.

Four groups of figures: size by folder, the functions a reader notices, repetition between methods, and the path of one
`fedmate run` on a CPU. Peers can be counted in the same way, so docstrings, comments and blank lines stand apart.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

FOLDERS = ("src", "tests", "paper", "benchmarks", "examples", "flower", "docs", ".")
TEXTS = (".py", ".toml", ".md", ".cu", ".cpp", ".h", ".sh", ".yaml", ".yml")
WINDOW = 6
"""Lines in a row that two methods share before they count as repeated."""

TRACE = """
import json, sys, threading
from importlib import import_module

package = sys.argv.pop(1)
met, before, frames = [], None, 0

def stack(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back

def owner(frame):
    name = frame.f_globals.get("__name__", "")
    return name if name.startswith(package + ".") or name == package else None

def importing(frame):
    # Decorators and class bodies run functions, too, while a module is imported; they are no step of the run.
    return any(owner(step) and step.f_code.co_name == "<module>" for step in stack(frame))

def watch(frame, event, argument):
    global before, frames
    if event != "call" or (name := owner(frame)) is None or importing(frame):
        return
    if before is None and frame.f_code.co_name == "run_round":
        before = list(met)
    if name not in met:
        met.append(name)
    if not frames and frame.f_code.co_name == "local_update":
        # Clients run in threads; the way there is the main thread's.
        threads = {id(frame): frame.f_back, 0: sys._current_frames()[threading.main_thread().ident]}
        if threading.current_thread() is threading.main_thread():
            del threads[0]
        frames = sum(owner(step) is not None for top in threads.values() for step in stack(top))

main = import_module(package + ".cli").main
sys.setprofile(watch)
threading.setprofile(watch)
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
finally:
    sys.setprofile(None)
imported = [name for name in sys.modules if name.split(".")[0] == package]
print("\\n" + json.dumps({"imported": len(imported), "met": before, "executed": len(met), "frames": frames}))
"""


class Count(NamedTuple):
    """What one Python file consists of."""

    lines: int
    code: int
    docstrings: int
    comments: int
    statements: int


def count(source: str) -> Count:
    """Count the lines and statements of a file; a line of code is neither blank, nor comment, nor docstring."""
    tree, lines = ast.parse(source), source.splitlines()
    documented: set[int] = set()
    statements = 0
    for node in ast.walk(tree):
        statements += isinstance(node, ast.stmt)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                # Texts below a constant or an attribute are docstrings, too.
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    documented |= set(range(child.lineno, (child.end_lineno or child.lineno) + 1))
                    statements -= 1
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    }
    blank = {i for i, line in enumerate(lines, 1) if not line.strip()} - documented
    return Count(
        len(lines), len(lines) - len(documented | comments | blank), len(documented), len(comments), statements
    )


def files(tree: Path) -> list[Path]:
    """Return the tracked text files of a checkout."""
    listed = subprocess.run(["git", "-C", tree, "ls-files"], capture_output=True, text=True, check=True).stdout
    return [path for name in listed.splitlines() if (path := tree / name).suffix in TEXTS and path.is_file()]


def sizes(tree: Path) -> list[list[object]]:
    """Return a row per folder, and per package of the source: files, lines by kind, statements, other languages."""
    rows: dict[str, list[int]] = {}
    for path in files(tree):
        parts = path.relative_to(tree).parts
        folder = parts[0] if len(parts) > 1 and parts[0] in FOLDERS else "."
        names = [folder]
        if parts[:2] == ("src", "fedmate"):
            names.append(f"  {parts[2]}" if len(parts) > 3 else "  (top)")
        for name in names:
            row = rows.setdefault(name, [0] * 7)
            if path.suffix == ".py":
                row[:] = [a + b for a, b in zip(row, [1, *count(path.read_text()), 0], strict=True)]
            else:
                row[-1] += len(path.read_text().splitlines())
    order = [
        name for folder in FOLDERS for name in sorted(rows) if name == folder or (folder == "src" and name[0] == " ")
    ]
    return [[name, *rows[name]] for name in order]


def functions(tree: Path) -> Iterator[tuple[int, str]]:
    """Yield the length of every function of the package without its docstring, and where it is."""
    for path in sorted((tree / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    length -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                yield length, f"{path.relative_to(tree / 'src')}:{node.lineno} {node.name}"


def bare(source: str) -> list[str]:
    """Return a file's lines of code without imports."""
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (text or isinstance(node, ast.Import | ast.ImportFrom)):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((i, line.strip()) for i, line in enumerate(source.splitlines(), 1))
    return [line for i, line in lines if line and not line.startswith("#") and i not in skipped]


def repetition(tree: Path) -> float:
    """Return the share of the methods' code lines that lie in a window which another method has, too."""
    methods = [bare(path.read_text()) for path in sorted((tree / "src/fedmate/methods").glob("[!_]*.py"))]
    windows = [{tuple(lines[i : i + WINDOW]) for i in range(len(lines) - WINDOW + 1)} for lines in methods]
    common = Counter(window for own in windows for window in own)
    repeated = 0
    for lines in methods:
        hits = [i for i in range(len(lines) - WINDOW + 1) if common[tuple(lines[i : i + WINDOW])] > 1]
        repeated += len({i + j for i in hits for j in range(WINDOW)})
    return repeated / max(1, sum(map(len, methods)))


def walk(tree: Path) -> dict[str, object]:
    """Run one small round of FedMate on images like CIFAR-10's, and return what the command imports and meets."""
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        arrays = {
            f"{part}_{name}": array
            for part, n in (("train", 600), ("test", 100))
            for name, array in (
                ("x", draw.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)),
                ("y", np.arange(n, dtype=np.uint8) % 10),
            )
        }
        np.savez(Path(folder) / "cifar10.npz", **arrays)  # type: ignore[arg-type]
        settings = ("partition.clients=2", "partition.examples=20", "rounds=1", "device=cpu", "backend=sequential")
        command = ["run", "--dataset", "cifar10", "--method", "fedmate", "--out", f"{folder}/run"]
        command += [word for setting in settings for word in ("--set", setting)]
        environment = {**os.environ, "FEDMATE_DATA": folder, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", TRACE, "fedmate", *command], capture_output=True, text=True, env=environment
        )
    if done.returncode:
        raise SystemExit(f"the traced run failed:\n{done.stdout}\n{done.stderr}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: list[list[object]]) -> str:
    """Align rows: the first column to the left, numbers to the right."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in texts
    )


def main() -> None:
    """Print the figures of a checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="checkout to count")
    parser.add_argument("--modules", action="store_true", help="also list the modules met before the first round")
    asked = parser.parse_args()
    tree = asked.tree.resolve()
    heads: list[object] = ["folder", "files", "lines", "code", "docstrings", "comments", "statements", "other lines"]
    print(table([heads, *sizes(tree)]))
    longest = sorted(functions(tree), reverse=True)
    print(f"\nlongest of {len(longest)} functions, without docstrings:")
    print(table([[name, length] for length, name in longest[:8]]))
    lengths = sorted(len(path.read_text().splitlines()) for path in (tree / "src/fedmate/methods").glob("[!_]*.py"))
    print(f"\nmethods: median file {lengths[len(lengths) // 2]} lines, {repetition(tree):.1%} repeated between them")
    found = walk(tree)
    met = found["met"]
    assert isinstance(met, list)
    print(
        f"fedmate run on a CPU: {found['imported']} modules imported, {len(met)} met before round 1, "
        f"{found['executed']} in all, {found['frames']} frames from main to local_update"
    )
    if asked.modules:
        print("\n".join(f"{i:3d} {name}" for i, name in enumerate(met, 1)))
    print(f"README: {len((tree / 'README.md').read_text().splitlines())} lines")


if __name__ == "__main__":
    main()

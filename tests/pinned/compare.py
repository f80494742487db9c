"""Compare what two commits of fedmate compute, in float64 to 1e-9, whatever their files are called.

    python tests/pinned/compare.py                       # every case, the old commit beside this tree
    python tests/pinned/compare.py --case 'method/*'     # some of them; `--list` names them
    python tests/pinned/compare.py --write               # figures of the old commit for CI: reference.json
    python tests/pinned/compare.py --gpu-timing          # the time of a round, both trees in turn

The old commit is checked out and installed in a cache folder; `--old` and `--old-python` name a tree and a Python that
are there already. What the old side gave is kept and used again, unless `--fresh` is given.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from tests.pinned import cases  # noqa: E402

COMMIT = "8060709"
TREE = HERE.parents[1]
REFERENCE = HERE / "reference.json"
OWN = re.compile(r"(/own|_own)\b[^:]*:")
"""A line about a figure on a client's own test."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedmate-pinned"
TOLERANCE = 1e-9
ON_GPU = 1e-6
"""There numbers are float32."""


@dataclass(frozen=True)
class Side:
    """A tree of fedmate, the Python that runs it, and a folder for results."""

    tree: Path
    python: Path
    results: Path


def run(side: Side, names: Sequence[str], jobs: int) -> None:
    """Run cases of one side, several processes at a time, and print what a process said that broke down."""
    side.results.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(side.tree / "src"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def work(part: Sequence[str]) -> None:
        line = [str(side.python), str(HERE / "cases.py"), "--out", str(side.results), *part]
        found = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        if found.returncode:
            print(f"{side.tree}: {found.stderr[-2000:]}", flush=True)

    # Each process starts PyTorch once and runs its cases in turn.
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, [part for i in range(jobs) if (part := names[i::jobs])]))


def path_of(side: Side, name: str) -> Path:
    """Return where the result of a case is written."""
    return side.results / f"{name.replace('/', '~')}.json"


def read(side: Side, name: str) -> dict[str, Any]:
    """Return the result of a case, its tensors by group."""
    path = path_of(side, name)
    if not path.exists():
        return {"figures": {}, "tensors": {}, "skipped": "", "error": "the process ended before the case was done"}
    content: dict[str, Any] = json.loads(path.read_text())
    content["tensors"] = {}
    with np.load(path.with_suffix(".npz")) as arrays:
        for key, array in arrays.items():
            content["tensors"].setdefault(key.rpartition("/")[0], []).append(array)
    return content


def digest(tensors: dict[str, list[NDArray[Any]]]) -> dict[str, dict[str, list[float]]]:
    """Return, for each group, type and shape, how many tensors there are, and sums that show a change of any value."""
    found: dict[str, dict[str, list[float]]] = {}
    for group, held in tensors.items():
        for array in held:
            flat = array.reshape(-1).astype(np.float64)
            waves = np.sin(1 + np.arange(flat.size))
            sums = [1, float(flat.sum()), float(flat @ flat), float(flat @ waves), float((flat * flat) @ waves)]
            kind = found.setdefault(group, {}).setdefault(f"{array.dtype}{list(array.shape)}", [0.0] * len(sums))
            kind[:] = [old + new for old, new in zip(kind, sums, strict=True)]
    return found


def compact(result: dict[str, Any]) -> dict[str, Any]:
    """Return what CI compares of a result: figures, those of `metrics.jsonl` once, and sums of tensors."""
    figures = {name: value for name, value in result["figures"].items() if name != "clients.csv"}
    return {"figures": figures, "tensors": digest(result["tensors"])}


def differences(old: Any, new: Any, tolerance: float, key: str = "") -> Iterator[str]:
    """Yield a line for each place in which two values of JSON differ; whole numbers are equal or not."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old.keys() | new.keys():
            if name not in old or name not in new:
                yield f"{key}/{name}: only in the {'new' if name in new else 'old'} tree"
            else:
                yield from differences(old[name], new[name], tolerance, f"{key}/{name}")
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
        if len(old) != len(new):
            yield f"{key}: {len(old)} values in the old tree, {len(new)} in the new one"
        for i, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from differences(one, other, tolerance, f"{key}[{i}]")
    elif isinstance(old, float) or isinstance(new, float):
        numbers = isinstance(old, int | float) and isinstance(new, int | float)
        if not numbers or not (
            math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance) or (old != old and new != new)
        ):
            yield f"{key}: {old} in the old tree, {new} in the new one"
    elif old != new:
        yield f"{key}: {old} in the old tree, {new} in the new one"


def unmatched(old: list[NDArray[Any]], new: list[NDArray[Any]], tolerance: float) -> Iterator[str]:
    """Yield a line for each tensor that has no equal in the other tree, which is then used up."""
    left: dict[tuple[Any, ...], list[NDArray[Any]]] = {}
    for array in new:
        left.setdefault((str(array.dtype), array.shape), []).append(array)
    for array in old:
        same = left.get((str(array.dtype), array.shape), [])
        gaps = [_gap(array, other) for other in same]
        nearest = min(range(len(gaps)), key=gaps.__getitem__) if gaps else None
        if nearest is None or gaps[nearest] > tolerance:
            found = "none of this kind" if nearest is None else f"the nearest is {gaps[nearest]:.2g} away"
            yield f"{array.dtype}{list(array.shape)} is only in the old tree; {found} is left in the new one"
        else:
            same.pop(nearest)
    for (kind, shape), arrays in left.items():
        if arrays:
            yield f"{len(arrays)} of {kind}{list(shape)} only in the new tree"


def _gap(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest difference of two tensors, relative where values are above 1; NaN equals NaN."""
    if np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        return 0.0
    wide, else_wide = one.astype(np.float64), other.astype(np.float64)
    gap = np.abs(wide - else_wide) / np.maximum(1, np.abs(wide))
    return float(gap.max()) if not np.isnan(gap).any() else math.inf


def compare(name: str, old: dict[str, Any], new: dict[str, Any]) -> tuple[str, list[str]]:
    """Return one word about a case, and what differs."""
    errors = [f"{side}: {one['error'].strip()}" for side, one in (("old", old), ("new", new)) if one["error"]]
    if errors:
        return "FAILED", errors
    if old["skipped"] or new["skipped"]:
        return "skipped", [f"{side}: {one['skipped']}" for side, one in (("old", old), ("new", new)) if one["skipped"]]
    tolerance = ON_GPU if name.startswith("gpu/") else TOLERANCE
    found = list(differences(old["figures"], new["figures"], tolerance))
    for group in sorted(old["tensors"].keys() | new["tensors"].keys()):
        lines = unmatched(old["tensors"].get(group, []), new["tensors"].get(group, []), tolerance)
        found += [f"{group}: {line}" for line in lines]
    return ("DIFFERS" if found else "same"), found


def report(names: Sequence[str], old: Side, new: Side, shown: int) -> bool:
    """Print a line for each case; return whether all were the same."""
    words = []
    for name in names:
        ours, theirs = read(old, name), read(new, name)
        word, lines = compare(name, ours, theirs)
        if word == "DIFFERS" and name in cases.INTENDED:
            word, lines = "intended", [cases.INTENDED[name]]
        elif word == "DIFFERS" and not cases.is_calibrated(name) and all(OWN.search(line) for line in lines):
            word, lines = "intended", [cases.MASKED]
        words.append(word)
        took = f"{ours.get('seconds', 0):.1f} s, {theirs.get('seconds', 0):.1f} s"
        print(f"{word:8} {name}  ({took})", *(f"\n    {line}" for line in lines[:shown]), sep="", flush=True)
        if len(lines) > shown:
            print(f"    ... and {len(lines) - shown} more")
    print(", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))))
    return not {"FAILED", "DIFFERS"} & set(words)


def old_side(asked: argparse.Namespace) -> Side:
    """Return the old tree, checked out and installed if it has to be."""
    tree = asked.old
    if tree is None:
        tree = CACHE / asked.commit
        if not tree.exists():
            line = ["git", "-C", TREE, "worktree", "add", "--force", "--detach", tree, asked.commit]
            if subprocess.run(line, capture_output=True, check=False).returncode:
                sys.exit(
                    f"Commit `{asked.commit}` is not in this clone's history; fetch it, or name a tree by `--old`."
                )
    python = asked.old_python
    if python is None:
        home = CACHE / f"{asked.commit}-venv"
        python = home / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", home], check=True)
            extra = ",flower" if find_spec("flwr") else ""
            wanted = ["--constraint", tree / "constraints.txt", "--editable", f"{tree}[images{extra}]"]
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    # What it gave holds for this commit, these cases and this Python.
    mark = hashlib.sha256((HERE / "cases.py").read_bytes() + str(python).encode() + str(tree).encode()).hexdigest()
    return Side(tree.absolute(), python.absolute(), CACHE / "results" / mark[:16])


def write(names: Sequence[str], old: Side, commit: str) -> None:
    """Write what CI compares with."""
    import torch

    found = {name: read(old, name) for name in names}
    if bad := [name for name, one in found.items() if one["error"]]:
        sys.exit(f"{bad[0]}: {found[bad[0]]['error']}")
    about = {"commit": commit, "torch": torch.__version__, "command": "python tests/pinned/compare.py --write"}
    rounded = json.loads(
        json.dumps({**about, "cases": {name: compact(one) for name, one in found.items()}}),
        parse_float=lambda text: float(f"{float(text):.12g}"),
    )
    lines = [f'"{name}": {json.dumps(one, separators=(",", ":"))}' for name, one in rounded.pop("cases").items()]
    REFERENCE.write_text(f'{json.dumps(rounded)[:-1]}, "cases": {{\n' + ",\n".join(lines) + "\n}}\n")


def time_rounds(old: Side, new: Side, repeat: int) -> None:
    """Print the milliseconds of a round in the paper's setting, both trees in turn, one process at a time."""
    for method in ("fedavg", "fedmate"):
        taken: dict[Path, list[float]] = {old.tree: [], new.tree: []}
        for _ in range(repeat):
            for side in (old, new):
                run(side, [f"timing/{method}"], 1)
                found = read(side, f"timing/{method}")
                if found["error"]:
                    sys.exit(found["error"])
                taken[side.tree].append(found["figures"]["milliseconds"])
        before, after = (statistics.median(times) for times in taken.values())
        print(f"{method}: {before:.1f} ms before, {after:.1f} ms after ({100 * (after / before - 1):+.1f} %) {taken}")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", metavar="GLOB", help="these cases only; repeatable")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--commit", default=COMMIT)
    parser.add_argument("--old", type=Path, metavar="TREE", help="a tree of the old commit")
    parser.add_argument("--old-python", type=Path, metavar="PYTHON", help="the Python that runs it")
    parser.add_argument("--new", type=Path, default=TREE, metavar="TREE", help="the tree to compare; this one")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, each with one thread")
    parser.add_argument("--fresh", action="store_true", help="run the old side again")
    parser.add_argument("--shown", type=int, default=6, help="differences to print for a case")
    parser.add_argument("--write", action="store_true", help=f"write {REFERENCE.name} from the old side")
    parser.add_argument("--gpu-timing", action="store_true", help="time rounds on a GPU")
    asked = parser.parse_args()
    names = [name for name in cases.CASES if any(fnmatch.fnmatch(name, one) for one in asked.case or ["*"])]
    if asked.list:
        return print("\n".join(names))
    if not names:
        sys.exit("No case has such a name; `--list` names them.")
    old, here = old_side(asked), CACHE / "results" / f"new-{os.getpid()}"
    new = Side(asked.new.absolute(), Path(sys.executable), here)
    if asked.gpu_timing:
        return time_rounds(old, new, 3)
    if asked.write:
        names = [name for name in names if cases.CASES[name].in_ci]
    run(old, [name for name in names if asked.fresh or not path_of(old, name).exists()], asked.jobs)
    if asked.write:
        return write(names, old, asked.commit)
    run(new, names, asked.jobs)
    same = report(names, old, new, asked.shown)
    shutil.rmtree(here)
    sys.exit(not same)


if __name__ == "__main__":
    main()

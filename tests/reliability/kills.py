"""Kill runs with SIGKILL, resume them, and compare every record with that of a run that nobody touched.

    python tests/reliability/kills.py points           at every write, flush, rename, ... of a record and a checkpoint
    python tests/reliability/kills.py random --kills 30     at random instants

Each process is a fork of this one that calls the command's own `main`, so that a trial costs a fraction of a second
instead of importing PyTorch anew. To die at a point, a child wraps the operations of `os` that `fedmate.storage`
uses; the package itself knows nothing of fail-points. Prints a summary as JSON; the status is 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from fedmate import cli, storage
from fedmate.data import DATASETS, Arrays, Dataset, Samples
from fedmate.data.mnist import Digits
from fedmate.experiment import prepare
from fedmate.experiment.checkpoint import Manifest

SETTINGS = (
    "partition.clients=5",
    "partition.name=iid",
    "partition.examples=8",
    "participation=0.4",
    "rounds=4",
    "eval_every=2",
    "checkpoint_every=2",
    "training.epochs=1",
    "model.width=8",
)
"""Small, and with everything that is written: clients that sit out, two checkpoints, two evaluations, diagnostics."""

OPERATIONS = ("open", "write", "fsync", "replace", "rename", "link", "unlink", "truncate")
"""What `fedmate.storage` asks of the operating system and what changes the disk."""


@dataclass(frozen=True, kw_only=True)
class Tiny(Dataset):
    """A few digits: what is tried here is not learning."""

    def load(self, folder: Path) -> Arrays:
        """Take the first of them."""
        everything = Digits().load(Path())
        return everything._replace(train=Samples(everything.train.x[:60], everything.train.y[:60]))


class Point(NamedTuple):
    """Where to die: `before`, `half` way through or `after` the `number`-th operation."""

    number: int
    moment: str


# -------------------- processes


def nothing() -> None:
    """Do nothing."""


def fork(
    arguments: Sequence[str], prepare: Callable[[], object] = nothing, conclude: Callable[[], object] = nothing
) -> int:
    """Start `fedmate ARGUMENTS...` in a process of its own and return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        sys.argv = ["fedmate", *arguments]
        prepare()
        cli.main()
    except SystemExit as end:
        conclude()
        status = end.code if isinstance(end.code, int) else 1
    finally:
        os._exit(status)


def finish(process: int) -> int:
    """Wait for a process and return its status; a killed one has minus the signal's number."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def command(method: str, backend: str, folder: Path) -> list[str]:
    """Return the words that begin a run."""
    settings = [word for setting in (*SETTINGS, f"backend={backend}") for word in ("--set", setting)]
    return ["run", "--dataset", "tiny", "--method", method, *settings, "--out", str(folder)]


def go_on(begin: Sequence[str], folder: Path) -> list[str]:
    """Return the words that continue a run, or begin it if it was killed before its folder existed."""
    return ["run", "--resume", str(folder)] if folder.exists() else list(begin)


# -------------------- fail-points


def die() -> None:
    """End as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(reached: Callable[[str, str], None]) -> None:
    """Let `fedmate.storage` call `reached(operation, moment)` around everything it asks of the operating system."""

    files: dict[int, str] = {}

    def around(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any) -> Any:
            if name == "open" and not rest[0] & os.O_CREAT:
                files[descriptor := operation(first, *rest)] = Path(first).name
                return descriptor
            what = f"{name} {files[first] if isinstance(first, int) else Path(first).name}"
            reached(what, "before")
            if name == "write":
                written = operation(first, rest[0][: len(rest[0]) // 2])
                reached(what, "half")
                answer: Any = written + operation(first, rest[0][written:])
            else:
                answer = operation(first, *rest)
            if name == "open":
                files[answer] = Path(first).name
            reached(what, "after")
            return answer

        return call

    names = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
    names |= {name: around(name, names[name]) for name in OPERATIONS}
    vars(storage)["os"] = SimpleNamespace(**names)


def record_points(path: Path) -> None:
    """Write down every point that a process passes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    count = 0

    def reached(name: str, moment: str) -> None:
        nonlocal count
        count += moment == "before"
        os.write(descriptor, f"{count} {moment} {name}\n".encode())

    wrap(reached)


def die_at(point: Point) -> None:
    """Die at one point."""
    count = 0

    def reached(name: str, moment: str) -> None:
        nonlocal count
        count += moment == "before"
        if (count, moment) == point:
            die()

    wrap(reached)


# -------------------- comparing records


def differences(found: Path, expected: Path) -> list[str]:
    """Return what of a record differs from another one's, apart from times."""
    names = {path.relative_to(folder) for folder in (found, expected) for path in folder.rglob("*") if path.is_file()}
    differing = []
    for name in sorted(names):
        if not (found / name).exists() or not (expected / name).exists():
            differing.append(f"{name} is in one of them only")
        elif timeless(found / name) != timeless(expected / name):
            differing.append(f"{name} differs")
    return differing


def timeless(path: Path) -> object:
    """Return a file's content without what depends on the clock."""
    content = path.read_bytes()
    if path.name == "summary.json":
        return {key: value for key, value in json.loads(content).items() if key != "seconds"}
    if path.name == "metrics.jsonl":
        rows = [json.loads(line) for line in content.decode().splitlines()]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
    if path.name == "checkpoint.json":
        manifest = Manifest.from_json(content)
        standing = {**vars(manifest.state), "seconds": 0, "files": manifest.state.files["rounds.csv"]}
        return (manifest.experiment, manifest.versions, standing)
    return content


# -------------------- trials


def warm_up(folder: Path) -> None:
    """Import in this process what a run imports, so that its forks need not; nothing is trained in this process."""
    log, here = folder / "modules", set(sys.modules)

    def write_modules() -> None:
        log.write_text("\n".join(sorted(set(sys.modules) - here)))

    finish(fork(command("fedmate", "vectorised", folder / "warm"), conclude=write_modules))
    for name in log.read_text().splitlines():
        with suppress(Exception):
            importlib.import_module(name)


class Laboratory:
    """A folder for trials, and the records of untouched runs to compare with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost: list[str] = []
        self._count = 0

    def fresh(self) -> Path:
        """Return a place for a new run, after removing the last one."""
        shutil.rmtree(self.folder / f"trial{self._count}", ignore_errors=True)
        self._count += 1
        return self.folder / f"trial{self._count}"

    def reference(self, method: str, backend: str) -> Path:
        """Return the record of a run that nobody touched."""
        folder = self.folder / f"{method}-{backend}"
        if not folder.exists() and finish(fork(command(method, backend, folder))) != 0:
            raise SystemExit(f"the untouched run of {method} failed")
        return folder

    def judge(self, what: str, folder: Path, begin: Sequence[str], reference: Path) -> None:
        """Let a killed run go on to its end, and compare it."""
        status = finish(fork(go_on(begin, folder)))
        found = [f"resuming ended with status {status}"] if status else differences(folder, reference)
        litter = [path.name for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}.")]
        for path in litter:
            shutil.rmtree(folder.parent / path)
        self.lost += [f"{what}: {difference}" for difference in found]


def try_points(laboratory: Laboratory, method: str, share: tuple[int, int], only: str) -> dict[str, Any]:
    """Kill a new run, and one that is being resumed, at each of their points whose names contain `only`."""
    reference = laboratory.reference(method, "sequential")
    tried: Counter[str] = Counter()
    folder = laboratory.fresh()
    every = {"run": passed(laboratory, command(method, "sequential", folder))}
    # Where a run has written a row of its third round, of which the checkpoint after the second does not know.
    middle = third_round(every["run"])
    finish(fork(command(method, "sequential", folder), lambda: die_at(middle)))
    every["resume"] = passed(laboratory, go_on([], folder))
    for scenario, points in every.items():
        for point, name in [(point, name) for point, name in points if only in name][share[0] :: share[1]]:
            folder = laboratory.fresh()
            begin = command(method, "sequential", folder)
            if scenario == "resume":
                finish(fork(begin, lambda: die_at(middle)))
            what = f"{scenario}, {point.moment} {name}, operation {point.number}"
            status = finish(fork(go_on(begin, folder), partial(die_at, point)))
            if status != -signal.SIGKILL:
                laboratory.lost.append(f"{what}: not reached")
            laboratory.judge(what, folder, begin, reference)
            tried[name.split()[0]] += 1
    return {"points": tried.total(), "by_operation": dict(tried)}


def passed(laboratory: Laboratory, arguments: Sequence[str]) -> list[tuple[Point, str]]:
    """Return the points that a process passes, each with the operation's name, and remove what it made."""
    log = laboratory.folder / "points"
    log.unlink(missing_ok=True)
    if finish(fork(arguments, lambda: record_points(log))) != 0:
        raise SystemExit(f"`fedmate {' '.join(arguments)}` failed")
    laboratory.fresh()
    lines = [line.split(maxsplit=2) for line in log.read_text().splitlines()]
    return [(Point(int(number), moment), name) for number, moment, name in lines]


def third_round(points: list[tuple[Point, str]]) -> Point:
    """Return the point after the third time that something was added to `rounds.csv`."""
    opened = [point.number for point, name in points if name == "open rounds.csv" and point.moment == "after"]
    return next(point for point, _ in points if point.number > opened[2] and point.moment == "after")


def try_random(laboratory: Laboratory, kills: int, seed: int) -> dict[str, Any]:
    """Kill runs at random instants, again and again while they are resumed."""
    chance = random.Random(seed)
    done = trials = finished_early = 0
    kinds = [(method, backend) for method in ("fedmate", "fedrep") for backend in ("sequential", "vectorised")]
    lengths: dict[tuple[str, str], float] = {}
    while done < kills:
        kind = kinds[trials % len(kinds)]
        if kind not in lengths:
            start = time.perf_counter()
            laboratory.reference(*kind)
            lengths[kind] = time.perf_counter() - start
        folder = laboratory.fresh()
        begin = command(*kind, folder)
        trials += 1
        for _ in range(chance.randint(1, 3)):
            if done == kills or (folder / "summary.json").exists():
                break
            process = fork(go_on(begin, folder))
            time.sleep(chance.uniform(0, lengths[kind]))
            os.kill(process, signal.SIGKILL)
            killed = finish(process) == -signal.SIGKILL
            done, finished_early = done + killed, finished_early + (not killed)
        laboratory.judge(f"{kind}, trial {trials}", folder, begin, laboratory.reference(*kind))
    return {"kills": done, "trials": trials, "finished_before_the_kill": finished_early}


def main() -> None:
    """Read the words, try, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("points", "random"))
    parser.add_argument("--method", default="fedmate")
    parser.add_argument("--share", default="0/1", help="K/N: of the points every N-th, beginning at the K-th")
    parser.add_argument(
        "--only", default="", help="only points whose operation contains this, such as `checkpoint.json`"
    )
    parser.add_argument("--sabotage", action="store_true", help="replace files in place, to see that this is noticed")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # A forked child has no other threads than the one that forked.
    torch.set_num_threads(1)
    DATASETS._rows["tiny"] = Tiny
    # Somebody may edit the checkout meanwhile.
    prepare._commit = lambda: None
    if options.sabotage:
        storage.replace = storage.write  # type: ignore[assignment]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=memory if (memory := Path("/dev/shm")).is_dir() else None) as folder:
        warm_up(Path(folder))
        laboratory = Laboratory(Path(folder))
        if options.what == "points":
            first, of = map(int, options.share.split("/"))
            report = try_points(laboratory, options.method, (first, of), options.only)
        else:
            report = try_random(laboratory, options.kills, options.seed)
    report |= {"lost": len(laboratory.lost), "seconds": round(time.perf_counter() - start, 1)}
    sys.stdout.write(json.dumps(report | {"what_was_lost": laboratory.lost}, indent=2) + "\n")
    sys.exit(bool(laboratory.lost))


if __name__ == "__main__":
    main()

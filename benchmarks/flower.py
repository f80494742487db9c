"""What Flower costs: in a simulation, in a deployment over TLS, and in bytes.

Claims: a run over Flower gives the numbers of `sequential`, and a message has as many bytes of arrays as the ledger
counts; this stops where one of them fails. What it costs is in the tables: seconds of the best round, for machines are
shared, and per message, which is a request with its answer. Neither the first round counts, in which everything starts,
nor the last, which is evaluated. `--out` keeps every round. On Linux, where `/proc` tells what processes use.

    python -m benchmarks.flower --out flower.json
    python -m benchmarks.flower --parts simulation,bytes --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch

from benchmarks.baselines.flower import Clock
from benchmarks.case import Case, make_federation, make_method, make_randomness
from benchmarks.processes import marked
from benchmarks.tables import describe
from fedmate import storage
from fedmate.backends.base import itemise
from fedmate.core import flatten, select, unflatten
from fedmate.errors import UserError, nearest
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import load_file, parse_set
from fedmate.experiment.prepare import begin
from fedmate.experiment.record import Record
from fedmate.experiment.request import Request, compose
from fedmate.experiment.run import Observer, run
from fedmate.flower import messages
from fedmate.flower.client import Client
from fedmate.flower.client_state import ClientState
from fedmate.flower.environment import need_flower
from fedmate.flower.messages import write_reply, write_request

if TYPE_CHECKING:
    from tests.flower.federation import Federation

Row: TypeAlias = dict[str, Any]

APP = Path(__file__).parents[1] / "flower"
METHODS, CLIENTS, SITES = ("fedavg", "fedmate"), 20, 3


def settings(method: str, clients: int, rounds: int) -> list[str]:
    """Return how the app's experiment on digits is changed: there are two rounds beside those that count."""
    length = [f"{name}={rounds + 2}" for name in ("rounds", "eval_every")]
    return [f"method.name={method}", f"partition.clients={clients}", "device=cpu", *length]


@final
class Stopwatch(Observer):
    """Notes when rounds end."""

    def started(self, built: Built, done: int) -> None:
        """Begin."""
        self.clock = Clock()

    def round_done(self, done: int, primary: float | None) -> None:
        """Note a round."""
        self.clock.tick()

    def warned(self, sentence: str) -> None:
        """Pass it on."""
        print(sentence, file=sys.stderr)


def timed(changes: Sequence[str], backend: str, folder: Path) -> Row:
    """Run the app's experiment on a back end, and time its rounds."""
    changed = parse_set([*changes, f"backend={backend}"])
    built, watch = build(compose(Request(load_file(APP / "digits.toml"), settings=changed))[0]), Stopwatch()
    begin(folder, built)
    with marked():
        run(built, folder, watch)
    return figures(watch.clock.walls, [used.seconds for used in watch.clock.used])


def figures(walls: Sequence[float], used: Sequence[float]) -> Row:
    """Return what rounds took: `walls` of all, and of processors what was `used` before the first and after each."""
    row: Row = {}
    for kind, taken in (("seconds", walls), ("cpu_seconds", [b - a for a, b in itertools.pairwise(used)])):
        best = min(taken[1:-1])
        row |= {f"{kind}_per_round": best, f"{kind}_to_start": taken[0] - best, f"{kind}_of_rounds": [*taken[1:-1]]}
    return row


def per_message(row: Row, base: Row, messages: int) -> Row:
    """Return what a round takes more than that of `base`, for each of its messages."""
    more = {kind: row[f"{kind}_per_round"] - base[f"{kind}_per_round"] for kind in ("seconds", "cpu_seconds")}
    return {f"more_{kind}_per_message": value / messages for kind, value in more.items()}


def check_same(found: Path, reference: Path) -> None:
    """Raise `RuntimeError` unless two runs gave the same numbers."""
    records = [Record(reference), Record(found)]
    numbers = [(one.rounds, [{**row, "seconds": None} for row in one.metrics]) for one in records]
    if numbers[0] != numbers[1]:
        raise RuntimeError(f"{found.name} and {reference.name} gave different numbers")


def measure_simulation(rounds: int, folder: Path) -> Iterator[Row]:
    """Run digits with 20 clients in this process, and in Flower's simulation."""
    alone = dict[str, Row]()
    # In this order: Flower leaves threads behind in this process.
    for backend, method in itertools.product(("sequential", "flower"), METHODS):
        row = timed(settings(method, CLIENTS, rounds), backend, folder / f"{method}-{backend}")
        check_same(folder / f"{method}-{backend}", folder / f"{method}-sequential")
        more = per_message(row, alone.setdefault(method, row), CLIENTS)
        yield {"method": method, "back_end": backend, **row, **more}


def measure_deployment(rounds: int, folder: Path) -> Iterator[Row]:
    """Run digits on a SuperLink and three SuperNodes, each with its share of the data."""
    from tests.flower.federation import Federation

    storage.make_folder(folder / "federation")
    nodes = [f'partition-id={i} num-partitions={SITES} state="{folder / "states"}"' for i in range(SITES)]
    with Federation(folder / "federation", nodes) as federation:
        for method in METHODS:
            changes, out = settings(method, SITES, rounds), folder / method
            row = deployed(federation, changes, out, rounds + 2)
            alone = timed(changes, "sequential", folder / f"{method}-sequential")
            check_same(out, folder / f"{method}-sequential")
            yield {"method": method, **row, **per_message(row, alone, SITES), "sequential": alone}


def deployed(federation: Federation, changes: Sequence[str], out: Path, rounds: int) -> Row:
    """Run the app on sites, and look at it after each round."""
    looks = [look(federation)]
    config: Row = {"experiment": "digits", "set": " ".join(changes), "out": str(out), "min-clients": SITES}
    process = federation.run(out.name, APP, config)
    for number in range(1, rounds + 1):
        while not (out / "checkpoint" / f"server-{number:06d}.safetensors").exists() and process.poll() is None:
            time.sleep(0.1)
        looks.append(look(federation))
    if process.wait() or not Record(out).finished:
        raise RuntimeError(federation.log(out.name))
    times, used, ended, crossed = zip(*looks, strict=True)
    counted = [row for row in Record(out).rounds if 1 < row["round"] < rounds]
    arrays = sum(size or 0 for row in counted for name, size in row.items() if name.startswith(("up_", "down_")))
    sums = {"client_cpu_seconds": ended[-2] - ended[1], "bytes": crossed[-2] - crossed[1], "array_bytes": arrays}
    row = figures([b - a for a, b in itertools.pairwise(times)], used)
    return row | {f"{name}_per_message": value / len(counted) for name, value in sums.items()}


def look(federation: Federation) -> tuple[float, float, float, int]:
    """Return the time, what processes have used, what those that have ended, as clients' do, and bytes that crossed."""
    alive = federation.alive()
    crossed = sum(len(request) + len(response) for request, response in federation.gate.crossings)
    return time.perf_counter(), processor_seconds(alive), processor_seconds(alive, slice(13, 15)), crossed


def processor_seconds(processes: Collection[int], fields: slice = slice(11, 15)) -> float:
    """Return what processes have used until now, with those that they started and that have ended."""
    ticks = 0
    for number in processes:
        # Counted behind the name, which may hold anything. A process may have ended by now.
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[fields]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_bytes(rounds: int, folder: Path) -> Iterator[Row]:
    """Weigh a request and its answer with the CIFAR CNN; all parts of a method's messages cross in its first round."""
    for name in METHODS:
        case, token = Case(method=name, clients=1, samples=50, epochs=1), "ab" * 16
        method, federation, key = make_method(case), make_federation(case), make_randomness(case)
        store = ClientState(folder / name, token, 0)
        client = Client(0, 1, method, federation.clients[0], federation.test, key, store)
        server = method.init_server(method.setup.model.init_params(), 1, key)
        download = select(method.download(server, torch.tensor(0)), method.wire(0).down)
        request = messages.Request("train", 0, False, flatten(download))
        yield {"method": name, "message": "request"} | weigh(write_request(token, 0, request), itemise(download))
        answer = client.answer(request)
        yield {"method": name, "message": "answer"} | weigh(write_reply(answer), itemise(unflatten(answer.upload)))


def weigh(content: Any, ledger: dict[str, int]) -> Row:
    """Return the bytes of arrays as they are counted and as they are sent, and of the message, piece by piece."""
    from flwr.app import Message, Metadata
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    node, number = 2**63 + 1, "0" * 64  # as long as those of a real message
    message = Message(content, metadata=Metadata(node, number, node, node, number, "1", time.time(), 600.0, "train"))
    arrays = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    if arrays != sum(ledger.values()):
        raise RuntimeError(f"a message has {arrays} bytes of arrays, and the ledger {ledger}")
    whole = sum(len(piece.deflate()) for piece in get_all_nested_objects(message).values())
    return {"ledger": ledger, "array_bytes": arrays, "message_bytes": whole, "more_bytes": whole - arrays}


PARTS = {"simulation": measure_simulation, "deployment": measure_deployment, "bytes": measure_bytes}


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table for documents, without what is a list of its own."""
    shown = [{name: cell for name, cell in row.items() if not isinstance(cell, list | dict)} for row in rows]
    lines = [[name.replace("_", " ") for name in shown[0]], ["---" for _ in shown[0]]]
    lines += [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure(parts: Sequence[str], rounds: int, out: Path | None) -> None:
    """Measure parts, print their tables and keep everything, or raise `UserError`."""
    for part in {*parts} - {*PARTS}:
        raise UserError(f"`--parts` has `{part}`, which is no part; {nearest(part, PARTS)}")
    if rounds < 1:
        raise UserError(f"`--rounds` is {rounds}; give how many are to count, at least 1.")
    if out is not None and out.exists():
        raise UserError(f"`{out}` exists already; give `--out` another name.")
    need_flower(simulation="simulation" in parts)
    results: Row = {"about": describe("cpu", rounds)}
    for part in parts:
        # What this has started ends with it. Again and again, for Ray takes signals over.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with tempfile.TemporaryDirectory() as folder:
            results[part] = list(PARTS[part](rounds, Path(folder)))
        print(f"{part}\n\n{table(results[part])}\n", flush=True)
    if out is not None:
        storage.write_new(out, json.dumps(results, indent=1).encode() + b"\n")


def main() -> None:
    """Do what the command asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of %(default)s")
    parser.add_argument("--rounds", type=int, default=10, help="how many count (%(default)s)")
    parser.add_argument("--out", type=Path, help="a JSON file for everything")
    asked = parser.parse_args()
    try:
        measure(asked.parts.split(","), asked.rounds, asked.out)
    except UserError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()

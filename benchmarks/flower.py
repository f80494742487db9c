"""What Flower costs: in a simulation, and in bytes.

Claims: a run over Flower gives the numbers of `sequential`, and a message has as many bytes of arrays as the run
counts; this stops where one of them fails. The tables have seconds of the best round, for machines are shared. The
first round does not count, in which everything starts, nor the last, which is evaluated. It runs on Linux, where
`/proc` tells what processes use.

    python -m benchmarks.flower --rounds 10 --out flower.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import torch

from benchmarks.baselines.flower import Clock, marked
from benchmarks.case import Case, make_federation, make_method, make_randomness
from benchmarks.tables import describe
from fedmate import storage
from fedmate.backends.base import itemise
from fedmate.core import flatten, select, unflatten
from fedmate.errors import UserError
from fedmate.experiment.build import build
from fedmate.experiment.callback import Callback, RoundSummary, Run
from fedmate.experiment.config import load_file, parse_set
from fedmate.experiment.prepare import Request, begin, compose
from fedmate.experiment.record import Record
from fedmate.experiment.run import run
from fedmate.flower import messages, need_flower
from fedmate.flower.backend import Flower
from fedmate.flower.client import Client, ClientState
from fedmate.flower.messages import write_reply, write_request

Row: TypeAlias = dict[str, Any]

APP = Path(__file__).parents[1] / "flower"
METHODS, CLIENTS = ("fedavg", "fedmate"), 20
KINDS = ("seconds", "cpu_seconds")


def settings(method: str, clients: int, rounds: int) -> list[str]:
    """Return how the app's experiment on digits is changed: there are two rounds beside those that count."""
    length = [f"{name}={rounds + 2}" for name in ("rounds", "eval_every")]
    return [f"method.name={method}", f"partition.clients={clients}", "device=cpu", *length]


@final
class Stopwatch(Callback):
    """Notes when rounds end."""

    def run_started(self, run: Run) -> None:
        """Begin."""
        self.clock = Clock()

    def round_ended(self, summary: RoundSummary) -> None:
        """Note a round."""
        self.clock.tick()

    def warned(self, message: str) -> None:
        """Pass it on."""
        print(message, file=sys.stderr)


def timed(changes: Sequence[str], backend: str, folder: Path) -> Row:
    """Run the app's experiment on a back end, and time its rounds."""
    changed = parse_set([*changes, f"backend={backend}"])
    built, watch = build(compose(Request(load_file(APP / "digits.toml"), settings=changed))[0]), Stopwatch()
    begin(folder, built)
    with marked():
        run(built, folder, [watch])
    return figures(watch.clock.walls, [used.seconds for used in watch.clock.used])


def figures(walls: Sequence[float], used: Sequence[float]) -> Row:
    """Return what rounds took: `walls` of all, and of processors what was `used` before the first and after each."""
    row: Row = {}
    for kind, taken in zip(KINDS, (walls, [b - a for a, b in itertools.pairwise(used)]), strict=True):
        best = min(taken[1:-1])
        row |= {f"{kind}_per_round": best, f"{kind}_to_start": taken[0] - best, f"{kind}_of_rounds": [*taken[1:-1]]}
    return row


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
        base = alone.setdefault(method, row)
        more = {kind: (row[f"{kind}_per_round"] - base[f"{kind}_per_round"]) / CLIENTS for kind in KINDS}
        messages = {f"more_{kind}_per_message": value for kind, value in more.items()}
        yield {"method": method, "back_end": backend, **row, **messages}


def measure_bytes(rounds: int, folder: Path) -> Iterator[Row]:
    """Weigh a request and its answer with the CIFAR CNN; all parts of a method's messages cross in its first round."""
    for name in METHODS:
        case, token = Case(method=name, clients=1, samples=50, epochs=1), "ab" * 16
        method, federation, key = make_method(case), make_federation(case), make_randomness(case)
        store = ClientState(folder / name, token, 0)
        client = Client(0, Flower(method, federation, key), store, federation.clients[0], federation.tests(0))
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


def table(rows: Sequence[Row]) -> str:
    """Return rows as a table for documents, without what is a list of its own."""
    shown = [{name: cell for name, cell in row.items() if not isinstance(cell, list | dict)} for row in rows]
    lines = [[name.replace("_", " ") for name in shown[0]], ["---" for _ in shown[0]]]
    lines += [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in shown]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure everything, print tables and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how many count (%(default)s)")
    parser.add_argument("--out", type=Path, help="a new JSON file for everything")
    asked = parser.parse_args()
    try:
        need_flower(simulation=True)
        if asked.out is not None:
            storage.check_new(asked.out)
    except UserError as error:
        sys.exit(f"Error: {error}")
    results: Row = {"about": describe("cpu", asked.rounds)}
    for name, part in (("simulation", measure_simulation), ("bytes", measure_bytes)):
        with tempfile.TemporaryDirectory() as folder:
            results[name] = list(part(asked.rounds, Path(folder)))
        print(f"{name}\n\n{table(results[name])}\n", flush=True)
    if asked.out is not None:
        storage.write_new(asked.out, json.dumps(results, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()

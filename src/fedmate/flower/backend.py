"""The back end `flower`: clients in processes of their own, which a transport reaches.

By default they are the virtual clients of a simulation on this machine; the server of a Flower app reaches sites.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias, final

import torch

from fedmate import storage
from fedmate.backends.base import NOT_FINITE, Backend, Crossed, Round, itemise
from fedmate.backends.client import ClientResult, declared, judge
from fedmate.backends.precision import Precision
from fedmate.backends.validation import MOST, NotFiniteError, RefusedError, validate_upload
from fedmate.core import EvaluationData, Federation, Method, Tree, flatten, select, stack, tree_map
from fedmate.core.shapes import trace_update
from fedmate.errors import StoppedError, UserError
from fedmate.experiment.checkpoint import Checkpoint
from fedmate.flower import need_flower
from fedmate.flower.client import ClientState
from fedmate.flower.messages import Answer, ErrorReply, Kind, Reply, Request, from_numbers, sentence
from fedmate.flower.simulation import VIRTUAL, simulated
from fedmate.flower.transport import Transport

IDENTITY = "federation.json"
"""The file of a run's folder with the token by which its clients know it."""

RETRIES = 2
"""How often a round is asked for again that too few have answered."""


Connect: TypeAlias = "Callable[[Flower, Path, str], AbstractContextManager[Transport]]"
"""Makes the clients of the run in a folder reachable, which know it by a token."""


@final
class Flower(Backend):
    """Clients that Flower runs, which keep their states: a simulation unless `connect` is set to reach sites."""

    is_remote = True
    connect: Connect = staticmethod(simulated)
    transport: Transport
    _like: Tree | None = None
    _tests_like: Tree | None = None

    @classmethod
    def refusal(cls, method: Method, federation: Federation, precision: Precision = "strict") -> str | None:
        """Run everything: each client runs the reference."""
        need_flower()
        return None

    @classmethod
    def stored_client(cls, folder: Path, client: int, round_number: int, initial: Tree) -> Tree:
        """Return the state of a virtual client; sites keep theirs elsewhere, which raises `UserError`."""
        place = folder / VIRTUAL
        if not place.is_dir():
            return super().stored_client(folder, client, round_number, initial)
        return ClientState(place, identity(folder), client).begin(round_number, initial)

    @contextmanager
    def at_work(self, folder: Path) -> Iterator[None]:
        """Make clients reachable for the rounds of the run in `folder`."""
        with self.connect(self, folder.absolute(), identity(folder)) as self.transport:
            yield

    def train(self, server: Tree, task: Round) -> tuple[ClientResult, Crossed]:
        """Ask the participants to train; ask again those that could not, if too few answered."""
        self.reasons.clear()
        downloads = self._downloads(server, task.number, task.participants)
        like, received = self._upload_like(server, task.number), dict[int, ClientResult]()
        wanted = min(self.min_clients, len(downloads))
        for _ in range(1 + RETRIES):
            left = {i: down for i, down in downloads.items() if i not in received}
            for i, reply in self._ask("train", task, left, wanted - len(received)).items():
                if isinstance(reply, Answer) and (result := self._receive(i, reply, like)) is not None:
                    received[i] = result
            if len(received) >= wanted:
                nothing, size = self._result(like, [math.nan] * 2, None, valid=False), itemise(like)
                crossed = [(itemise(down), size if i in received else {}) for i, down in downloads.items()]
                results = ((down, received.get(i, nothing)) for i, down in downloads.items())
                rows = [one._replace(declared=declared(down, one.upload))._asdict() for down, one in results]
                return ClientResult(**stack(rows)), crossed
        reasons = "; ".join(f"client {i}: {self.reasons[i]}" for i in downloads if i not in received)
        raise StoppedError(
            f"round {task.number + 1} was asked for {1 + RETRIES} times, but {len(received)} of {len(downloads)} "
            f"clients answered as they should, and `min_clients` is {self.min_clients} ({reasons})"
        )

    def view(self, server: Tree, task: Round) -> Tree:
        """Ask every client to evaluate the model that the next broadcast gives it."""
        everyone = range(len(self.federation.clients))
        downloads = self._downloads(server, task.number + 1, everyone)
        replies = self._ask("view", task, downloads, self.min_clients)
        metrics = {i: reply.metrics for i, reply in replies.items() if isinstance(reply, Answer)}
        named = Counter(name for reported in metrics.values() for name in reported if name not in ("post", "global"))
        # A view that most report is the method's own; a few clients cannot bring others into the record.
        most = [name for name, count in named.items() if 2 * count > len(everyone) and name.isidentifier()]
        return {
            name: stack([self._tests(metrics.get(i, {}).get(name)) for i in everyone])
            for name in dict.fromkeys(["pre", *most])
        }

    def _downloads(self, server: Tree, round_number: int, clients: Iterable[int]) -> dict[int, Tree]:
        device = self.key.device
        return {i: self.download(server, round_number, torch.tensor(i, device=device)) for i in clients}

    def _ask(self, kind: Kind, task: Round, downloads: Mapping[int, Tree], wanted: int) -> dict[int, Reply]:
        requests = {i: Request(kind, task.number, task.evaluate, flatten(down)) for i, down in downloads.items()}
        replies = self.transport.send(requests, wanted)
        for i, reply in sorted(replies.items()):
            if isinstance(reply, ErrorReply) and kind == "train":
                self.reasons[i] = reply.reason
            elif isinstance(reply, ErrorReply):
                self.warnings.append(f"round {task.number + 1}: not evaluated, {reply.reason}: client {i}")
        return replies

    def _receive(self, client: int, answer: Answer, like: Tree) -> ClientResult | None:
        """Validate an answer, and note why it does not count; one in another form is none, and may be asked for again.

        One that is not finite stays so. It is never passed on.
        """
        losses, upload, is_finite = answer.metrics.get("losses", []), like, False
        try:
            if len(losses) != 2:
                raise RefusedError("it reports no losses")
            upload = validate_upload(answer.upload, like)
            is_finite = all(map(math.isfinite, losses)) and answer.metrics.get("valid") == [1.0]
            if not is_finite:
                self.reasons[client] = NOT_FINITE
        except RefusedError as error:
            self.reasons[client] = f"upload refused, {sentence(str(error))}"
            if not isinstance(error, NotFiniteError):
                return None
        return self._result(upload, losses, answer.metrics.get("post"), valid=is_finite)

    def _result(self, upload: Tree, losses: list[float], post: list[float] | None, *, valid: bool) -> ClientResult:
        counts, loss = torch.tensor(valid, device=self.key.device), torch.tensor(losses, dtype=torch.float64)
        return ClientResult({}, upload, counts, loss, {"post": self._tests(post)}, {}, {})

    def _upload_like(self, server: Tree, round_number: int) -> Tree:
        """Return an upload of this round in shape and type, all zeros."""
        if self._like is None:
            shapes = trace_update(self.method, server, self.federation.clients[0]).upload
            self._like = tree_map(
                lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype, device=self.key.device), shapes
            )
        return select(self._like, self.method.wire(round_number).up)

    def _tests(self, reported: list[float] | None) -> Tree:
        """Return what a view is judged by, NaN where no number is reported; a site reports its own figures alone."""
        if self._tests_like is None:
            one, metrics = torch.zeros((), dtype=torch.float64), self.method.setup.model.task.metrics
            at_sites = {"local": dict.fromkeys(metrics, one)}
            self._tests_like = at_sites if self.federation.at_sites else self._try_tests()
        return from_numbers(reported, self._tests_like, most=1 if self.federation.at_sites else MOST)

    def _try_tests(self) -> Tree:
        """Judge a model by a single sample of each test, to learn what clients report."""
        params, data = self.method.setup.model.init_params(), self.federation.clients[0]
        one = EvaluationData(*(test and test.map(lambda leaf: leaf[:1]) for test in self.federation.tests(0)))
        with torch.no_grad():
            return judge(self.method, params, data, one, is_global=False)


def identity(folder: Path) -> str:
    """Return the token of a run, which it gets before its first round; raise `UserError` if it was lost."""
    path = folder / IDENTITY
    if not path.exists() and not Checkpoint(folder).state.round:
        storage.write_new(path, json.dumps({"experiment": secrets.token_hex(16)}).encode() + b"\n")
    with suppress(OSError, ValueError, KeyError, TypeError):
        token = str(json.loads(path.read_bytes())["experiment"])
        if re.fullmatch(r"[0-9a-f]{32}", token):
            return token
    raise UserError(f"`{path}` holds the token of this run, but cannot be used; put it back, or start a new run.")

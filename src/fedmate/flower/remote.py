"""The back end whose clients live elsewhere: it asks them through a transport, and admits what they answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedmate.backends.base import NOT_FINITE, Backend, Cohort, Messages, Outcome, Round, itemise
from fedmate.backends.precision import Precision
from fedmate.backends.validation import NotFiniteError, RefusedError, validate_upload
from fedmate.core import Federation, Method, Tree, flatten, select, stack, tree_map, unmapped
from fedmate.core.shapes import trace_update
from fedmate.errors import StoppedError
from fedmate.flower.messages import Answer, ErrorReply, Kind, Reply, Request, Transport

RESERVED = ("losses", "valid", "post", "global")
"""Names of metrics that are no views after a broadcast."""

LONGEST = 300
"""How many characters of a reason are told."""

RETRIES = 2
"""How often a round is asked for again that too few have answered."""


class TooFewError(StoppedError):
    """A round that cannot be built: too few clients have answered, again and again."""


class _Heard(NamedTuple):
    """What is admitted of a client's answer: stand-ins and `valid` false, where nothing is.

    Attributes:
        upload: as the method's server reads it.
        losses: `[2]`.
        answered: whether it is an answer in the right form, finite or not: asking again would bring the same.
        valid: whether it counts.
        post: its accuracies, `[2, classes]`, NaN without them.
        sent: bytes that arrived, by item.
    """

    upload: Tree
    losses: Tensor
    answered: bool
    valid: bool
    post: Tensor
    sent: dict[str, int]


class Remote(Backend):
    """Clients at sites of their own, which keep their states.

    Args:
        method, federation, key, precision: as for every back end; of clients' samples only a shape is looked at.
        transport: who brings requests and answers.
    """

    is_remote = True

    def __init__(
        self,
        method: Method,
        federation: Federation,
        key: Tensor,
        transport: Transport,
        *,
        precision: Precision = "strict",
    ) -> None:
        """Remember whom to ask."""
        super().__init__(method, federation, key, precision=precision)
        self.transport = transport
        self._like: Tree | None = None

    @classmethod
    def refusal(cls, method: Method, federation: Federation, precision: Precision = "strict") -> str | None:
        """Run everything: each site runs the reference."""
        return None

    @property
    def clients(self) -> Sequence[Tree]:
        """Nothing: their states are not here."""
        return [{} for _ in self.federation.clients]

    def restore(self, states: Mapping[int, Tree]) -> None:
        """Do nothing: sites know where they stand."""

    def advance(self, server: Tree, task: Round) -> tuple[Outcome, Messages]:
        """Do a round's work; nothing in it is mapped."""
        with unmapped():
            return super().advance(server, task)

    def train(self, server: Tree, task: Round) -> Cohort:
        """Ask the participants to train; if too few can, ask those again that could not."""
        self.reasons.clear()
        downloads = {i: self._download(server, task.number, i) for i in task.participants}
        heard = dict[int, _Heard]()
        wanted, answered = min(self.min_clients, len(downloads)), 0
        for _ in range(1 + RETRIES):
            left = {i: down for i, down in downloads.items() if i not in heard or not heard[i].answered}
            answers = self._ask("train", task, left, wanted - answered)
            heard |= {i: self._hear(server, task, i, answers[i]) for i in left}
            answered = sum(one.answered for one in heard.values())
            if answered >= wanted:
                return self._cohort(task, downloads, [heard[i] for i in task.participants])
        reasons = "; ".join(f"client {i}: {self.reasons[i]}" for i, one in sorted(heard.items()) if not one.answered)
        raise TooFewError(
            f"round {task.number + 1} was asked for {1 + RETRIES} times, but {answered} of {len(heard)} clients "
            f"answered as they should, and `min_clients` is {self.min_clients} ({reasons})"
        )

    def view(self, server: Tree, task: Round) -> Tree:
        """Ask every client how good the model is that the next broadcast gives it."""
        everyone = range(len(self.federation.clients))
        downloads = {i: self._download(server, task.number + 1, i) for i in everyone}
        answers = self._ask("view", task, downloads, self.min_clients)
        heard = {i: answer.metrics for i, answer in answers.items() if isinstance(answer, Answer)}
        named = Counter(name for metrics in heard.values() for name in metrics if name not in RESERVED)
        # A view that most know is the method's own; a few sites cannot bring others into the record.
        most = [name for name, count in named.items() if 2 * count > len(everyone) and name.isidentifier()]
        names = dict.fromkeys(["pre", *most])
        told = {name: [self._accuracies(heard.get(i, {}).get(name)) for i in everyone] for name in names}
        return {name: torch.stack(accuracies) for name, accuracies in told.items()}

    def adapt(self, server: Tree, task: Round) -> Tree:
        """Newcomers are met by `fedmate adapt`, at their own site."""
        return {}

    def _ask(self, kind: Kind, task: Round, downloads: Mapping[int, Tree], wanted: int) -> dict[int, Reply]:
        answers = self.transport.send(
            {i: Request(kind, task.number, task.evaluate, flatten(down)) for i, down in downloads.items()}, wanted
        )
        for i, answer in sorted(answers.items()):
            if isinstance(answer, ErrorReply) and kind == "train":
                self.reasons[i] = answer.reason
            elif isinstance(answer, ErrorReply):
                self.notes.append(f"round {task.number + 1}: not evaluated, {answer.reason}: client {i}")
        return answers

    def _hear(self, server: Tree, task: Round, client: int, answer: Reply) -> _Heard:
        like = self._upload_like(server, task.number)
        silent = torch.full((2,), math.nan, dtype=torch.float64)
        nothing = _Heard(like, silent, answered=False, valid=False, post=self._accuracies(None), sent={})
        if isinstance(answer, ErrorReply):
            return nothing
        losses, valid = answer.metrics.get("losses", []), answer.metrics.get("valid", [])
        upload, sound = like, False
        try:
            upload = validate_upload(answer.upload, like)
            sound = len(losses) == 2 and all(map(math.isfinite, losses)) and valid == [1.0]
            if not sound:
                self.reasons[client] = NOT_FINITE
        except NotFiniteError as error:
            self.reasons[client] = f"upload refused, {error}"
        except RefusedError as error:
            self.reasons[client] = f"upload refused, {str(error)[:LONGEST]}"
            return nothing
        told = torch.tensor(losses, dtype=torch.float64) if len(losses) == 2 else silent
        post = self._accuracies(answer.metrics.get("post"))
        return _Heard(upload, told, answered=True, valid=sound, post=post, sent=itemise(like))

    def _cohort(self, task: Round, downloads: Mapping[int, Tree], heard: Sequence[_Heard]) -> Cohort:
        device = self.key.device
        return Cohort(
            uploads=stack([one.upload for one in heard]),
            valid=torch.tensor([one.valid for one in heard], device=device),
            losses=torch.stack([one.losses for one in heard]),
            views={"post": torch.stack([one.post for one in heard])} if task.evaluate else {},
            diagnostics={},
            messages=Messages([itemise(downloads[i]) for i in task.participants], [one.sent for one in heard]),
        )

    def _upload_like(self, server: Tree, round_number: int) -> Tree:
        """Return an upload of this round in shape and type, all zeros."""
        if self._like is None:
            self._like = tree_map(
                lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype, device=self.key.device),
                trace_update(self.method, server, self.federation.clients[0]).upload,
            )
        return select(self._like, self.method.wire(round_number).up)

    def _accuracies(self, reported: list[float] | None) -> Tensor:
        """Return what a site reports as `[2, classes]`; NaN where it is something else.

        Of its own data a site reports one accuracy, which stands in the second row for all classes.
        """
        classes = self.method.setup.num_classes
        wanted = 1 if self.federation.at_sites else 2 * classes
        fits = reported is not None and len(reported) == wanted
        found = torch.tensor(reported if fits else [math.nan] * wanted, dtype=torch.float64)
        found = found.masked_fill(~((found >= 0) & (found <= 1)), math.nan)
        if not self.federation.at_sites:
            return found.reshape(2, classes)
        return torch.stack([torch.full_like(found, math.nan), found]).expand(2, classes)

    def _download(self, server: Tree, round_number: int, client: int) -> Tree:
        return self.download(server, round_number, torch.tensor(client, device=self.key.device))

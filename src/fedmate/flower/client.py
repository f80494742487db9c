"""A client on a machine of its own: it answers requests, and keeps its state to itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedmate.backends.base import one_thread
from fedmate.backends.client import train_client, view_client
from fedmate.backends.precision import Precision, arithmetic
from fedmate.core import ClientData, Method, Tree, class_counts, flatten, fold, num_bytes, select, unmapped
from fedmate.core.serialise import DamagedError, fit_to
from fedmate.flower.client_state import ClientState
from fedmate.flower.messages import Answer, Leaves, Metrics, PublicError, Request

FLOAT_BYTES = 8
"""What a number of the metrics takes."""


def now() -> str:
    """Say what time it is, for a log that is read far from here."""
    return moment(time.time())


def moment(seconds: float) -> str:
    """Write a time as sites' logs have it, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class MessageError(PublicError):
    """A download that is not what this experiment's server sends."""


@final
@dataclass(frozen=True)
class Site:
    """One client, ready to answer.

    Attributes:
        client: its number.
        num_clients: how many there are in all.
        method: with its setup, as the server has it.
        data: what it holds.
        test: what its models are tried on.
        key: the experiment's randomness.
        store: where its state is kept.
        clock: says what time it is, for the log.
        precision: of products on a GPU.
        describe: puts a model of its own together with what has to be known about it, as a file has it; given the
            number of rounds behind it. Without it no model is kept.
        reports_own: whether of each view it tells its accuracy on its own test alone, one number; otherwise those of
            all classes, as the server of a simulation wants them.
    """

    client: int
    num_clients: int
    method: Method
    data: ClientData
    test: ClientData
    key: Tensor
    store: ClientState
    clock: Callable[[], str]
    precision: Precision = "strict"
    describe: Callable[[Tree, int], bytes] | None = None
    reports_own: bool = False

    def answer(self, request: Request) -> Answer:
        """Do what is asked; nobody else may be at it meanwhile."""
        with self.store.claim(), torch.no_grad(), one_thread(), arithmetic(self.precision, self.key.device), unmapped():
            return self._train(request) if request.kind == "train" else self._view(request)

    def _train(self, request: Request) -> Answer:
        state = self.store.begin(request.round, self._initial())
        download = self._download(request, request.round)
        key, test = self._key(request), self.test if request.evaluate else None
        trained = train_client(self.method, request.round, state, download, self.data, key, test)
        # On the disk before anything leaves: a site never forgets what it has told.
        self.store.keep(request.round, state, trained.client)
        metrics: Metrics = {"losses": trained.loss.tolist(), "valid": [float(trained.valid)]}
        return self._told(request, trained.upload, metrics | self._report(trained.views))

    def _view(self, request: Request) -> Answer:
        """Evaluate what the client would hold after the next broadcast; the state stays as it is."""
        state = self.store.begin(request.round + 1, self._initial())
        download = self._download(request, request.round + 1)
        seen = view_client(self.method, state, download, self.data, self._key(request), self.test)
        if self.describe is not None:
            self.store.keep_model(self.describe(seen.personal, request.round + 1))
        return self._told(request, {}, self._report(seen.views))

    def _told(self, request: Request, upload: Tree, metrics: Metrics) -> Answer:
        """Write down what leaves, and return it."""
        numbers = sum(map(len, metrics.values()))
        parts = {part: num_bytes({part: content}) for part, content in upload.items()}
        self.store.log(self.clock(), request.round, {**parts, "metrics": FLOAT_BYTES * numbers})
        return Answer(flatten(upload), metrics)

    def _report(self, views: Tree) -> Metrics:
        if not self.reports_own:
            return {name: accuracies.flatten().tolist() for name, accuracies in views.items()}
        counts = class_counts(self.data, self.method.setup.num_classes).double()
        return {name: [_weighted(accuracies[1], counts)] for name, accuracies in views.items()}

    def _initial(self) -> Tree:
        return self.method.init_client(self.method.setup.model.init_params(), fold(self.key, "client", self.client))

    def _key(self, request: Request) -> Tensor:
        return fold(self.key, "round", request.round, self.client)

    def _download(self, request: Request, round_number: int) -> Tree:
        """Give what arrived the structure of a download, or raise `MessageError`."""
        start = self.method.init_server(
            self.method.setup.model.init_params(), self.num_clients, fold(self.key, "server")
        )
        everything = self.method.download(start, torch.tensor(self.client, device=self.key.device))
        expected = select(everything, self.method.wire(round_number).down)
        try:
            return fit_to(Leaves(request.download), expected)
        except DamagedError as error:
            raise MessageError(
                f"the download of round {request.round + 1} is none of this experiment: {error}"
            ) from None


def _weighted(accuracies: Tensor, counts: Tensor) -> float:
    """Weigh classes as the client holds them; one without a test sample does not count, and NaN says that none does."""
    known = ~accuracies.isnan()
    weights = counts[known] / counts[known].sum()
    return float((accuracies[known].double() * weights).sum()) if counts[known].any() else math.nan

"""A client in a process of its own: it answers requests, and keeps its state to itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from fedmate import storage
from fedmate.backends.base import one_thread
from fedmate.backends.client import train_client, view_client
from fedmate.backends.precision import Precision, arithmetic
from fedmate.core import ClientData, Method, Tree, flatten, fold, num_bytes, select, unmapped
from fedmate.core.tree import DamagedError, fit_to
from fedmate.flower.client_state import MODEL, ClientState
from fedmate.flower.messages import Answer, MessageError, Metrics, Request


@final
@dataclass(frozen=True)
class Client:
    """One client, ready to answer.

    Attributes:
        method: with its setup, as the server has it.
        test: the samples that its models are tested on.
        key: the experiment's randomness.
        describe: makes the file of its own model, given parameters and the number of rounds done.
        reports_own: whether it reports one accuracy for each view, on its own test; otherwise those of all classes, as
            the server of a simulation needs them.
    """

    number: int
    num_clients: int
    method: Method
    data: ClientData
    test: ClientData
    key: Tensor
    state: ClientState
    precision: Precision = "strict"
    describe: Callable[[Tree, int], bytes] | None = None
    reports_own: bool = False

    def answer(self, request: Request) -> Answer:
        """Do what is asked; a second process that tries the same meanwhile gets `BusyError`."""
        with self.state.lock(), torch.no_grad(), one_thread(), arithmetic(self.precision, self.key.device), unmapped():
            return self._train(request) if request.kind == "train" else self._view(request)

    def _train(self, request: Request) -> Answer:
        state = self.state.begin(request.round, self._initial())
        download, key = self._download(request, request.round), self._key(request)
        test = self.test if request.evaluate else None
        trained = train_client(self.method, request.round, state, download, self.data, key, test)
        # On the disk before anything leaves: a client never forgets what it has sent.
        self.state.save(request.round, state, trained.client)
        metrics: Metrics = {"losses": trained.loss.tolist(), "valid": [float(trained.valid)]}
        return self._logged(request, trained.upload, metrics | self._report(trained.views))

    def _view(self, request: Request) -> Answer:
        """Evaluate the model that the client would have after the next broadcast; its state stays as it is."""
        state = self.state.begin(request.round + 1, self._initial())
        download, key = self._download(request, request.round + 1), self._key(request)
        personal, views = view_client(self.method, state, download, self.data, key, self.test)
        if self.describe is not None:
            storage.replace(self.state.folder / MODEL, self.describe(personal, request.round + 1))
        return self._logged(request, {}, self._report(views))

    def _logged(self, request: Request, upload: Tree, metrics: Metrics) -> Answer:
        """Write the bytes of an answer to the audit log, eight for each number of the metrics, and return it."""
        parts = {part: num_bytes({part: content}) for part, content in upload.items()}
        self.state.log(request.round, {**parts, "metrics": 8 * sum(map(len, metrics.values()))})
        return Answer(flatten(upload), metrics)

    def _report(self, views: Tree) -> Metrics:
        if not self.reports_own:
            return {name: accuracies.flatten().tolist() for name, accuracies in views.items()}
        counts = self.method.setup.class_counts(self.data).double()
        reported: Metrics = {}
        for name, (_, accuracies) in views.items():
            # Classes weigh as the client holds them, without those that its test lacks; NaN if none is left.
            known = ~accuracies.isnan()
            weights = counts[known] / counts[known].sum()
            reported[name] = [float((accuracies[known].double() * weights).sum()) if weights.any() else math.nan]
        return reported

    def _initial(self) -> Tree:
        return self.method.init_client(self.method.setup.model.init_params(), fold(self.key, "client", self.number))

    def _key(self, request: Request) -> Tensor:
        return fold(self.key, "round", request.round, self.number)

    def _download(self, request: Request, round_number: int) -> Tree:
        """Give the arrays that arrived the structure of a download, or raise `MessageError`."""
        params, method = self.method.setup.model.init_params(), self.method
        start = method.init_server(params, self.num_clients, fold(self.key, "server"))
        everything = method.download(start, torch.tensor(self.number, device=self.key.device))
        try:
            return fit_to(dict(request.download), select(everything, method.wire(round_number).down))
        except DamagedError as error:
            raise MessageError(
                f"the download of round {request.round + 1} is none of this experiment: {error}"
            ) from None

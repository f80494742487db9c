"""The reference back end: clients one after the other, unpadded, on single-thread workers.

The number of workers changes nothing but the time: each client's work is a function of its own arguments, every
operation runs on one thread, and results are put in the order of client ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar, final

import torch
from torch import Tensor

from fedmate.backends.base import Backend, ClientReport, Round, RoundResult, View, itemise
from fedmate.backends.client import Trained, train_client, view_client
from fedmate.core import Federation, Method, Tree, class_accuracies, fold, plain_autograd, select, stack

Answer = TypeVar("Answer")


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class Sequential(Backend):
    """A plain loop over clients.

    Args:
        method, federation, key: as for every back end.
        workers: how many clients to train side by side; as many as there are cores on a CPU, one on a GPU.
    """

    def __init__(self, method: Method, federation: Federation, key: Tensor, *, workers: int | None = None) -> None:
        """Choose the number of workers."""
        super().__init__(method, federation, key)
        on_gpu = federation.test.y.device.type != "cpu"
        self.workers = workers or (1 if on_gpu else available_cores())

    def run_round(self, server: Tree, task: Round) -> RoundResult:
        """Train the participants, aggregate, and evaluate if asked to."""
        method, data = self.method, self.federation.clients
        test = self.federation.test if task.evaluate else None
        keys = {i: fold(self.key, "round", task.number, i) for i in range(len(data))}
        with _one_thread(), torch.no_grad():
            downloads = {i: self._download(server, task.number, i) for i in task.participants}

            def train(i: int) -> Trained:
                return train_client(method, task.number, self.clients[i], downloads[i], data[i], keys[i], test)

            trained = self._map(train, task.participants)
            for i, result in zip(task.participants, trained, strict=True):
                self.clients[i] = result.client
            server = method.aggregate(
                server,
                stack([result.upload for result in trained]),
                torch.tensor(task.participants, device=self.key.device),
                torch.stack([result.valid.to(self.key.device) for result in trained]),
            )
            reports = [_report(i, result, downloads[i]) for i, result in zip(task.participants, trained, strict=True)]
            views = self._views(server, task, trained, keys) if task.evaluate else {}
        return RoundResult(server, reports, views)

    def _download(self, server: Tree, round_number: int, client: int) -> Tree:
        client_id = torch.tensor(client, device=self.key.device)
        return select(self.method.download(server, client_id), self.method.wire(round_number).down)

    def _views(
        self, server: Tree, task: Round, trained: list[Trained], keys: dict[int, Tensor]
    ) -> dict[str, View | None]:
        method, data, test = self.method, self.federation.clients, self.federation.test

        def view(i: int) -> dict[str, Tensor]:
            # What the client would receive next: a download made for evaluation, which the ledger does not see.
            download = self._download(server, task.number + 1, i)
            return view_client(method, self.clients[i], download, data[i], keys[i], test)

        everyone = tuple(range(len(data)))
        seen = self._map(view, everyone)
        views: dict[str, View | None] = {
            name: View(everyone, torch.stack([answer[name] for answer in seen])) for name in seen[0]
        }
        views["post"] = View(
            task.participants, torch.stack([r.accuracies for r in trained if r.accuracies is not None])
        )
        model, params = method.setup.model, method.global_params(server)
        # With private buffers no single set of statistics fits the aggregated model.
        private = model.buffer_policy == "private" and bool(model.init_params()["buffers"])
        views["global"] = None
        if params is not None and not private:
            accuracies = class_accuracies(model, params, test, method.setup.num_classes)
            views["global"] = View(everyone, accuracies.expand(len(data), -1))
        return views

    def _map(self, function: Callable[[int], Answer], clients: Sequence[int]) -> list[Answer]:
        if self.workers == 1 or len(clients) == 1:
            with plain_autograd():
                return [function(i) for i in clients]

        def work(i: int) -> Answer:
            # A new thread starts with gradients on and with context variables at their defaults.
            with torch.no_grad(), plain_autograd():
                return function(i)

        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, clients))


def _report(client: int, result: Trained, download: Tree) -> ClientReport:
    before, after = result.loss.tolist()
    return ClientReport(
        client, bool(result.valid), before, after, itemise(download), itemise(result.upload), result.diagnostics
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch from splitting an operation over threads: sums would depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

"""The reference back end: clients one after the other, unpadded, on single-thread workers.

The number of workers changes nothing but the time: each client's work is a function of its own arguments, every
operation runs on one thread, and results are put in the order of client ids.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import final

import torch
from torch import Tensor

from fedmate.backends.base import Backend, Crossed, Round, itemise
from fedmate.backends.client import ClientResult, train_client, view_client
from fedmate.backends.precision import Precision
from fedmate.core import Federation, Method, Tree, fold, remembered_features, stack
from fedmate.core.execution import FeatureMemory, current_memory, stay_unmapped


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class Sequential(Backend):
    """A plain loop over clients.

    Args:
        method, federation, key, chunk_size, precision: as for every back end.
        workers: how many clients to train side by side; as many as there are cores on a CPU, one on a GPU, and no more
            than `chunk_size`.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        key: Tensor,
        *,
        chunk_size: int | None = None,
        precision: Precision = "strict",
        workers: int | None = None,
    ) -> None:
        super().__init__(method, federation, key, chunk_size=chunk_size, precision=precision)
        on_gpu = federation.test.y.device.type != "cpu"
        wanted = workers or (1 if on_gpu else available_cores())
        self.workers = min(wanted, chunk_size or wanted)
        # One pool for the whole run: a model keeps a copy of its modules for every thread it meets.
        pool = ThreadPoolExecutor(self.workers, initializer=_prepare_worker)
        self._map = map if self.workers == 1 else pool.map
        self._states = tuple(self.initial_clients())

    def train(self, server: Tree, task: Round) -> tuple[ClientResult, Crossed]:
        """Train the participants side by side."""
        ids, clients = task.participants, self.federation.clients
        downloads = [self._download(server, task.number, i) for i in ids]
        trained: list[ClientResult] = list(
            self._map(
                partial(train_client, self.method, task.number),
                [self._states[i] for i in ids],
                downloads,
                [clients[i] for i in ids],
                [self._key(task, i) for i in ids],
                [self.federation.tests(i) if task.evaluate else None for i in ids],
            )
        )
        self.restore(dict(zip(ids, (result.client for result in trained), strict=True)))
        crossed = [(itemise(down), itemise(result.upload)) for down, result in zip(downloads, trained, strict=True)]
        return ClientResult(**stack([result._replace(client={})._asdict() for result in trained])), crossed

    def view(self, server: Tree, task: Round) -> Tree:
        """Evaluate every client after a download made for that alone, which is not counted."""
        # Where clients have the same extractor, one look at the test split serves all.
        memory = current_memory() or FeatureMemory()

        def view(i: int) -> Tree:
            download, data = self._download(server, task.number + 1, i), self.federation.clients[i]
            key, tests = self._key(task, i), self.federation.tests(i)
            with remembered_features(memory):
                return view_client(self.method, self._states[i], download, data, key, tests)[1]

        return stack(list(self._map(view, range(len(self._states)))))

    def _download(self, server: Tree, round_number: int, client: int) -> Tree:
        return self.download(server, round_number, torch.tensor(client, device=self.key.device))

    def _key(self, task: Round, client: int) -> Tensor:
        return fold(self.key, "round", task.number, client)


def _prepare_worker() -> None:
    """Set up a new thread as the main one is during a round."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    stay_unmapped()

"""The reference back end: clients one after the other, unpadded, on single-thread workers.

The number of workers changes nothing but the time: each client's work is a function of its own arguments, every
operation runs on one thread, and results are put in the order of client ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, final

import torch
from torch import Tensor

from fedmate.backends.base import Backend, Cohort, Messages, Outcome, Round, itemise, welcome
from fedmate.backends.client import Trained, train_client, view_client, view_held_out_client
from fedmate.backends.precision import Precision
from fedmate.core import (
    FeatureMemory,
    Federation,
    Method,
    Tree,
    current_memory,
    fold,
    remembered_features,
    stack,
    unmapped,
)

Answer = TypeVar("Answer")


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
        self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        self._states = tuple(self.initial_clients())

    @classmethod
    def refusal(cls, method: Method, federation: Federation, precision: Precision = "strict") -> str | None:
        """Run everything: this is the reference."""
        return None

    @property
    def clients(self) -> Sequence[Tree]:
        """The clients' states, by id."""
        return self._states

    def restore(self, states: Mapping[int, Tree]) -> None:
        """Put some clients back into the states they had at another time."""
        self._states = tuple(states.get(i, state) for i, state in enumerate(self._states))

    def advance(self, server: Tree, task: Round) -> tuple[Outcome, Messages]:
        """Do a round's work; nothing in it is mapped, the server's part included."""
        before = self._states
        try:
            with unmapped():
                return super().advance(server, task)
        except BaseException:
            # A round that breaks off leaves nothing behind.
            self._states = before
            raise

    def train(self, server: Tree, task: Round) -> Cohort:
        """Train the participants side by side."""
        test = self.federation.test if task.evaluate else None
        downloads = {i: self._download(server, task.number, i) for i in task.participants}

        def train(i: int) -> Trained:
            data, key = self.federation.clients[i], self._key(task, i)
            return train_client(self.method, task.number, self._states[i], downloads[i], data, key, test)

        trained = self._map(train, task.participants)
        self.restore(dict(zip(task.participants, (result.client for result in trained), strict=True)))
        return Cohort(
            uploads=stack([result.upload for result in trained]),
            valid=torch.stack([result.valid for result in trained]),
            losses=torch.stack([result.loss for result in trained]),
            views=stack([result.views for result in trained]),
            diagnostics=stack([result.diagnostics for result in trained]),
            messages=Messages(
                down=[itemise(downloads[i]) for i in task.participants],
                up=[itemise(result.upload) for result in trained],
            ),
        )

    def view(self, server: Tree, task: Round) -> Tree:
        """Evaluate every client after a download made for that alone, which is not counted."""
        # Where clients have the same extractor, one look at the test split serves all.
        memory = current_memory() or FeatureMemory()

        def view(i: int) -> Tree:
            download, data = self._download(server, task.number + 1, i), self.federation.clients[i]
            key, test = self._key(task, i), self.federation.test
            with remembered_features(memory):
                return view_client(self.method, self._states[i], download, data, key, test).views

        return stack(self._map(view, range(len(self._states))))

    def adapt(self, server: Tree, task: Round) -> Tree:
        """Let held-out clients adapt side by side, and evaluate them."""
        states, download = self.initial_held_out_clients(), welcome(self.method, server, self.key.device)

        def adapt(i: int) -> Tree:
            data, key = self.federation.held_out_clients[i], fold(self.key, "newcomer round", task.number, i)
            return view_held_out_client(self.method, states[i], download, data, key, self.federation.test)

        return stack(self._map(adapt, range(len(states))))

    def _download(self, server: Tree, round_number: int, client: int) -> Tree:
        return self.download(server, round_number, torch.tensor(client, device=self.key.device))

    def _key(self, task: Round, client: int) -> Tensor:
        return fold(self.key, "round", task.number, client)

    def _map(self, function: Callable[[int], Answer], clients: Sequence[int]) -> list[Answer]:
        if self.workers == 1 or len(clients) == 1:
            with unmapped():
                return [function(i) for i in clients]

        def work(i: int) -> Answer:
            # A new thread starts with gradients on and with context variables at their defaults.
            with torch.no_grad(), unmapped():
                return function(i)

        return list(self._pool.map(work, clients))

"""What only the vectorised back end promises: chunks, padding, no host reads in a whole round, and a way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from tests.contract.unreadable import Unreadable
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.testing import assert_close

import fedmate.methods.base as method_module
import fedmate.tasks.classification as classification
from fedmate.backends.base import Round
from fedmate.backends.vectorised import Vectorised
from fedmate.core import (
    PER_CLIENT,
    ClientData,
    Federation,
    Model,
    Setup,
    Source,
    Tree,
    num_samples,
    stack_clients,
    tree_map,
)

if TYPE_CHECKING:
    from tests.contract.conftest import Lab, MakeLab


def test_chunks_change_nothing(buffered_lab: Lab) -> None:
    check_chunks(buffered_lab, 2)


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_the_size_of_chunks_changes_nothing(make_lab: MakeLab, chunk_size: int) -> None:
    check_chunks(make_lab("fedmate", "plain"), chunk_size)


def check_chunks(lab: Lab, chunk_size: int) -> None:
    chunked = lab.run(Vectorised(lab.method, lab.federation, lab.key, chunk_size=chunk_size))
    assert_close(chunked.rounds, lab.expected.rounds, rtol=0, atol=1e-9, equal_nan=True)
    assert_close(chunked.clients, lab.expected.clients, rtol=0, atol=1e-9)


def test_clients_are_padded_to_the_largest(plain_lab: Lab) -> None:
    stacked = stack_clients(plain_lab.federation.clients)
    assert stacked.rows.shape == (5, 7)
    assert torch.func.vmap(num_samples, (PER_CLIENT,))(stacked).tolist() == [7, 4, 1, 5, 6]


def as_fake(mode: Unreadable, backend: Vectorised, lab: Lab) -> tuple[Vectorised, Tree]:
    """Return a back end and a server state whose tensors have shapes but no content."""

    def data(real: ClientData) -> ClientData:
        samples, mean, std = (mode.from_tensor(leaf) for leaf in real.source[:3])
        source = Source(samples, mean, std, real.source.augmentation)
        return real._replace(source=source).map(mode.from_tensor)

    federation = Federation(tuple(map(data, lab.federation.clients)), data(lab.federation.test), 4)
    fake = Vectorised.__new__(Vectorised)
    fake.__dict__ |= vars(backend)
    fake.federation, fake.key = federation, mode.from_tensor(lab.key)
    fake._stack, fake._data = tree_map(mode.from_tensor, backend._stack), data(backend._data)
    return fake, tree_map(mode.from_tensor, lab.server())


def trace(lab: Lab) -> None:
    """Run whole rounds, one of each message structure, on tensors without content: reading one raises."""
    lab = lab.with_few_steps()
    for t in lab.structures().values():
        task = Round(t, (0, 2, 3), evaluate=True)
        backend = Vectorised(lab.method, lab.federation, lab.key)
        backend.train(lab.server(), task)
        with Unreadable(allow_non_fake_inputs=True) as mode, torch.no_grad():
            fake, server = as_fake(mode, backend, lab)
            trained, _ = fake.train(server, task)
            server = lab.method.aggregate(
                server, trained.upload, torch.tensor(task.participants), trained.valid, lab.key
            )
            fake.view(server, task)


def test_nothing_in_a_whole_round_is_read_back(buffered_lab: Lab) -> None:
    trace(buffered_lab)


def test_a_planted_read_is_found(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_lab = make_lab("fedavg", "plain")
    method = type(plain_lab.method)
    aggregate = method.aggregate

    def reading(self: object, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        valid.all().item()
        return aggregate(plain_lab.method, server, uploads, client_ids, valid, key)

    monkeypatch.setattr(method, "aggregate", reading)
    with pytest.raises(DataDependentOutputException):
        trace(plain_lab)


class Branching(nn.Module):
    """Decides in Python what to compute, which cannot be mapped over clients."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(8, 3).double()
        self.classifier = nn.Linear(3, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x.flatten(1))
        logits: Tensor = self.classifier(hidden.tanh() if hidden.sum() > 0 else hidden.sigmoid())
        return logits


def test_a_model_that_cannot_be_mapped_is_refused_with_the_reason(make_lab: MakeLab) -> None:
    plain_lab = make_lab("fedavg", "plain")
    old = plain_lab.method.setup
    setup = Setup(Model(Branching(), classifier="classifier"), old.num_classes, old.rounds, old.training)
    method = type(plain_lab.method)(setup=setup)
    reason = Vectorised.refusal(method, plain_lab.federation)
    assert reason is not None
    assert "data-dependent control flow" in reason


def test_a_model_that_can_be_mapped_is_not_refused(any_lab: Lab) -> None:
    assert Vectorised.refusal(any_lab.method, any_lab.federation) is None


class Centring(nn.Module):
    """Takes the mean of the batch away, padding included: nothing outside can mask that."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_a_layer_that_mixes_samples_is_refused(make_lab: MakeLab) -> None:
    plain_lab = make_lab("fedavg", "plain")
    old = plain_lab.method.setup
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 3), Centring(), nn.Linear(3, 4)).double()
    setup = Setup(Model(module, classifier="3"), old.num_classes, old.rounds, old.training)
    reason = Vectorised.refusal(type(plain_lab.method)(setup=setup), plain_lab.federation)
    assert reason == "a layer mixes samples, so that padding would change what it computes"


def test_an_aggregate_that_is_not_finite_is_thrown_away(plain_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    method, before = type(plain_lab.method), plain_lab.server()
    aggregate = method.aggregate

    def spoilt(self: object, server: Tree, uploads: Tree, client_ids: Tensor, valid: Tensor, key: Tensor) -> Tree:
        found = aggregate(plain_lab.method, server, uploads, client_ids, valid, key)
        return tree_map(lambda leaf: leaf * torch.nan if leaf.is_floating_point() else leaf, found)

    monkeypatch.setattr(method, "aggregate", spoilt)
    result = plain_lab.backend("vectorised").run_round(before, Round(0, (0, 1), evaluate=False))
    # Local's server holds nothing that could be spoilt.
    assert result.aggregated == (not before)
    assert_close(result.server, before, rtol=0, atol=0)


def test_a_method_that_forgets_the_mask_runs_client_by_client(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab("fedavg", "plain")
    assert Vectorised.refusal(lab.method, lab.federation) is None
    forgetful = lambda logits, labels, *_: torch.nn.functional.cross_entropy(logits, labels)  # noqa: E731
    monkeypatch.setattr(classification, "cross_entropy", forgetful)
    reason = Vectorised.refusal(lab.method, lab.federation)
    assert reason is not None
    assert "padded clients" in reason


def test_a_small_mistake_with_padding_shows_where_nothing_is_rounded(
    make_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tf32` is the default, and means nothing on a CPU: what a GPU's rounding would hide must not pass there."""
    lab = make_lab("fedavg", "plain")
    monkeypatch.setattr(method_module, "num_samples", lambda data: num_samples(data) * 0 + len(data.y))
    for precision in ("strict", "tf32", "bf16"):
        assert "padded clients" in (Vectorised.refusal(lab.method, lab.federation, precision) or "")

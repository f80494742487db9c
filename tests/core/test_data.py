"""What a client holds is read once per pass, and padding is never noticed."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmate.core.data import Batch, ClientData, batches, class_means, client_data, num_steps, pad, stack_clients
from fedmate.core.random import make_key


def make_data(samples: int, classes: int = 4, seed: int = 0) -> ClientData:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 2, 3, dtype=torch.float64, generator=generator)
    return client_data(x, torch.randint(classes, (samples,), generator=generator))


def real_part(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.x[batch.mask], batch.y[batch.mask], batch.ids[batch.mask]


class TestFilled:
    """How many samples are surely real is known without reading a mask, and never overstated."""

    def test_of_a_stack(self) -> None:
        assert stack_clients([make_data(n) for n in (6, 2, 4)]).filled == 2

    @settings(max_examples=40)
    @given(samples=st.integers(1, 30), padding=st.integers(0, 12), batch_size=st.integers(1, 11))
    def test_of_batches(self, samples: int, padding: int, batch_size: int) -> None:
        for batch in batches(pad(make_data(samples), samples + padding), batch_size, 2, make_key(0)):
            assert batch.filled == int(batch.mask.sum())
            assert (batch.counted is None) == bool(batch.mask.all())


class TestClassMeans:
    @settings(max_examples=40)
    @given(holes=st.lists(st.booleans(), min_size=1, max_size=20), seed=st.integers(0, 10**6))
    def test_is_a_plain_loop(self, holes: list[bool], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(len(holes), 3, dtype=torch.float64, generator=generator)
        labels = torch.randint(4, (len(holes),), generator=generator)
        means, counts = class_means(features, labels, torch.tensor(holes), 5)
        for k in range(5):
            members = [features[i] for i in range(len(holes)) if holes[i] and int(labels[i]) == k]
            assert int(counts[k]) == len(members)
            expected = sum(members, torch.zeros(3, dtype=torch.float64)) / max(1, len(members))
            torch.testing.assert_close(means[k], expected, rtol=0, atol=1e-13)


class TestBatches:
    def test_every_pass_has_an_order_of_its_own(self) -> None:
        first, second = batches(make_data(20), 20, 2, make_key(0))
        assert first.ids.tolist() != second.ids.tolist()

    @settings(max_examples=40)
    @given(
        samples=st.integers(1, 25), batch_size=st.integers(1, 30), epochs=st.integers(0, 3), seed=st.integers(0, 10**6)
    )
    def test_each_pass_reads_each_sample_once(self, samples: int, batch_size: int, epochs: int, seed: int) -> None:
        data = make_data(samples, seed=seed)
        read = list(batches(data, batch_size, epochs, make_key(seed)))
        steps = -(-samples // batch_size)
        assert len(read) == epochs * steps
        for epoch in range(epochs):
            one_pass = read[epoch * steps : (epoch + 1) * steps]
            ids = torch.cat([batch.ids for batch in one_pass])
            assert sorted(ids.tolist()) == list(range(samples))
            assert [len(batch.y) for batch in one_pass[:-1]] == [batch_size] * (steps - 1)
            for batch in one_pass:
                assert bool(batch.mask.all())
                assert torch.equal(batch.x, data.x[batch.ids])
                assert torch.equal(batch.y, data.y[batch.ids])

    @settings(max_examples=40)
    @given(
        samples=st.integers(1, 15),
        padding=st.integers(0, 15),
        batch_size=st.integers(1, 8),
        seed=st.integers(0, 10**6),
        share=st.floats(0.01, 0.99),
    )
    def test_a_part_of_a_pass_is_its_beginning(
        self, samples: int, padding: int, batch_size: int, seed: int, share: float
    ) -> None:
        data, key = make_data(samples, seed=seed), make_key(seed)
        whole = torch.cat([batch.ids for batch in batches(data, batch_size, 2, key)])
        read = list(batches(data, batch_size, 1 + share, key))
        count = math.ceil(samples * round(share, 6))
        assert torch.cat([batch.ids for batch in read]).tolist() == whole[: samples + count].tolist()
        padded = pad(data, samples + padding)
        for length in ({"epochs": 1 + share}, {"epochs": 0}, {"epochs": 3}, {"epochs": 1, "steps": 11}):
            real = sum(bool(batch.mask.any()) for batch in batches(padded, batch_size, **length, key=key))
            assert real == int(num_steps(padded, batch_size, **length)), length

    @settings(max_examples=40)
    @given(samples=st.integers(1, 15), batch_size=st.integers(1, 8), steps=st.integers(1, 30))
    def test_steps_go_on_from_pass_to_pass(self, samples: int, batch_size: int, steps: int) -> None:
        data, key = make_data(samples), make_key(1)
        endless = list(batches(data, batch_size, steps, key))[:steps]
        found = list(batches(data, batch_size, 1, key, steps))
        assert [batch.ids.tolist() for batch in found] == [batch.ids.tolist() for batch in endless]
        assert [int(batch.key) for batch in found] == [int(batch.key) for batch in endless]

    @settings(max_examples=80)
    @given(
        samples=st.integers(1, 15),
        padding=st.integers(0, 15),
        batch_size=st.integers(1, 8),
        seed=st.integers(0, 10**6),
        length=st.sampled_from([(2, 0), (0.5, 0), (1.3, 0), (1, 1), (1, 7), (1, 19)]),
    )
    def test_padding_does_not_change_real_batches(
        self, samples: int, padding: int, batch_size: int, seed: int, length: tuple[float, int]
    ) -> None:
        data, key, (epochs, steps) = make_data(samples, seed=seed), make_key(seed), length
        alone = list(batches(data, batch_size, epochs, key, steps))
        padded = list(batches(pad(data, samples + padding), batch_size, epochs, key, steps))
        if epochs == 2:
            assert len(padded) == 2 * -(-(samples + padding) // batch_size)
        if steps:
            assert len(padded) == len(alone) == steps
        live = [batch for batch in padded if bool(batch.mask.any())]
        assert len(live) == len(alone)
        for mine, other in zip(alone, live, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(real_part(mine), real_part(other), strict=True))
            assert torch.equal(mine.key, other.key)

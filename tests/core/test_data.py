"""What a client holds is read once per pass, and padding is never noticed."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedmate.core.data import Batch, ClientData, batches, class_means, client_data, pad, stack_clients
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
        samples=st.integers(1, 15), padding=st.integers(0, 15), batch_size=st.integers(1, 8), seed=st.integers(0, 10**6)
    )
    def test_padding_does_not_change_real_batches(self, samples: int, padding: int, batch_size: int, seed: int) -> None:
        data, key = make_data(samples, seed=seed), make_key(seed)
        alone = list(batches(data, batch_size, 2, key))
        padded = list(batches(pad(data, samples + padding), batch_size, 2, key))
        assert len(padded) == 2 * -(-(samples + padding) // batch_size)
        live = [batch for batch in padded if bool(batch.mask.any())]
        assert len(live) == len(alone)
        for mine, other in zip(alone, live, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(real_part(mine), real_part(other), strict=True))
            assert torch.equal(mine.key, other.key)

"""Partitions deal what the paper says, to everybody, and tell who asks too much how to ask for less."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedmate.errors import UserError
from fedmate.partitions import PARTITIONS
from fedmate.partitions.base import Partition
from fedmate.partitions.dirichlet import Dirichlet
from fedmate.partitions.iid import IID
from fedmate.partitions.pathological import Pathological
from fedmate.partitions.share import Share

Labels = NDArray[np.int64]

CLASSES = 10
GROUPS = ({0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}, {8, 9, 0})


def balanced(samples: int, classes: int = CLASSES) -> Labels:
    """Labels in random order, as many of each class as of the others (or one more)."""
    labels: Labels = np.random.default_rng(0).permutation(np.arange(samples, dtype=np.int64) % classes)
    return labels


CIFAR = balanced(50_000)
DIGITS: Labels = load_digits().target.astype(np.int64)


def split(partition: Partition, labels: Labels, seed: int = 0, classes: int = CLASSES) -> list[Labels]:
    return partition.split(labels, classes, np.random.default_rng(seed))


def class_counts(hands: list[Labels], labels: Labels, classes: int = CLASSES) -> Labels:
    return np.stack([np.bincount(labels[hand], minlength=classes) for hand in hands])


def refusal(partition: Partition, labels: Labels, classes: int = CLASSES) -> str | None:
    """The sentence with which a partition refuses, if it does."""
    try:
        split(partition, labels, classes=classes)
    except UserError as error:
        return str(error)
    return None


def without_skew(kind: type[Partition], clients: int, examples: int | None) -> Partition:
    """A partition of this kind that can deal every sample there is."""
    return (
        Share(clients=clients, examples=examples, share=100)
        if kind is Share
        else kind(clients=clients, examples=examples)
    )


def check_hands(partition: Partition, hands: list[Labels], labels: Labels, *, disjoint: bool) -> None:
    """What every partition promises."""
    assert len(hands) == partition.clients
    for hand in hands:
        assert len(hand) >= 1
        assert partition.examples is None or len(hand) <= partition.examples
        assert np.issubdtype(hand.dtype, np.integer)
        # Ascending without equals: sorted, and no sample twice.
        assert (np.diff(hand) > 0).all()
        assert hand[0] >= 0
        assert hand[-1] < len(labels)
    if disjoint:
        held = np.concatenate(hands)
        assert len(np.unique(held)) == len(held)


any_labels = st.tuples(st.integers(1, 300), st.integers(0, 10**6)).map(
    lambda pair: np.random.default_rng(pair[1]).integers(0, CLASSES, pair[0])
)
caps = st.none() | st.integers(1, 60)
alphas = st.sampled_from([1e-320, 1e-12, 1e-3]) | st.floats(0.01, 100) | st.sampled_from([1e6, 1e300])


class TestShare:
    @pytest.mark.parametrize(
        ("share", "dominant", "other", "even", "odd"),
        [
            (10, 186, 6, 1560, 840),
            (20, 172, 12, 1520, 880),
            (30, 158, 18, 1480, 920),
            (50, 130, 30, 1400, 1000),
            (70, 102, 42, 1320, 1080),
        ],
    )
    def test_counts_of_the_paper(self, share: float, dominant: int, other: int, even: int, odd: int) -> None:
        partition = Share(clients=20, examples=600, share=share)
        hands = split(partition, CIFAR)
        check_hands(partition, hands, CIFAR, disjoint=True)
        counts = class_counts(hands, CIFAR)
        for i in range(20):
            group = GROUPS[i % 5]
            assert counts[i].tolist() == [dominant if k in group else other for k in range(CLASSES)]
        assert counts.sum(0).tolist() == [even, odd] * 5
        assert {len(hand) for hand in hands} == {600}

    def test_remainders_on_digits(self) -> None:
        """40 samples, 4 of them uniform: both remainders go round from the client's number."""
        partition = Share(clients=20, examples=40, share=10)
        hands = split(partition, DIGITS)
        check_hands(partition, hands, DIGITS, disjoint=True)
        counts = class_counts(hands, DIGITS)
        expected = np.zeros((20, CLASSES), dtype=np.int64)
        for i in range(20):
            for j in range(4):
                expected[i, (i + j) % 10] += 1
            group = [(2 * (i % 5) + j) % 10 for j in range(3)]
            for j in range(36):
                expected[i, group[(i + j) % 3]] += 1
        np.testing.assert_array_equal(counts, expected)
        # By hand: client 0 has the classes 0 to 3 once each and its group {0, 1, 2} twelve times each.
        assert counts[0].tolist() == [13, 13, 13, 1, 0, 0, 0, 0, 0, 0]
        assert counts[7].tolist() == [1, 0, 0, 0, 12, 12, 12, 1, 1, 1]

    def test_remainders_among_dominant_classes(self) -> None:
        """Of 41 samples 4 are uniform and 37 dominant, one too many for three classes."""
        counts = Share(clients=6, share=10).class_counts(41, CLASSES)
        assert counts[0].tolist() == [14, 13, 13, 1, 0, 0, 0, 0, 0, 0]
        # Client 1's group is {2, 3, 4}; what is left over goes to the second of them.
        assert counts[1].tolist() == [0, 1, 13, 14, 13, 0, 0, 0, 0, 0]
        # Client 4's is {8, 9, 0}, the ring; 4 modulo 3 is the second again.
        assert counts[4].tolist() == [12, 0, 0, 0, 1, 1, 1, 1, 12, 13]

    @pytest.mark.parametrize(("classes", "groups"), [(4, 2), (5, 3), (7, 4), (100, 50)])
    def test_groups_of_other_data_sets(self, classes: int, groups: int) -> None:
        counts = Share(clients=2 * groups, share=0).class_counts(30, classes)
        for i in range(2 * groups):
            first = 2 * (i % groups)
            assert set(np.flatnonzero(counts[i]).tolist()) == {(first + j) % classes for j in range(3)}
        assert (counts.sum(0) > 0).all()

    @pytest.mark.parametrize(("share", "different"), [(0, 3), (100, 10)])
    def test_the_ends(self, share: float, different: int) -> None:
        counts = class_counts(split(Share(clients=20, examples=100, share=share), CIFAR), CIFAR)
        assert ((counts > 0).sum(1) == different).all()
        if share == 100:
            assert (counts == 10).all()

    def test_percent_is_exact(self) -> None:
        """18.4 % of 375 are 69, although 375 * 18.4 / 100 falls short of it in floating point."""
        counts = Share(clients=5, share=18.4).class_counts(375, CLASSES)
        # 306 go to the dominant classes, 102 each; of 69 the last class gets 6 and the others 7.
        assert counts[0].tolist() == [109, 109, 109, 7, 7, 7, 7, 7, 7, 6]

    @settings(deadline=None, max_examples=60)
    @given(
        clients=st.integers(1, 40),
        examples=st.none() | st.integers(1, 80),
        share=st.floats(0, 100),
        seed=st.integers(0, 10**6),
    )
    def test_deals_what_it_says(self, clients: int, examples: int | None, share: float, seed: int) -> None:
        labels = balanced(2000)
        partition = Share(clients=clients, examples=examples, share=share)
        size = min(2000 // clients, examples or 2000)
        if refusal(partition, labels):
            # Refused only if some class is asked for too often.
            assert (partition.class_counts(size, CLASSES).sum(0) > 200).any()
            return
        hands = split(partition, labels, seed)
        check_hands(partition, hands, labels, disjoint=True)
        assert {len(hand) for hand in hands} == {size}
        counts = class_counts(hands, labels)
        np.testing.assert_array_equal(counts, partition.class_counts(size, CLASSES))
        for i in range(clients):
            others = [int(counts[i, k]) for k in range(CLASSES) if k not in GROUPS[i % 5]]
            assert max(others) - min(others) <= 1
            # A tenth of s% each, rounded down or up.
            assert abs(sum(others) / 7 - size * share / 1000) < 1.5

    @settings(deadline=None, max_examples=60)
    @given(
        sizes=st.lists(st.integers(1, 40), min_size=4, max_size=12),
        clients=st.integers(1, 30),
        share=st.sampled_from([0, 10, 33.3, 70, 100]),
        seed=st.integers(0, 10**6),
    )
    def test_its_advice_works(self, sizes: list[int], clients: int, share: float, seed: int) -> None:
        labels = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        assume(clients <= len(labels))
        partition = Share(clients=clients, share=share)
        while advice := refusal(partition, labels, len(sizes)):
            found = re.search(r"; set `partition.examples` to at most (\d+)\.$", advice)
            if found:
                # This advice works at once, and one sample more would not.
                more = dataclasses.replace(partition, examples=int(found[1]) + 1)
                assert refusal(more, labels, len(sizes))
                partition = dataclasses.replace(partition, examples=int(found[1]))
                assert refusal(partition, labels, len(sizes)) is None
            else:
                assert advice.endswith("; use fewer `partition.clients`.")
                assert partition.clients > 1
                partition = dataclasses.replace(partition, clients=partition.clients - 1)
        check_hands(partition, split(partition, labels, seed, len(sizes)), labels, disjoint=True)

    def test_an_exhausted_class_is_named(self) -> None:
        with pytest.raises(UserError) as error:
            split(Share(clients=20, examples=60, share=10), balanced(1000))
        # 5 uniform and 45 dominant: class 0 is dominant for 8 of 20 clients, 8 * 15 + 20 * 0.5 = 130.
        assert str(error.value) == (
            "`partition.examples` gives 50 samples to each of 20 clients, which takes 130 of class 0, but the data set "
            "has 100; set `partition.examples` to at most 38."
        )

    def test_a_class_without_samples(self) -> None:
        """Nobody can be advised to use fewer than one client."""
        labels = balanced(500)
        with pytest.raises(UserError) as error:
            split(Share(clients=1, examples=10, share=0), labels[labels != 0])
        assert "class 0" in str(error.value)
        assert "fewer `partition.clients`" not in str(error.value)

    @pytest.mark.parametrize("classes", [1, 3])
    def test_few_classes_are_refused(self, classes: int) -> None:
        with pytest.raises(UserError) as error:
            split(Share(clients=2), balanced(60, classes), classes=classes)
        assert str(error.value) == f"`partition.name` is `share`, which needs over 3 classes, not {classes}."


class TestPathological:
    def test_sizes_of_the_paper(self) -> None:
        partition = Pathological(clients=20, classes_per_client=3)
        hands = split(partition, CIFAR)
        check_hands(partition, hands, CIFAR, disjoint=False)
        counts = class_counts(hands, CIFAR)
        for i in range(20):
            assert sorted(counts[i].tolist()) == [0] * 7 + [833] * 3
        assert {len(hand) for hand in hands} == {2499}

    def test_sizes_with_a_hundred_classes(self) -> None:
        labels = balanced(50_000, 100)
        counts = class_counts(split(Pathological(clients=20, classes_per_client=10), labels, classes=100), labels, 100)
        assert all(sorted(row.tolist()) == [0] * 90 + [250] * 10 for row in counts)

    def test_clients_draw_independently(self) -> None:
        hands = split(Pathological(clients=60, classes_per_client=1), CIFAR)
        counts = class_counts(hands, CIFAR)
        assert len(np.unique(counts.argmax(1))) == CLASSES
        # 833 of 5000 samples each: two clients with the same class have some in common, but not all.
        same = [h for h, k in zip(hands, counts.argmax(1), strict=True) if k == counts[0].argmax()]
        common = [len(np.intersect1d(same[0], other)) for other in same[1:]]
        assert common
        assert all(0 < n < 833 for n in common)

    def test_samples_that_do_not_divide_go_round(self) -> None:
        counts = class_counts(split(Pathological(clients=6, examples=41, classes_per_client=3), CIFAR), CIFAR)
        for i in range(6):
            held = counts[i][counts[i] > 0].tolist()
            expected = [13, 13, 13]
            for j in range(2):
                expected[(i + j) % 3] += 1
            assert held == expected

    def test_a_small_class_gives_what_it_has(self) -> None:
        labels = np.repeat(np.arange(CLASSES, dtype=np.int64), [2] + [200] * 9)
        hands = split(Pathological(clients=5, classes_per_client=10), labels)
        counts = class_counts(hands, labels)
        assert (counts[:, 0] == 2).all()
        assert (counts[:, 1:] == 36).all()

    @settings(deadline=None, max_examples=60)
    @given(
        labels=any_labels,
        clients=st.integers(1, 40),
        examples=caps,
        held=st.integers(1, CLASSES),
        seed=st.integers(0, 10**6),
    )
    def test_everybody_holds_a_few_classes(
        self, labels: Labels, clients: int, examples: int | None, held: int, seed: int
    ) -> None:
        assume(clients <= len(labels))
        assume(examples is None or examples >= held)
        assume(held <= len(set(labels.tolist())))
        partition = Pathological(clients=clients, examples=examples, classes_per_client=held)
        hands = split(partition, labels, seed)
        check_hands(partition, hands, labels, disjoint=False)
        assert ((class_counts(hands, labels) > 0).sum(1) <= held).all()

    def test_more_classes_than_there_are(self) -> None:
        with pytest.raises(UserError) as error:
            split(Pathological(classes_per_client=11), CIFAR)
        assert str(error.value) == (
            "`partition.classes_per_client` is 11, but the data set has 10 classes; use at most that many."
        )
        assert len(split(Pathological(classes_per_client=10), CIFAR)) == 20

    def test_fewer_samples_than_classes(self) -> None:
        with pytest.raises(UserError) as error:
            split(Pathological(classes_per_client=4, examples=3), CIFAR)
        assert str(error.value) == (
            "`partition.examples` is 3, fewer than `partition.classes_per_client`, 4; give each class at least one "
            "sample."
        )
        hands = split(Pathological(classes_per_client=4, examples=4), CIFAR)
        assert all(sorted(row.tolist()) == [0] * 6 + [1] * 4 for row in class_counts(hands, CIFAR))


class TestIID:
    @settings(deadline=None, max_examples=40)
    @given(samples=st.integers(1, 300), clients=st.integers(1, 40), examples=caps, seed=st.integers(0, 10**6))
    def test_equal_sizes_without_overlap(self, samples: int, clients: int, examples: int | None, seed: int) -> None:
        assume(clients <= samples)
        labels = balanced(samples)
        partition = IID(clients=clients, examples=examples)
        hands = split(partition, labels, seed)
        check_hands(partition, hands, labels, disjoint=True)
        assert {len(hand) for hand in hands} == {min(samples // clients, examples or samples)}

    def test_classes_are_spread_evenly(self) -> None:
        counts = class_counts(split(IID(clients=20), np.sort(CIFAR)), np.sort(CIFAR))
        # 2,500 samples each, a tenth of each class: 250, give or take five deviations.
        assert (np.abs(counts - 250) < 5 * np.sqrt(2500 * 0.1 * 0.9)).all()
        assert len(np.unique(counts)) > 10


class TestDirichlet:
    @settings(deadline=None, max_examples=80)
    @given(labels=any_labels, clients=st.integers(1, 40), examples=caps, alpha=alphas, seed=st.integers(0, 10**6))
    def test_everybody_gets_something(
        self, labels: Labels, clients: int, examples: int | None, alpha: float, seed: int
    ) -> None:
        assume(clients <= len(labels))
        partition = Dirichlet(clients=clients, examples=examples, alpha=alpha)
        hands = split(partition, labels, seed)
        check_hands(partition, hands, labels, disjoint=True)
        if examples is None:
            assert sum(len(hand) for hand in hands) == len(labels)

    def test_as_many_clients_as_samples(self) -> None:
        hands = split(Dirichlet(clients=50, alpha=1e-12), balanced(50))
        assert [len(hand) for hand in hands] == [1] * 50

    @pytest.mark.parametrize("alpha", [1e9, 1e300, 1e308])
    def test_large_alpha_is_even(self, alpha: float) -> None:
        counts = class_counts(split(Dirichlet(clients=20, alpha=alpha), CIFAR), CIFAR)
        assert (np.abs(counts - 250) <= 2).all()

    def test_small_alpha_gives_each_class_to_one_client(self) -> None:
        counts = class_counts(split(Dirichlet(clients=20, alpha=1e-6), CIFAR), CIFAR)
        assert (counts.max(0) >= 5000 - 20).all()

    @pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
    def test_shares_have_the_variance_of_the_distribution(self, alpha: float) -> None:
        clients = 10
        shares = np.concatenate(
            [
                class_counts(split(Dirichlet(clients=clients, alpha=alpha), CIFAR, seed), CIFAR) / 5000
                for seed in range(12)
            ],
            axis=1,
        )
        np.testing.assert_allclose(shares.sum(0), 1)
        mean = 1 / clients
        expected = mean * (1 - mean) / (clients * alpha + 1)
        # 1,200 shares; their variance is known to within about a fifth.
        assert abs(shares.var() / expected - 1) < 0.35

    def test_the_cap_cuts_at_random_not_by_class(self) -> None:
        hands = split(Dirichlet(clients=2, examples=500, alpha=1e6), CIFAR)
        counts = class_counts(hands, CIFAR)
        assert [len(hand) for hand in hands] == [500, 500]
        assert (np.abs(counts - 50) < 5 * np.sqrt(500 * 0.1 * 0.9)).all()


class TestEveryPartition:
    @pytest.fixture(params=[name for name in PARTITIONS.names() if name != "given"])
    def kind(self, request: pytest.FixtureRequest) -> type[Partition]:
        found: type[Partition] = PARTITIONS[request.param]
        return found

    def test_the_seed_decides(self, kind: type[Partition]) -> None:
        partition = kind(clients=10, examples=100)
        first, again, other = (split(partition, CIFAR, seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))

    def test_the_cap_holds(self, kind: type[Partition]) -> None:
        for examples in (3, 57):
            partition = kind(clients=10, examples=examples)
            check_hands(partition, split(partition, CIFAR), CIFAR, disjoint=kind is not Pathological)

    def test_a_cap_nobody_reaches_changes_nothing(self, kind: type[Partition]) -> None:
        labels = balanced(400)
        free, capped = (split(without_skew(kind, 10, examples), labels) for examples in (None, 400))
        assert all(np.array_equal(a, b) for a, b in zip(free, capped, strict=True))
        assert sum(len(hand) for hand in free) >= 390

    def test_more_clients_than_samples(self, kind: type[Partition]) -> None:
        with pytest.raises(UserError) as error:
            split(kind(clients=41), balanced(40))
        assert str(error.value) == (
            "`partition.clients` is 41, but the data set has 40 samples; use at most as many clients as samples."
        )

    @pytest.mark.parametrize("clients", [1, 7, 40])
    def test_up_to_as_many_clients_as_samples(self, kind: type[Partition], clients: int) -> None:
        partition = without_skew(kind, clients, 3)
        check_hands(partition, split(partition, balanced(40)), balanced(40), disjoint=kind is not Pathological)

    def test_labels_are_only_read(self, kind: type[Partition]) -> None:
        labels = balanced(4000)
        before = labels.copy()
        split(kind(clients=10, examples=50), labels)
        np.testing.assert_array_equal(labels, before)

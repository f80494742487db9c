"""Every partition gives each client samples or refuses in one sentence; and what each of them promises."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedmate.data.partitions import (
    PARTITIONS,
    Dirichlet,
    Natural,
    Partition,
    PartitionInput,
    Share,
    repeat_samples,
    ring,
)
from fedmate.errors import UserError

Labels = NDArray[np.int64]

CLASSES = 10


def balanced(samples: int, classes: int = CLASSES) -> Labels:
    """Labels in random order, as many of each class as of the others (or one more)."""
    labels: Labels = np.random.default_rng(0).permutation(np.arange(samples, dtype=np.int64) % classes)
    return labels


CIFAR = balanced(50_000)


def input_of(labels: Labels, seed: int = 0, classes: int = CLASSES, **more: Any) -> PartitionInput:
    return PartitionInput(labels, classes, np.random.default_rng(seed), **more)


def split(partition: Partition, labels: Labels, seed: int = 0, classes: int = CLASSES, **more: Any) -> list[Labels]:
    return partition.split(input_of(labels, seed, classes, **more))


def class_counts(client_rows: list[Labels], labels: Labels, classes: int = CLASSES) -> Labels:
    return np.stack([np.bincount(labels[rows], minlength=classes) for rows in client_rows])


def refusal(partition: Partition, data: PartitionInput) -> str | None:
    """The sentence with which a partition refuses, if it does."""
    try:
        partition.split(data)
    except UserError as error:
        return str(error)
    return None


def check_rows(partition: Partition, client_rows: list[Labels], data: PartitionInput, *, disjoint: bool) -> None:
    """What every partition promises."""
    assert partition.clients in (None, len(client_rows))
    for rows in client_rows:
        assert len(rows) >= 1
        assert partition.examples is None or len(rows) <= partition.examples
        assert rows.dtype == np.int64
        # Ascending without equals: sorted, and no sample twice.
        assert (np.diff(rows) > 0).all()
        assert rows[0] >= 0
        assert rows[-1] < len(data.labels)
    if disjoint:
        held = np.concatenate(client_rows)
        assert len(np.unique(held)) == len(held)


def digest(client_rows: list[Labels]) -> str:
    found = hashlib.sha256()
    for rows in client_rows:
        found.update(f"{len(rows)}\n".encode() + rows.astype("<i8").tobytes())
    return found.hexdigest()


NUMBERS = np.arange(3000, dtype=np.int64)
FIXED = NUMBERS * NUMBERS * 31 % 97 % 10
"""Labels made without any random number."""

OWNERS = NUMBERS * 17 % 101 % 40

# Made with numpy 2.4.6; numpy 1.26.4 makes the same.
GOLDEN: list[tuple[str, dict[str, Any], str]] = [
    ("dirichlet", {}, "fd6976616dd335ce4b57a9cc46c2a238448c440d7f2b76d476e0e8ba9ff63509"),
    (
        "dirichlet",
        {"clients": 300, "alpha": 0.0001},
        "64ea92bdd9758b500d5ef1988e928bc742cad25fe28730dac91713179ea2770b",
    ),
    ("iid", {}, "57a0da30eec70f43192b8cbb624e8ddbd330e714fca94b8e6baa8c2603596043"),
    ("natural", {}, "936d486fe698a6cf5d26b2cf75eff3b97a9a8338d47d817b83f67bf823d29f5f"),
    (
        "natural",
        {"clients": 12, "examples": 25, "minimum": 61},
        "59ba058eb4deb1e3fe991aac3b68666d8e31ac02071ed9131e8627f5d488fd61",
    ),
    ("pathological", {}, "e24163c3335a456b437c80404d22b9983db8ecd811f907c842ff4327fdf9e0ae"),
    ("share", {"examples": 50}, "825e4322fea83164e8ea81e54816831fdb6820d8af9ccccf237f8d89fa89e745"),
    (
        "share",
        {"examples": 45, "groups": "random", "dominant": 4},
        "accfdca1ffc68926b85cbae215d7c777c962cb3914b0dea5b8b8ba685ca3b673",
    ),
]


def with_owners(labels: Labels) -> Labels:
    """Whose each sample is: as many clients as samples, ten at most."""
    return np.arange(len(labels), dtype=np.int64) * 7 % max(1, min(10, len(labels)))


@pytest.mark.parametrize(("name", "options", "expected"), GOLDEN)
def test_the_same_seed_gives_the_same_partition_on_every_machine(
    name: str, options: dict[str, Any], expected: str
) -> None:
    assert digest(split(PARTITIONS[name](**options), FIXED, seed=12345, clients=OWNERS)) == expected


options: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "dirichlet": st.fixed_dictionaries({"alpha": st.sampled_from([1e-320, 1e-9, 1e-3, 0.5, 100.0, 1e308])}),
    "iid": st.just({}),
    "natural": st.fixed_dictionaries({"minimum": st.integers(1, 4)}),
    "pathological": st.fixed_dictionaries({"classes_per_client": st.integers(1, 8)}),
    "share": st.fixed_dictionaries(
        {"share": st.sampled_from([0.0, 10.0, 33.3, 100.0]), "groups": st.sampled_from(["fixed", "random"])}
    ),
}


@st.composite
def inputs(draw: st.DrawFn) -> PartitionInput:
    """Odd data: few samples, one class, classes without samples, groups of any size."""
    sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8) | st.lists(st.integers(0, 6), max_size=8))
    classes, rng = max(1, len(sizes)), np.random.default_rng(draw(st.integers(0, 99)))
    labels = rng.permutation(np.repeat(np.arange(len(sizes), dtype=np.int64), np.array(sizes, dtype=np.int64)))
    owners = draw(st.none() | st.just(with_owners(labels)))
    groups = draw(st.just(()) | st.just((tuple(range(classes)),)) | st.just(tuple((k,) for k in range(classes))))
    return PartitionInput(labels, classes, rng, groups, owners)


@pytest.mark.parametrize("name", options)
@settings(max_examples=150)
@given(
    data=inputs(),
    clients=st.integers(1, 8) | st.integers(1, 70),
    examples=st.none() | st.integers(1, 12),
    choices=st.data(),
)
def test_every_client_gets_samples_or_the_split_is_refused(
    name: str, data: PartitionInput, clients: int, examples: int | None, choices: st.DataObject
) -> None:
    partition = PARTITIONS[name](clients=clients, examples=examples, **choices.draw(options[name]))
    before = data.labels.copy()
    try:
        client_rows = partition.split(data)
    except UserError:
        event("refused")
        return
    event("split")
    check_rows(partition, client_rows, data, disjoint=name != "pathological")
    np.testing.assert_array_equal(data.labels, before)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("share", {"dominant": 4}, "`partition.dominant` is 4, but fixed groups have their own size; leave it out, or"),
        ("pathological", {"classes_per_client": 11}, "is 11, but the data set has 10 classes; use at most that many"),
        ("iid", {"clients": 50_001}, "is 50001, but the data set has 50000 samples; use at most as many clients as"),
        ("natural", {}, "the data set has no natural clients; use another partition, or the data set `npz`"),
        ("given", {}, "`partition.name` is `given`, which takes clients as they are; call `fedmate.run` with"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    assert words in (refusal(PARTITIONS[name](**options), input_of(CIFAR)) or "")


def test_natural_clients_keep_their_own_in_the_order_of_the_data_set() -> None:
    owners, labels = np.array([2, 0, 2, 2, 5, 0, 2, 5, 2, 2], dtype=np.int64), balanced(10)
    found = [rows.tolist() for rows in split(Natural(), labels, clients=owners)]
    assert found == [[1, 5], [0, 2, 3, 6, 8, 9], [4, 7]]
    assert [rows.tolist() for rows in split(Natural(minimum=3), labels, clients=owners)] == [found[1]]
    chosen = [split(Natural(clients=2, examples=1), labels, seed, clients=owners) for seed in range(9)]
    assert len({tuple(owners[rows[0]] for rows in client_rows) for client_rows in chosen}) == 3
    words = "`partition.clients` is 4, but 1 clients have at least `partition.minimum` samples, 3;"
    assert words in (refusal(Natural(clients=4, minimum=3), input_of(labels, clients=owners)) or "")


def test_the_largest_gives_to_those_that_would_get_nothing() -> None:
    """With 3 classes, 3 clients at most hold a class; the other 17 take one sample each from the largest."""
    labels = np.repeat(np.arange(3, dtype=np.int64), [10, 30, 300])
    sizes = sorted(len(rows) for rows in split(Dirichlet(clients=20, alpha=1e-12), labels, seed=1, classes=3))
    assert sizes == [1] * 17 + [10, 30, 283]


# 0.29 * 50 are 14 and a half, but 14.499999999999998 in floating point.
@pytest.mark.parametrize(
    ("clients", "share", "count"), [(20, 0.0, 0), (20, 0.10, 2), (20, 0.35, 7), (20, 1.0, 20), (50, 0.29, 15)]
)
def test_a_share_of_the_clients_repeat_one_of_their_samples(clients: int, share: float, count: int) -> None:
    before = list(np.arange(clients * 600, dtype=np.int64).reshape(clients, 600) * 3)
    after = repeat_samples(before, share, 0.5, np.random.default_rng(0))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if not np.array_equal(old, new)]
    assert len(changed) == count
    for old, new in changed:
        rows, times = np.unique(new, return_counts=True)
        assert {*rows.tolist()} <= {*old.tolist()}
        # 300 places, and perhaps the sample's own besides.
        assert sorted(times.tolist())[-2:] in ([1, 300], [1, 301])
        assert len(new) == 600
        assert (np.diff(new) >= 0).all()


RING = ring(CLASSES)

EMNIST = tuple(tuple(range(*ends)) for ends in ((0, 10), (10, 36), (36, 62)))
"""Digits, capital letters, small letters: the groups of the 62 classes."""


@pytest.mark.parametrize(
    ("share", "dominant", "other", "even", "odd"),
    [
        (10, 186, 6, 1560, 840),
        (50, 130, 30, 1400, 1000),
        (70, 102, 42, 1320, 1080),
    ],
)
def test_counts_of_the_paper(share: float, dominant: int, other: int, even: int, odd: int) -> None:
    partition = Share(clients=20, examples=600, share=share)
    client_rows = split(partition, CIFAR)
    check_rows(partition, client_rows, input_of(CIFAR), disjoint=True)
    counts = class_counts(client_rows, CIFAR)
    groups = ({0, 1, 2}, {2, 3, 4}, {4, 5, 6}, {6, 7, 8}, {8, 9, 0})
    for i in range(20):
        assert counts[i].tolist() == [dominant if k in groups[i % 5] else other for k in range(CLASSES)]
    assert counts.sum(0).tolist() == [even, odd] * 5
    assert {len(rows) for rows in client_rows} == {600}


def test_62_classes_by_hand() -> None:
    """s = 10: 100 uniform are 1 or 2 of each class; 900 dominant are 90 of each digit, 34 or 35 of each letter."""
    counts = Share(clients=3, share=10).class_counts(1000, 62, EMNIST)
    assert counts[0].tolist() == [92] * 10 + [2] * 28 + [1] * 24
    # Client 1: the extra 38 begin at class 38 and end at class 13; the extra 16 of 900 = 26 * 34 + 16 go to A to P.
    assert counts[1].tolist() == [2] * 10 + [37] * 4 + [36] * 12 + [35] * 10 + [1] * 2 + [2] * 24
    # Client 2: they go on at class 14.
    assert counts[2, :36].tolist() == [1] * 14 + [2] * 22
    assert counts.sum(1).tolist() == [1000] * 3


def test_percent_is_exact() -> None:
    """18.4 % of 375 are 69, although 375 * 18.4 / 100 falls short of it in floating point."""
    counts = Share(clients=5, share=18.4).class_counts(375, CLASSES, RING)
    # 306 go to the dominant classes, 102 each; of 69 the last class gets 6 and the others 7.
    assert counts[0].tolist() == [109, 109, 109, 7, 7, 7, 7, 7, 7, 6]


@settings(max_examples=60)
@given(
    clients=st.integers(1, 40),
    examples=st.none() | st.integers(1, 80),
    share=st.floats(0, 100),
    seed=st.integers(0, 10**6),
)
def test_the_split_is_that_of_the_counts(clients: int, examples: int | None, share: float, seed: int) -> None:
    data = input_of(balanced(2000), seed)
    partition = Share(clients=clients, examples=examples, share=share)
    size = min(2000 // clients, examples or 2000)
    if refusal(partition, data):
        # Refused only if some class is asked for too often.
        assert (partition.class_counts(size, CLASSES, RING).sum(0) > 200).any()
        return
    client_rows = partition.split(data)
    check_rows(partition, client_rows, data, disjoint=True)
    assert {len(rows) for rows in client_rows} == {size}
    counts = class_counts(client_rows, data.labels)
    np.testing.assert_array_equal(counts, partition.class_counts(size, CLASSES, RING))
    for i in range(clients):
        others = np.delete(counts[i], RING[i % 5])
        assert others.max() - others.min() <= 1
        # A tenth of s% each, rounded down or up.
        assert abs(others.mean() - size * share / 1000) < 1.5

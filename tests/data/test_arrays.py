"""A user's own arrays: taken as they are, copied, told apart, and refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedmate.data.arrays import Pool, Sites, fingerprint
from fedmate.data.dataset import Normalisation
from fedmate.errors import UserError

X, Y = [[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], [0, 1, 2]
NAN = [[0.0, float("nan")], [1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, partial(torch.tensor, dtype=torch.bfloat16)])
def test_lists_arrays_and_tensors_are_all_the_same(kind: Callable[[Any], Any]) -> None:
    pool = Pool(kind(X), kind(Y), kind(X), kind(Y))
    for part in (pool.arrays.train, pool.arrays.test):
        assert part is not None
        np.testing.assert_array_equal(part.x, X)
        assert part.y.tolist() == Y
        assert part.y.dtype == np.int64
    assert pool.arrays.class_names == ("0", "1", "2")
    assert pool.client_rows is None
    assert pool.arrays.normalisation == Normalisation()


@pytest.mark.parametrize("kind", ["f4", "f8"])
def test_the_callers_arrays_are_copied(kind: str) -> None:
    x, y = np.array(X, dtype=kind), np.array(Y)
    pool, sites = Pool(x, y), Sites([(x, y)], test=(x, y))
    before = fingerprint(pool), fingerprint(sites)
    x[:], y[:] = 9, 0
    assert (fingerprint(pool), fingerprint(sites)) == before
    tensor = torch.tensor(X, requires_grad=True)
    pool = Pool(tensor, Y)
    pool.arrays.train.x[:] = 7
    assert tensor.tolist() == X


def test_classes_are_those_named_or_those_seen_in_either_part() -> None:
    assert Pool(X, [0, 0, 1], X, [3, 0, 0]).arrays.class_names == ("0", "1", "2", "3")
    assert Pool(X, [0, 0, 0], class_names=["a", "b"]).arrays.class_names == ("a", "b")
    words = Sites([(X, ["cat", "ant", "cat"]), (X[:1], np.array(["bee"], dtype=object))], test=(X[:1], ["emu"])).arrays
    assert (words.train.y.tolist(), words.class_names) == ([2, 0, 2, 1], ("ant", "bee", "cat", "emu"))
    assert Pool(X, ["b", "b", "a"], class_names=["b", "a"]).arrays.train.y.tolist() == [0, 0, 1]


def test_sites_keep_who_holds_what() -> None:
    sites = Sites([(X, Y), (X[:1], Y[:1]), (X[1:], Y[1:])], test=(X, Y), class_names="abc")
    assert sites.client_rows is not None
    assert [rows.tolist() for rows in sites.client_rows] == [[0, 1, 2], [3], [4, 5]]
    assert sites.arrays.train.y.tolist() == [0, 1, 2, 0, 1, 2]
    np.testing.assert_array_equal(sites.arrays.train.x, [*X, X[0], *X[1:]])


def test_the_fingerprint_is_of_the_content() -> None:
    same = [Pool(X, Y), Pool(np.array(X), torch.tensor(Y)), Pool(X, Y, class_names=["0", "1", "2"])]
    assert len({fingerprint(pool) for pool in same}) == 1
    others: list[Pool | Sites] = [
        same[0],
        Pool(X, [0, 2, 1]),
        Pool(np.array(X, dtype="f4"), Y),
        Pool(X, Y, X, Y),
        Pool(X, Y, class_names=["a", "b", "c"]),
        Sites([(X, Y)], test=(X, Y)),
        Sites([(X[:1], Y[:1]), (X[1:], Y[1:])], test=(X, Y)),
        Sites([(X[:2], Y[:2]), (X[2:], Y[2:])], test=(X, Y)),
    ]
    assert len({fingerprint(data) for data in others}) == len(others)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Pool([], []), "`x` has the shape [0], `y` [0]; give [samples, ...] and one label for each sample"),
    (lambda: Pool(X[:2], Y), "`x` has the shape [2, 2], `y` [3]; give [samples, ...] and one label"),
    (lambda: Pool(NAN, Y), "`x` is nan at [0, 1]; replace numbers that are not finite."),
    (lambda: Pool(X, [0, 0.5, 1]), "`y` is 0.5 at [1], but labels are whole numbers from 0 to 99999; number the"),
    (lambda: Pool(X, ["a", "b", "c"], X, Y), "`y` holds <U1 values; give whole numbers, or words in every part."),
    (lambda: Pool(X, ["a", "b", "c"], class_names=["a", "b"]), "`y` holds `c`, which is none of `class_names`; add"),
    (lambda: Pool(X, Y, X), "`test_x` and `test_y` belong together; give both, or neither."),
    (
        lambda: Pool(X, Y, [[1.0]], [0]),
        "`test_x` has float64 samples of shape [1], `x` float64 samples of",
    ),
    (lambda: Pool(X, Y, class_names=["a", "b"]), "`y` is 2 at [2], but labels are whole numbers from 0 to 1"),
    (lambda: Pool(X, [0, 0, 0]), "`y` has 1 classes; there must be 2 to 100,000."),
    (lambda: Sites([], test=(X, Y)), "`clients` is empty; give a pair `(x, y)` for each client."),
    (lambda: Sites([(X, Y), np.array(X)], test=(X, Y)), "`clients[1]` is no pair; give a pair"),  # type: ignore[list-item]
    (lambda: Sites([(X, Y)]), "`test` is missing; give a pair"),
    (lambda: Sites([(X, Y, X, Y), (X, Y)]), "`clients[1]` has 2 arrays, `clients[0]` 4; give every client the same"),
    (lambda: Sites([(X, Y, X)], test=(X, Y)), "`clients[0]` has 3 arrays; give every client the same two or four"),
    (lambda: Sites([(X, Y), (NAN, Y)], test=(X, Y)), "`clients[1].x` is nan at [0, 1]; replace numbers"),
]


@pytest.mark.parametrize(("make", "sentence"), REFUSED)
def test_data_that_does_not_fit_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value).startswith(sentence)

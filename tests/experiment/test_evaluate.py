"""The figures of a record, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedmate.backends.base import View
from fedmate.errors import UserError
from fedmate.experiment.evaluate import evaluate_view, spread
from fedmate.tasks.metrics import METRICS, Metric

NAN = math.nan


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def view(clients: tuple[int, ...], accuracies: Tensor, own: Tensor | None = None) -> View:
    """Of ten samples of each class; of none where the accuracy is NaN."""

    def tally(accuracies: Tensor) -> Tensor:
        labels = torch.where(accuracies.isnan(), 0.0, 10.0)
        return torch.stack([(10 * accuracies).nan_to_num(0), labels, labels], 1)

    own = accuracies if own is None else own
    return View(clients, {"balanced": {"tally": tally(accuracies)}, "own": {"tally": tally(own)}})


LABELS = matrix([0.5, 0.5, 0.0], [0.0, 0.25, 0.75])
"""Two clients, three classes."""


def test_both_tests_by_hand() -> None:
    seen = view((0, 1), matrix([1.0, 0.5, 0.0], [0.2, 0.4, 0.9]))
    figures = evaluate_view(seen, LABELS)
    assert list(figures) == ["balanced", "own"]
    # balanced: client 0 (1 + 0.5 + 0) / 3 = 0.5, client 1 (0.2 + 0.4 + 0.9) / 3 = 0.5
    balanced = figures["balanced"]
    assert balanced["clients"] == pytest.approx([50.0, 50.0])
    assert balanced["mean"] == pytest.approx(50.0)
    assert balanced["std"] == pytest.approx(0.0, abs=1e-9)
    assert balanced["worst_tenth"] == pytest.approx(50.0)
    assert balanced["per_class"] == pytest.approx([60.0, 45.0, 45.0])
    # own: client 0 0.5 * 1 + 0.5 * 0.5 = 0.75, client 1 0.25 * 0.4 + 0.75 * 0.9 = 0.775
    own = figures["own"]
    assert own["clients"] == pytest.approx([75.0, 77.5])
    assert own["mean"] == pytest.approx(76.25)
    assert own["std"] == pytest.approx(1.25)
    assert own["worst_tenth"] == pytest.approx(75.0)
    # by class, weighed by who holds it: class 1 is (0.5 * 0.5 + 0.25 * 0.4) / 0.75
    assert own["per_class"] == pytest.approx([100.0, 100 * 0.35 / 0.75, 90.0])


def test_each_test_has_accuracies_of_its_own() -> None:
    """Those of models as they are, and of models adjusted to what the client holds."""
    plain, adjusted = matrix([1.0, 0.5, 0.0], [0.2, 0.4, 0.9]), matrix([0.9, 0.9, 0.1], [0.0, 0.0, 1.0])
    figures = evaluate_view(view((0, 1), plain, adjusted), LABELS)
    assert figures["balanced"] == evaluate_view(view((0, 1), plain), LABELS)["balanced"]
    assert figures["own"] == evaluate_view(view((0, 1), adjusted), LABELS)["own"]


def test_a_class_without_test_samples_counts_for_nobody() -> None:
    seen = view((0, 1), matrix([1.0, NAN, 0.0], [0.2, NAN, 0.9]))
    figures = evaluate_view(seen, LABELS)
    assert figures["balanced"]["clients"] == pytest.approx([50.0, 55.0])
    assert figures["balanced"]["per_class"][1] is None
    assert figures["balanced"]["per_class"][0::2] == pytest.approx([60.0, 45.0])
    # What a client holds besides is weighed as if it were all: client 0 holds class 0 only, client 1 class 2.
    assert figures["own"]["clients"] == pytest.approx([100.0, 90.0])
    assert figures["own"]["mean"] == pytest.approx(95.0)
    assert figures["own"]["per_class"][1] is None


def test_a_client_without_any_tested_class_has_no_own_figure() -> None:
    labels = matrix([0.0, 1.0], [0.5, 0.5])
    figures = evaluate_view(view((0, 1), matrix([0.6, NAN], [0.8, NAN])), labels)
    assert figures["own"]["clients"][0] is None
    assert figures["own"]["clients"][1] == pytest.approx(80.0)
    assert figures["own"]["mean"] == pytest.approx(80.0)
    assert figures["balanced"]["clients"] == pytest.approx([60.0, 80.0])


@pytest.mark.parametrize(
    ("count", "worst"),
    [(1, 1.0), (10, 1.0), (11, 1.5), (21, 2.0)],
)
def test_the_worst_tenth_rounds_up_and_has_at_least_one(count: int, worst: float) -> None:
    values = torch.arange(count, 0, -1, dtype=torch.float64)
    assert spread(values)["worst_tenth"] == worst


def test_a_metric_of_another_package_may_take_the_confusion_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = Metric(lambda found, _: found["confusion"].sum((1, 2)) - found["tally"][:, 0].sum(1), needs="confusion")
    monkeypatch.setitem(METRICS._rows, "errors", errors)
    seen = view((0,), matrix([1.0, 0.5, 0.0]))
    seen.tests["balanced"]["confusion"] = torch.full((1, 3, 3), 10.0)
    assert evaluate_view(seen, LABELS, "errors")["balanced"]["mean"] == 90 - 15


@pytest.mark.parametrize(
    ("answer", "says"),
    [(lambda found, _: found["nothing"], "nothing"), (lambda *_: 3.0, "float"), (lambda *_: torch.ones(7), r"\[7\]")],
)
def test_a_metric_that_fails_is_named_in_one_sentence(
    answer: Callable[..., Tensor], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METRICS._rows, "mine", Metric(answer))
    with pytest.raises(UserError, match=rf"^The metric `mine` cannot be computed .*{says}.*\.$"):
        evaluate_view(view((0, 1), matrix([1.0, 0.5, 0.0], [0.2, 0.4, 0.9])), LABELS, "mine")

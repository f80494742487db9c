"""Metrics of a classification are those of scikit-learn, on tests that weigh classes as they come or otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from torch import Tensor

from fedmate.core import Tree, make_key, normal, tree_map
from fedmate.core.task import TASKS
from fedmate.tasks.metrics import METRICS, by_client

CLASSES, SAMPLES = 4, 300
NAMES = ("precision", "macro_f1", "auroc", "calibration_error", "confusion")


def answers() -> tuple[Tensor, Tensor, Tensor]:
    """Return logits, labels and a mask; the last class has no sample, and a tenth of the rows does not count."""
    logits = 2 * normal(make_key(1), (SAMPLES, CLASSES), torch.float64)
    y = torch.arange(SAMPLES) * 7 % 10 % 3
    logits[torch.arange(SAMPLES), y] += 1.5
    return logits, y, torch.arange(SAMPLES) % 10 != 3


def counted(weights: Tensor | None = None) -> Tree:
    """Return the statistics of a single client, as a stack."""
    task = TASKS["classification"](metrics=NAMES)
    found = task.summary(task.statistics(*answers(), CLASSES), weights, whole=True)
    return tree_map(lambda leaf: leaf[None], found)


def figure(name: str, weights: Tensor | None = None) -> float:
    statistics = counted(weights)
    used = statistics["tally"][:, 1] if weights is None else weights[None]
    return float(by_client(METRICS[name], statistics, used)[0]) / 100


@pytest.mark.parametrize(
    "shares", [None, torch.tensor([0.1, 0.6, 0.3, 0.0]), torch.tensor([0.5, 0.0, 0.5, 0.0]), torch.ones(CLASSES)]
)
def test_metrics_of_answers_are_those_of_scikit_learn(shares: Tensor | None) -> None:
    """A test that weighs classes otherwise is one whose samples weigh so."""
    logits, y, mask = (part.numpy() for part in answers())
    truth, found = y[mask], logits.argmax(1)[mask]
    counts = np.bincount(truth, minlength=CLASSES)
    weights = np.ones(len(truth)) if shares is None else (shares.double().numpy() / counts.clip(1))[truth]
    present = [k for k in range(CLASSES) if counts[k] and (shares is None or shares[k] > 0)]
    options = {"sample_weight": weights, "labels": present, "average": "macro", "zero_division": 0}
    wanted = {
        "accuracy": reference.accuracy_score(truth, found, sample_weight=weights),
        "balanced_accuracy": reference.recall_score(truth, found, **options),
        "precision": reference.precision_score(truth, found, **options),
        "macro_f1": reference.f1_score(truth, found, **options),
    }
    used = None if shares is None else shares.double()
    assert {name: figure(name, used) for name in wanted} == pytest.approx(wanted, abs=1e-12)


def test_binned_scores_are_close_to_exact_ones() -> None:
    logits, y, mask = answers()
    chances, truth = logits.softmax(1)[mask].numpy(), y[mask].numpy()
    areas = [reference.roc_auc_score(truth == k, chances[:, k]) for k in range(3)]
    assert figure("auroc") == pytest.approx(np.mean(areas), abs=1e-3)
    best, right = chances.max(1), chances.argmax(1) == truth
    bins = np.minimum((best * 15).astype(int), 14)
    gaps = [abs(right[bins == k].sum() - best[bins == k].sum()) for k in range(15)]
    assert figure("calibration_error") == pytest.approx(sum(gaps) / len(truth), abs=1e-6)


def test_statistics_add_up_over_parts_and_are_mapped_over_clients() -> None:
    task = TASKS["classification"](metrics=NAMES)
    parts = [torch.stack(torch.split(part, SAMPLES // 3)) for part in answers()]

    def count(logits: Tensor, y: Tensor, mask: Tensor) -> Tree:
        return task.statistics(logits, y, mask, CLASSES)

    alone = [count(*part) for part in zip(*parts, strict=True)]
    together, mapped = count(*answers()), torch.func.vmap(count)(*parts)
    assert sorted(together) == ["confidence", "confusion", "scores"]
    for name, whole in together.items():
        assert torch.equal(sum(part[name] for part in alone), whole)
        assert torch.equal(mapped[name], torch.stack([part[name] for part in alone]))


def test_what_no_metric_asks_for_is_not_counted() -> None:
    task = TASKS["classification"]()
    assert [*task.statistics(*answers(), CLASSES)] == ["confusion"]
    assert [*task.summary(task.statistics(*answers(), CLASSES), None, whole=True)] == ["tally"]

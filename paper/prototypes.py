"""Local prototypes: a t-SNE plot, and how well they separate classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedmate.experiment.record import Record
from fedmate.report.plots import Plot
from fedmate.report.tables import Table
from fedmate.studies.plots import title_of
from fedmate.studies.records import Records
from fedmate.studies.statistics import Results
from fedmate.studies.tables import titled
from paper.drawing import Cloud, Clouds
from paper.plots import class_names

FILE = Path(__file__).parent / "records" / "prototypes.safetensors"
"""Prototypes of the last round by method, `[clients, classes, width]`; empty for a run that diverged."""

PERPLEXITY, FEWEST = 30.0, 4
"""About how many neighbours a point has in t-SNE, and how many points it needs."""


class Prototypes(NamedTuple):
    """Prototypes `[prototypes, width]`, and their classes."""

    points: NDArray[np.float64]
    classes: NDArray[np.int64]


def prototypes(results: Results) -> list[Table | Plot]:
    """Return the silhouettes of each method's prototypes, and their t-SNE plot."""
    (setting,) = results.settings
    found = {method.key: _of_method(results, method.key) for method in results.methods}
    numbers = {key: None if one is None else silhouette(one) for key, one in found.items()}
    texts = {key: "diverged" if number is None else f"{number:.3f}" for key, number in numbers.items()}
    best = max((number for number in numbers.values() if number is not None), default=None)
    bold = frozenset((i, 1) for i, method in enumerate(results.methods) if numbers[method.key] == best)
    notes = [
        "silhouette of clients' prototypes by class, in the space of features: 1 is apart, 0 mixed, below 0 astray",
        "prototypes of the last round, of classes that a client holds; bold: the largest of a column",
    ]
    rows = [[method.name, texts[method.key]] for method in results.methods]
    head = ["method", setting.label]
    table = Table("silhouette", "how well prototypes separate classes", head, rows, notes, bold)
    clouds = [
        _cloud(f"{method.name}\n{'' if numbers[method.key] is None else 'silhouette '}{texts[method.key]}", one)
        for method in results.methods
        if (one := found[method.key]) is not None
    ]
    title = title_of(results, f"t-SNE of local prototypes, {setting.name}")
    return [titled(results, table), Clouds("prototypes", title, clouds, class_names(results, setting))]


def _of_method(results: Results, key: str) -> Prototypes | None:
    """Return the prototypes of the classes that clients hold; `None` if there are none of the method."""
    (setting,) = results.settings
    runs = [run for m in results.methods if m.key == key for run in results.finished(m, setting)]
    stored = _stored().get(key)
    return None if stored is None or not runs else held_prototypes(stored, runs[0].content["holdings"])


@cache
def _stored() -> dict[str, Tensor]:
    found: dict[str, Tensor] = load_file(FILE)
    return found


def held_prototypes(found: Tensor, holdings: Sequence[Sequence[int]]) -> Prototypes:
    """Return the finite prototypes of the classes that clients hold, of `[clients, classes, width]`."""
    clients, classes, width = found.shape
    held = torch.tensor(holdings[:clients]).reshape(clients, classes) > 0
    finite = held & torch.isfinite(found).all(-1) if width else torch.zeros_like(held)
    numbers = torch.arange(classes).expand(clients, -1)
    return Prototypes(found[finite].to(torch.float64).numpy(), numbers[finite].numpy())


def embed(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places in a plane by t-SNE, `[points, 2]`, the same for the same points; none for few or equal points."""
    if len(points) < FEWEST or not np.ptp(points, axis=0).any():
        return np.zeros((0, 2))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
    # With several threads sums would depend on their number.
    with threadpool_limits(limits=1):
        places = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(points)
    return np.asarray(places, dtype=np.float64)


def silhouette(found: Prototypes) -> float | None:
    """Return how well classes are separated, from 1 over 0 to -1; `None` if that cannot be told."""
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    if not 2 <= len(np.unique(found.classes)) < len(found.classes):
        return None
    with threadpool_limits(limits=1):
        return float(silhouette_score(found.points, found.classes))


def _cloud(title: str, shown: Prototypes) -> Cloud:
    places = embed(shown.points)
    return Cloud(title, [(x, y) for x, y in places.tolist()], shown.classes.tolist() if len(places) else [])


def collect(results: Results, records: Records) -> None:
    """Take the prototypes of the last round from finished runs in `runs/`, and store them."""
    found = {}
    for method in results.methods:
        for name in results.names(method, results.settings[0])[:1]:
            record = Record(records.run_folder(name))
            found[method.key] = torch.zeros(0, 0, 0)
            if record.summary.get("diverged_in_round") is None:
                found[method.key] = record.diagnostics(record.config["rounds"])["clients/prototypes"].contiguous()
    save_file(found, FILE)

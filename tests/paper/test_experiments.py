"""The paper's experiments as files: published figures, the protocol, and shared runs; `test_tables` has the rest."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from paper.__main__ import PAGES

from fedmate.core import ObjectiveOptions
from fedmate.studies.study import Choice, Study, StudyRun, load_study

PAPER = Path(__file__).parents[2] / "paper"
NAMES = [
    *("ablation", "adaptability", "classwise", "components", "convergence", "cost", "distributions", "generalization"),
    *("lambda_c", "lambda_e", "prototypes", "redundancy", "time_to_accuracy", "transmission"),
]
EVERY = sorted([*NAMES, "beyond", "harmony"])
"""Those of the paper, and our own."""
TRAINED = [name for name in EVERY if name != "distributions"]


@cache
def study_of(name: str) -> Study:
    return load_study(PAPER / f"{name}.toml")


@cache
def runs_of(name: str, quick: bool = False) -> dict[str, StudyRun]:
    return {cell.key: cell for cell in study_of(name).runs(Choice(quick=quick))}


def paper(name: str) -> dict[tuple[str, str], float]:
    """Return the published figures of an experiment, by column and row."""
    return {(column, row.key): figure for row in study_of(name).methods for column, figure in row.published.items()}


def test_every_table_and_figure_is_there() -> None:
    assert sorted(path.stem for path in PAPER.glob("*.toml")) == EVERY
    assert sorted(PAGES) == EVERY


@pytest.mark.parametrize("name", EVERY)
def test_every_cell_resolves_in_full_and_cut_short(name: str) -> None:
    full, quick = runs_of(name), runs_of(name, quick=True)
    assert full.keys() == quick.keys()
    assert len(full) == len(study_of(name).methods) * len(study_of(name).settings)


# ---- the published figures ----


def test_as_many_figures_as_the_paper_has() -> None:
    # With their sum, so that none changes unseen: all of them were compared with the paper's source.
    published = {name: (len(paper(name)), round(sum(paper(name).values()), 2)) for name in NAMES if paper(name)}
    assert published == {
        "generalization": (9 * 8, 3290.33),
        # FedMate stands beside the lower part of the table once more.
        "ablation": ((3 + 1) * 8, 1699.51),
        "adaptability": (11 * 3, 2524.92),
        "components": (6 * 3, 1003.28),
        "lambda_e": (8, 378.22),
        "lambda_c": (8, 379.77),
    }


def test_a_calibrated_row_differs_from_another_in_that_alone() -> None:
    cells = runs_of("harmony")
    calibrated = [key for key in cells if key.endswith("_calibrated")]
    assert len(calibrated) == 6 * len(study_of("harmony").settings)
    for key in calibrated:
        one, other = cells[key].experiment, cells[key.removesuffix("_calibrated")].experiment
        assert replace(other, objective=ObjectiveOptions(calibration=1.0)) == one


# ---- the protocol ----


SMALL = "small_"
"""How columns of `beyond` and `harmony` begin that are for machines without a GPU."""


@pytest.mark.parametrize("name", TRAINED)
def test_every_run_follows_the_protocol(name: str) -> None:
    expected = {
        "cifar10": ("cifar_cnn", 0.02, 600),
        "cinic10": ("cifar_cnn", 0.02, 600),
        "cifar100": ("cifar100_cnn", 0.01, 600),
        "animal10": ("animals_cnn", 0.01, 600),
        "emnist": ("emnist_cnn", 0.01, 1000),
    }
    # The cells that are run as the paper ran its own.
    for cell in [cell for cell in runs_of(name).values() if not cell.setting.key.startswith(SMALL)]:
        general, training = cell.experiment.general, cell.experiment.training
        assert (general.rounds, general.participation, general.holdout_clients) == (200, 1.0, 0.0)
        assert (general.evaluate_on, general.seed, cell.experiment.partition.options["clients"]) == ("test", 0, 20)
        assert (training.batch_size, training.epochs) == (50, 5)
        assert (training.momentum, training.weight_decay) == (0.5, 5e-4)
        model, rate, examples = expected[cell.experiment.dataset.name]
        assert (cell.experiment.model.name, cell.experiment.training.learning_rate) == (model, rate)
        partition = cell.experiment.partition
        assert partition.options["examples"] == (examples if partition.name == "share" else None)
        assert cell.experiment.dataset.options.get("split", "byclass") == "byclass"


def test_the_same_run_has_the_same_name_in_every_file() -> None:
    main = runs_of("generalization")
    for name in ("ablation", "components"):
        for column in ("cifar10_s70", "cinic10_s70", "emnist_s70"):
            assert runs_of(name)[f"{column}/fedmate"].name == main[f"{column}/fedmate"].name
            assert runs_of(name)[f"{column}/backbone"].name == main[f"{column}/fedrep"].name
            assert main[f"{column}/fedavg"].name == main[f"{column}/ft_fedavg"].name
    assert runs_of("lambda_e")["cinic10_s70/0.8"].name == main["cinic10_s70/fedmate"].name
    assert runs_of("lambda_c")["cinic10_s70/0.6"].name == main["cinic10_s70/fedmate"].name
    for row in study_of("cost").methods:
        assert runs_of("cost")[f"cifar10_s70/{row.key}"].name == main[f"cifar10_s70/{row.key}"].name

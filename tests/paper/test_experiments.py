"""The paper's tables and figures as files: the published figures, the protocol, and runs that several of them share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paper.__main__ import PAGES

from fedmate.core.options import options_of
from fedmate.methods import METHODS
from fedmate.studies.study import Choice, Study, StudyRun, load_study

PAPER = Path(__file__).parents[2] / "paper"
NAMES = [
    *("ablation", "adaptability", "classwise", "components", "convergence", "cost", "distributions", "generalization"),
    *("lambda_c", "lambda_e", "prototypes", "redundancy", "time_to_accuracy", "transmission"),
]
EVERY = sorted([*NAMES, "beyond", "harmony"])
"""Those of the paper, and our own."""
TRAINED = [name for name in EVERY if name != "distributions"]
TABLE_1 = [
    *("cifar10_s10", "cifar10_s30", "cifar10_s50", "cifar10_s70"),
    *("cinic10_s10", "cinic10_s70", "emnist_s10", "emnist_s70"),
]
VIEWS = {
    **dict.fromkeys(["local", "ft_fedavg", "fedproto", "lg_fedavg", "fedper", "fedrep", "fedfa", "ditto"], "post"),
    **dict.fromkeys(["fedbabu", "fedpac", "fedmate", "fedrod"], "pre"),
    **dict.fromkeys(["fedavg", "moon", "fedprox", "scaffold"], "global"),
}
"""By row: the view that the published figures evidently show, or in which the method is used."""

Variant = tuple[str, dict[str, Any]]

FEDMATE: Variant = ("fedmate", {})
BACKBONE: Variant = ("fedrep", {})
OFF: dict[str, Any] = {"centre_weight": 0.0, "mps": False, "cci": False, "ccf": False, "cft": "all"}
"""FedMate without any of its components."""

VARIANTS: dict[str, dict[str, Variant]] = {
    "ablation": {
        "backbone": BACKBONE,
        "mps_cft": ("fedmate", {"cci": False, "ccf": False}),
        "cci_ccf": ("fedmate", {"mps": False, "centre_weight": 0.0, "cft": "all"}),
        "fedmate": FEDMATE,
    },
    "components": {
        "backbone": BACKBONE,
        "cft": ("fedmate", OFF | {"cft": "cft"}),
        "mps": ("fedmate", OFF | {"mps": True, "centre_weight": 0.8}),
        "cci": ("fedmate", OFF | {"cci": True, "classifier_start": "global"}),
        "ccf": ("fedmate", OFF | {"ccf": True}),
        "fedmate": FEDMATE,
    },
    "transmission": {schedule: ("fedmate", {"cft": schedule}) for schedule in ("all", "cft", "half", "null")},
    "lambda_e": {
        str(weight): ("fedmate", {"centre_weight": weight}) for weight in (0.0, 0.2, 0.5, 0.8, 1.0, 2.0, 5.0, 7.0)
    },
    "lambda_c": {
        str(weight): ("fedmate", {"fusion_weight": weight}) for weight in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 3.0)
    },
}
"""By experiment and row: a method, and the options in which it differs from its defaults."""


@cache
def study_of(name: str) -> Study:
    return load_study(PAPER / f"{name}.toml")


@cache
def runs_of(name: str, quick: bool = False) -> dict[str, StudyRun]:
    return {cell.key: cell for cell in study_of(name).runs(Choice(quick=quick))}


def paper(name: str) -> dict[tuple[str, str], float]:
    """Return the published figures of an experiment, by column and row."""
    return {(column, row.key): figure for row in study_of(name).methods for column, figure in row.published.items()}


def unusual(method: str, options: dict[str, Any]) -> Variant:
    """Return a method with those of its options that differ from its defaults."""
    known = options_of(METHODS[method])
    return method, {key: value for key, value in options.items() if known[key].default != value}


def variant(cell: StudyRun) -> Variant:
    return unusual(cell.experiment.method.name, cell.experiment.method.options)


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


@pytest.mark.parametrize(
    ("name", "row", "column", "figure"),
    [
        ("generalization", "local", "cifar10_s10", 28.61),
        ("generalization", "ft_fedavg", "emnist_s10", 59.03),
        ("generalization", "fedproto", "cifar10_s70", 46.27),
        ("generalization", "lg_fedavg", "cinic10_s70", 29.14),
        ("generalization", "fedper", "cifar10_s50", 47.49),
        ("generalization", "fedrep", "cinic10_s10", 26.64),
        ("generalization", "fedbabu", "emnist_s70", 46.23),
        ("generalization", "fedpac", "cinic10_s10", 35.67),
        ("ablation", "backbone", "cifar10_s30", 48.17),
        ("ablation", "mps_cft", "cinic10_s70", 45.07),
        ("ablation", "cci_ccf", "emnist_s10", 54.17),
        ("adaptability", "local", "cifar100_pathological", 35.27),
        ("adaptability", "moon", "cinic10_pathological", 57.37),
        ("adaptability", "fedfa", "cifar10_pathological", 84.19),
        ("adaptability", "fedmate", "cifar100_pathological", 77.04),
        ("components", "backbone", "cinic10_s70", 34.73),
        ("components", "cft", "cifar10_s70", 59.67),
        ("components", "mps", "emnist_s70", 63.57),
        ("components", "cci", "cinic10_s70", 37.55),
        ("components", "ccf", "cifar10_s70", 63.89),
        ("components", "fedmate", "emnist_s70", 71.98),
        ("lambda_e", "7.0", "cinic10_s70", 40.29),
        ("lambda_c", "0.6", "cinic10_s70", 49.97),
    ],
)
def test_figures_are_those_of_the_paper(name: str, row: str, column: str, figure: float) -> None:
    assert paper(name)[column, row] == figure


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_view_that_was_published(name: str) -> None:
    for row in study_of(name).methods:
        expected = "post" if row.key in ("backbone", "holdings") else VIEWS.get(row.key, "pre")
        assert row.view == expected, row.key


def test_a_calibrated_row_differs_from_another_in_that_alone() -> None:
    cells = runs_of("harmony")
    calibrated = [key for key in cells if key.endswith("_calibrated")]
    assert len(calibrated) == 6 * len(study_of("harmony").settings)
    for key in calibrated:
        one, other = cells[key].experiment, cells[key.removesuffix("_calibrated")].experiment
        assert one.method.options == {**other.method.options, "calibration": 1.0}
        assert replace(one, method=other.method) == other


def test_fedmate_plus_is_reached_step_by_step() -> None:
    """The rows of `beyond` between FedMate and FedMate+ add its defaults one by one."""
    rows = ("rate", "still", "plus")
    rate, still, plus = (runs_of("beyond")[f"cifar10_s10/{row}"].experiment.method.options for row in rows)
    assert {key for key in plus if rate[key] != still[key]} == {"calibration", "classifier_start"}
    assert {key for key in plus if still[key] != plus[key]} == {"server_momentum"}


# ---- the protocol ----


SMALL = "small_"
"""How columns of `beyond` and `harmony` begin that are for machines without a GPU."""


def in_full(name: str) -> list[StudyRun]:
    """Return the cells that are run as the paper ran its own."""
    return [cell for cell in runs_of(name).values() if not cell.setting.key.startswith(SMALL)]


@pytest.mark.parametrize("name", TRAINED)
def test_every_run_follows_the_shared_protocol(name: str) -> None:
    for cell in in_full(name):
        general, training = cell.experiment.general, cell.experiment.training
        assert (general.rounds, general.participation, general.holdout_clients) == (200, 1.0, 0.0)
        assert (general.evaluate_on, general.seed, cell.experiment.partition.options["clients"]) == ("test", 0, 20)
        assert (training.batch_size, training.epochs) == (50, 5)
        assert (training.momentum, training.weight_decay) == (0.5, 5e-4)


@pytest.mark.parametrize("name", TRAINED)
def test_network_rate_and_samples_are_those_of_the_data_set(name: str) -> None:
    expected = {
        "cifar10": ("cifar_cnn", 0.02, 600),
        "cinic10": ("cifar_cnn", 0.02, 600),
        "cifar100": ("cifar100_cnn", 0.01, 600),
        "animal10": ("animals_cnn", 0.01, 600),
        "emnist": ("emnist_cnn", 0.01, 1000),
    }
    for cell in in_full(name):
        model, rate, examples = expected[cell.experiment.dataset.name]
        assert (cell.experiment.model.name, cell.experiment.training.learning_rate) == (model, rate)
        partition = cell.experiment.partition
        assert partition.options["examples"] == (examples if partition.name == "share" else None)
        assert cell.experiment.dataset.options.get("split", "byclass") == "byclass"


@pytest.mark.parametrize("name", ["beyond", "harmony"])
def test_what_is_small_is_so_for_all_rows_and_asks_no_test_split(name: str) -> None:
    full, deals = runs_of(name), runs_of("harmony")
    cells = {key: cell.experiment for key, cell in full.items() if key.startswith(SMALL)}
    assert len(cells) == 2 * len(study_of(name).methods)
    for key, small in cells.items():
        column, _, row = key.partition("/")
        usual = full[f"cifar10_s10/{row}"].experiment
        assert (small.general.evaluate_on, small.general.rounds, small.method) == ("validation", 40, usual.method)
        deal = deals[f"cifar10_{column.removeprefix(SMALL)}/fedmate"].experiment.partition
        assert small.partition.name == deal.name
        assert small.partition.options == {**deal.options, "clients": 10, "examples": 600}
        assert small.training == replace(usual.training, learning_rate=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_a_column_is_dealt_as_its_key_says(name: str) -> None:
    for cell in runs_of(name).values():
        dataset, _, kind = cell.setting.key.partition("_")
        partition = cell.experiment.partition
        assert cell.experiment.dataset.name == dataset
        if kind == "pathological":
            assert partition.name == "pathological"
            assert partition.options["classes_per_client"] == (10 if dataset == "cifar100" else 3)
        else:
            share, redundant = (float(kind[1:]), 0.0) if kind[0] == "s" else (50.0, float(kind[1:]) / 100)
            assert (partition.name, partition.options["share"]) == ("share", share)
            assert partition.options["redundant_clients"] == redundant
            assert partition.options["groups"] == "fixed"


# ---- methods and variants ----


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_are_the_options_they_stand_for(name: str) -> None:
    expected = {row: unusual(*described) for row, described in VARIANTS[name].items()}
    for column in study_of(name).settings:
        of_column = [cell for cell in runs_of(name).values() if cell.setting.key == column.key]
        assert {cell.method.key: variant(cell) for cell in of_column} == expected


@pytest.mark.parametrize("name", [name for name in TRAINED if name in NAMES and name not in VARIANTS])
def test_methods_run_with_their_defaults(name: str) -> None:
    for cell in runs_of(name).values():
        assert variant(cell) == (cell.method.key.removeprefix("ft_"), {})


# ---- runs that are shared, data sets that stand in, rounds that are looked at ----


def test_the_same_run_has_the_same_name_in_every_file() -> None:
    main = runs_of("generalization")
    for column in TABLE_1:
        assert runs_of("ablation")[f"{column}/fedmate"].name == main[f"{column}/fedmate"].name
        assert runs_of("ablation")[f"{column}/backbone"].name == main[f"{column}/fedrep"].name
        assert main[f"{column}/fedavg"].name == main[f"{column}/ft_fedavg"].name
    for column in ("cifar10_s70", "cinic10_s70", "emnist_s70"):
        assert runs_of("components")[f"{column}/fedmate"].name == main[f"{column}/fedmate"].name
        assert runs_of("components")[f"{column}/backbone"].name == main[f"{column}/fedrep"].name
    assert runs_of("lambda_e")["cinic10_s70/0.8"].name == main["cinic10_s70/fedmate"].name
    assert runs_of("lambda_c")["cinic10_s70/0.6"].name == main["cinic10_s70/fedmate"].name
    for row in study_of("cost").methods:
        assert runs_of("cost")[f"cifar10_s70/{row.key}"].name == main[f"cifar10_s70/{row.key}"].name


def test_what_stands_in_is_the_same_run_too() -> None:
    main = runs_of("generalization")["cifar10_s70/fedmate"].name
    for name, row in (("lambda_e", "0.8"), ("lambda_c", "0.6")):
        assert stood_in(name, "cinic10_s70", row).name == main
    assert stood_in("components", "emnist_s70", "cci").experiment.partition.options["examples"] == 320


def stood_in(name: str, column: str, row: str) -> StudyRun:
    """Return a cell with the first data set that may stand in."""
    grid = study_of(name)
    (chosen,) = (one for one in grid.settings if one.key == column)
    _, first = chosen.candidates(quick=False)
    (cell,) = replace(grid, settings=(first,)).runs(Choice(only=[f"*/{row}"]))
    return cell

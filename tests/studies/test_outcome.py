"""Figures over seeds, and what a reader must know of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.reproduce.small import Run, column, grid_of, kept_of, outcome_of, row

from fedmate.studies.grid import Wanted
from fedmate.studies.outcome import OTHER_VERSION, Figure, Outcome, listed, over_seeds
from fedmate.studies.store import Store

FEDAVG, FT, FEDREP = row("fedavg"), row("ft", view="post", method={"name": "fedavg"}), row("fedrep", view="post")
S10, S70 = column("s10"), column("s70")
GRID = grid_of([S10, S70], [FEDAVG, FT, FEDREP])


def test_mean_and_standard_deviation_are_those_of_a_sample() -> None:
    figure = over_seeds([50.0, 52.0, 57.0])
    assert figure is not None
    assert (figure.mean, figure.seeds) == (53.0, 3)
    assert figure.std == pytest.approx(13**0.5)
    assert figure.standard_error == pytest.approx((13 / 3) ** 0.5)


def test_one_seed_has_no_deviation_and_none_has_no_figure() -> None:
    assert over_seeds([50.0]) == Figure(50.0, None, 1)
    assert Figure(50.0, None, 1).standard_error is None
    assert over_seeds([]) is None


def test_a_figure_is_of_one_place_view_and_test() -> None:
    outcome = outcome_of(
        GRID,
        {
            "s10/fedavg": [Run({"pre": (50.0, 60.0), "global": None}), Run({"pre": (52.0, 61.0), "global": None})],
            "s70/fedavg": [Run({"pre": (70.0, 80.0)})],
            "s10/fedrep": [Run({"pre": (30.0, 90.0)})],
        },
    )
    assert outcome.figure(FEDAVG, S10, "pre", "balanced") == over_seeds([50.0, 52.0])
    assert outcome.figure(FEDAVG, S10, "pre", "own") == over_seeds([60.0, 61.0])
    assert outcome.figure(FEDAVG, S70, "pre", "own") == Figure(80.0, None, 1)
    assert outcome.figure(FEDREP, S10, "pre", "balanced") == Figure(30.0, None, 1)
    assert outcome.figure(FEDAVG, S10, "global", "own") is None
    assert outcome.figure(FEDAVG, S10, "post", "own") is None
    assert outcome.figure(FEDREP, S70, "pre", "own") is None


def test_rows_that_differ_in_view_alone_are_one_run() -> None:
    outcome = outcome_of(GRID, {"s10/fedavg": [Run({"pre": (50.0, 60.0), "post": (40.0, 70.0)})]})
    assert outcome.names(FEDAVG, S10) == outcome.names(FT, S10) != outcome.names(FEDREP, S10)
    assert outcome.names(FEDAVG, S10) != outcome.names(FEDAVG, S70)
    assert outcome.figure(FT, S10, "post", "own") == Figure(70.0, None, 1)


def test_seeds_that_diverged_do_not_count() -> None:
    runs = [Run({"pre": (10.0, 10.0)}, diverged_in=3), Run({"pre": (52.0, 61.0)})]
    outcome = outcome_of(GRID, {"s10/fedrep": runs, "s70/fedrep": [runs[0]]})
    assert outcome.figure(FEDREP, S10, "pre", "balanced") == Figure(52.0, None, 1)
    assert outcome.figure(FEDREP, S70, "pre", "balanced") is None
    assert [kept.diverged_in for kept in outcome.kept(FEDREP, S10)] == [3, None]


def test_nothing_right_is_a_figure_too() -> None:
    outcome = outcome_of(GRID, {"s10/fedrep": [Run({"pre": (0.0, 2.0)}), Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})]})
    assert outcome.figure(FEDREP, S10, "pre", "balanced") == over_seeds([0.0, 1.0])


def test_columns_and_rows_are_those_that_were_meant() -> None:
    outcome = outcome_of(GRID, {}, Wanted(patterns=("s70/f*g", "s70/ft")))
    assert [one.key for one in outcome.columns] == ["s70"]
    assert [one.key for one in outcome.rows] == ["fedavg", "ft"]
    assert outcome.names(FEDREP, S70) == []


def test_it_is_found_in_a_folder(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), Wanted(seeds=2)
    cells = {(cell.key, cell.seed): cell for cell in GRID.cells(wanted)}
    kept = kept_of(cells["s10/fedrep", 1], Run({"post": (1.0, 2.0)}))
    store.keep(kept.name, kept.content, {"x": torch.ones(2)})
    assert not Outcome.of(GRID, wanted, store).arrays
    outcome = Outcome.of(replace(GRID, measures=("prototypes",)), wanted, store)
    assert [*outcome.found] == [*outcome.arrays] == [kept.name]
    assert outcome.figure(FEDREP, S10, "post", "own") == Figure(2.0, None, 1)
    assert outcome.arrays[kept.name]["x"].tolist() == [1.0, 1.0]
    assert len(outcome.cells) == 12


# -------------------- what to know


def everything(run: Run) -> dict[str, list[Run | None]]:
    return {f"{c.key}/{r.key}": [run] for c in GRID.columns for r in GRID.rows}


def test_a_whole_outcome_needs_no_notes() -> None:
    assert outcome_of(GRID, everything(Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}))).notes() == []


def test_quick_runs_say_so_and_how_long_they_were() -> None:
    notes = outcome_of(GRID, everything(Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})), Wanted(quick=True)).notes()
    assert notes == ["--quick: cut short (2 rounds), no figures to compare by"]
    nothing = outcome_of(GRID, {}, Wanted(quick=True)).notes()
    assert nothing[0] == "--quick: cut short, no figures to compare by"
    # Who holds what is the same, however few the rounds.
    dealt = outcome_of(replace(GRID, trains=False), everything(Run({})), Wanted(quick=True)).notes()
    assert not [note for note in dealt if "--quick" in note]


def test_stand_ins_are_named_with_what_is_chosen_of_them() -> None:
    parts = {"dataset": {"name": "emnist", "split": "balanced"}}
    other = column("e", name="EMNIST, s = 10", values=parts, stands_in_for="emnist")
    digits = column("s10", name="CINIC-10", stands_in_for="cinic10")
    notes = outcome_of(grid_of([digits, other, S70], [FEDAVG]), {}).notes()
    assert notes[:2] == [
        "CINIC-10: digits stands in for cinic10",
        "EMNIST, s = 10: emnist (split = balanced) stands in for emnist",
    ]
    assert digits.data == "digits"


def test_accuracies_that_are_not_those_of_the_test_split_say_so() -> None:
    done = Run({"pre": (1.0, 2.0)})
    s50 = column("s50", values={"partition": {"share": 50}, "evaluate_on": "validation"})
    both = {"s10/fedavg": [done], "s50/fedavg": [done]}
    some = outcome_of(grid_of([S10, s50], [FEDAVG]), both)
    sentence = "not the test split, but training samples that no client holds (`evaluate_on` is `validation`)"
    assert some.notes() == [f"{sentence}: fedavg (s50)"]
    assert outcome_of(grid_of([s50], [FEDAVG]), {"s50/fedavg": [done]}).notes() == [sentence]
    # A picture of who holds what asks nobody.
    assert outcome_of(replace(grid_of([s50], [FEDAVG]), trains=False), {"s50/fedavg": [Run({})]}).notes() == []


def test_what_is_not_run_is_named_by_seed() -> None:
    done = Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})
    runs = {"s10/fedavg": [done, None, None], "s10/fedrep": [done, done, None]}
    notes = outcome_of(grid_of([S10], [FEDAVG, FEDREP]), runs).notes()
    assert notes == ["not run, seeds 1, 2: fedavg", "not run, seed 2: fedrep"]


def test_what_is_not_run_is_named_with_its_columns_unless_it_is_all_of_them() -> None:
    done = Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})
    rows = [FEDAVG, FEDREP, row("local"), row("ditto")]
    runs = {"s10/fedavg": [done], "s70/fedrep": [done], "s70/local": [done]}
    (note,) = outcome_of(grid_of([S10, S70], rows), runs).notes()
    assert note == "not run, seed 0: fedrep, local (s10); ditto; fedavg (s70)"


def test_names_that_hold_a_comma_can_be_told_from_their_neighbours() -> None:
    assert listed(["FedPAC", "FedPAC, calibrated", "Local"]) == "FedPAC, `FedPAC, calibrated`, Local"


def test_a_comparison_is_made_on_the_seeds_that_all_rows_have() -> None:
    few, many = Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}), Run({"pre": (5.0, 6.0), "post": (5.0, 6.0)})
    runs = {"s10/fedavg": [few, many, many], "s10/fedrep": [few, many], "s70/fedavg": [few, many]}
    outcome = outcome_of(GRID, runs)
    assert outcome.common_seeds(S10) == [0, 1]
    fair = outcome.on_seeds([0, 1])
    assert fair.figure(FEDAVG, S10, "pre", "own") == over_seeds([2.0, 6.0])
    assert outcome.figure(FEDAVG, S10, "pre", "own") == over_seeds([2.0, 6.0, 6.0])
    diverged = runs | {"s10/fedrep": [few, Run({}, diverged_in=3)]}
    assert outcome_of(GRID, diverged).common_seeds(S10) == [0, 1, 2], "who diverged with one of them takes none away"
    assert outcome_of(GRID, diverged).on_seeds([0, 1]).figure(FEDREP, S10, "pre", "own") is None
    assert outcome_of(GRID, diverged).on_seeds([0]).figure(FEDREP, S10, "pre", "own") == over_seeds([2.0])
    always = runs | {"s10/fedrep": [Run({}, diverged_in=3)]}
    assert outcome_of(GRID, always).common_seeds(S10) == [0, 1, 2], "it stands in nobody's way"
    elsewhere = runs | {"s10/fedrep": [few, many, None, Run({}, diverged_in=3)]}
    assert outcome_of(GRID, elsewhere).common_seeds(S10) == [0, 1], "it did not with these"
    apart = outcome_of(GRID, {"s10/fedavg": [few], "s10/fedrep": [None, many]})
    assert apart.common_seeds(S10) == []


def test_cells_of_other_data_are_named_also_between_seeds() -> None:
    old, new = ({"data_sha256": digest} for digest in ("ab", "cd"))
    runs = {"s10/fedavg": [Run({"pre": (1.0, 2.0)}, more=old), Run({"pre": (1.0, 2.0)}, more=new)]}
    grid = grid_of([S10], [FEDAVG])
    assert outcome_of(grid, runs).notes() == ["s10: the cells have different data"]
    same = {"s10/fedavg": [Run({"pre": (1.0, 2.0)}, more=old), Run({"pre": (1.0, 2.0)})]}
    assert outcome_of(grid, same).notes() == []


def test_cells_that_diverged_are_named() -> None:
    runs = everything(Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})) | {"s70/fedrep": [Run({}, diverged_in=7)]}
    assert outcome_of(GRID, runs).notes() == ["s70/fedrep, seed 0: diverged in round 7"]


def test_rows_that_were_dealt_other_samples_are_named() -> None:
    same, other = (
        Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}),
        Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}, sha256="cd" * 32),
    )
    between_columns = everything(same) | {f"s70/{r.key}": [other] for r in GRID.rows}
    assert outcome_of(GRID, between_columns).notes() == []
    within_one = everything(same) | {"s70/fedrep": [other]}
    assert outcome_of(GRID, within_one).notes() == ["s70, seed 0: the rows were dealt different samples"]


def test_columns_that_are_left_out_are_named() -> None:
    grid = replace(grid_of([S10], [FEDAVG]), left_out=("CINIC-10, s = 10", "CINIC-10, s = 70"))
    notes = outcome_of(grid, {"s10/fedavg": [Run({"pre": (1.0, 2.0)})]}).notes()
    assert notes == ["left out, for there is nothing of them: CINIC-10, s = 10; CINIC-10, s = 70"]


def test_a_view_that_no_run_has_is_named_with_those_there_are() -> None:
    grid = grid_of([S10, S70], [row("fedavg", view="posst")])
    runs = {"s10/fedavg": [Run({"pre": (1.0, 2.0), "post": (1.0, 2.0), "global": None})]}
    assert "fedavg: there is no view `posst`; its runs have pre, post" in outcome_of(grid, runs).notes()
    diverged = {"s10/fedavg": [Run({}, diverged_in=2)], "s70/fedavg": [Run({}, diverged_in=2)]}
    assert not any("no view" in note for note in outcome_of(grid, diverged).notes())


def test_rows_that_nobody_has_tuned_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tuned.toml"
    file.write_text("[fedavg.digits]\ntraining = { learning_rate = 0.2 }\n", encoding="utf-8")
    monkeypatch.setattr("fedmate.experiment.tuned.FILE", file)
    done = Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})
    runs = {"s10/fedavg": [done], "s70/fedavg": [done]}
    notes = outcome_of(grid_of([S10, S70], [FEDAVG, FEDREP]), runs, Wanted(settings="tuned")).notes()
    assert notes == ["left out, for `fedmate tune` has not been there: fedrep"]
    # As many as there are others, and yet not all.
    as_many = outcome_of(grid_of([S10, S70], [FEDAVG, FT, FEDREP, row("fedper")]), runs, Wanted(settings="tuned"))
    assert "left out, for `fedmate tune` has not been there: fedrep, fedper" in as_many.notes()
    other = column("m", name="MNIST", values={"dataset": {"name": "mnist"}})
    notes = outcome_of(grid_of([S10, other], [FEDAVG]), runs, Wanted(settings="tuned")).notes()
    assert notes == ["left out, for `fedmate tune` has not been there: fedavg (MNIST)"]


def test_a_column_of_which_nothing_is_run_does_not_list_every_row() -> None:
    runs = {f"s10/{key}": [Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)})] for key in ("fedavg", "fedrep")}
    grid = grid_of([S10, S70], [FEDAVG, FEDREP])
    assert outcome_of(grid, runs).notes() == [f"not run, seed 0: all rows ({S70.name})"]


def test_methods_whose_file_may_have_been_another_one_are_named() -> None:
    runs = everything(Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}))
    assert outcome_of(GRID, runs).versions() == []
    for digest in ("ab", None):
        old = Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}, more={"method_sha256": digest})
        outcome = outcome_of(GRID, runs | {"s70/fedrep": [old]})
        assert outcome.outdated() == ["fedrep"]
        assert outcome.notes() == outcome.versions() == [f"{OTHER_VERSION}: `fedrep`"]
    dealt = replace(GRID, trains=False)
    assert outcome_of(dealt, {"s70/fedrep": [old]}).versions() == []


def test_rows_without_what_was_to_be_measured_are_named() -> None:
    grid = replace(grid_of([S10, S70], [FEDAVG, FEDREP]), measures=("prototypes",))
    lost = Run({"pre": (1.0, 2.0), "post": (1.0, 2.0)}, more={"measures": ["prototypes"]})
    whole = lost._replace(arrays={"prototypes": torch.ones(1)})
    runs = {f"{c.key}/{r.key}": [whole] for c in grid.columns for r in grid.rows}
    assert outcome_of(grid, runs).notes() == []
    notes = outcome_of(grid, runs | {"s70/fedrep": [lost]}).notes()
    assert notes == ["without `prototypes`, which is not there: fedrep (s70)"]
    unmeasured = whole._replace(more={})
    notes = outcome_of(grid, runs | {"s10/fedavg": [unmeasured], "s70/fedavg": [unmeasured]}).notes()
    assert notes == ["without `prototypes`, which is not there: fedavg"]

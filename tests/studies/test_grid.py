"""A grid's file: which runs it stands for, and one sentence for every mistake in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedmate.errors import UserError
from fedmate.methods import METHODS
from fedmate.studies.grid import Cell, Grid, Wanted
from fedmate.studies.reading import load_grid, names
from fedmate.studies.stand_ins import with_data, with_records
from fedmate.studies.store import Store

GRID = """
title = "A table"
source = "Table 9"
test = "own"
[base]
rounds = 7
training = {epochs = 2, learning_rate = 0.5}
[quick]
rounds = 1
training = {epochs = 1}
[columns.skewed]
name = "Very skewed"
partition = {share = 5}
[columns.even]
test = "balanced"
dataset = {name = "cinic10"}
stand_ins = [{name = "emnist", split = "letters"}]
[rows.rep]
name = "FedRep's"
view = "post"
method = {name = "fedrep", classifier_epochs = 3}
paper = {even = 50, skewed = 12.5}
[rows.avg]
method = {name = "fedavg"}
training = {epochs = 4, learning_rate = 0.25}
"""
TUNED = {"method": {"classifier_epochs": 9, "classifier_learning_rate": 0.07}, "training": {"learning_rate": 0.3}}


def grid_of(folder: Path, text: str = GRID) -> Grid:
    """Read a user's own file."""
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_grid(str(path))


def changed(old: str, new: str) -> str:
    assert GRID.count(old) == 1
    return GRID.replace(old, new)


def by_key(cells: list[Cell]) -> dict[str, Cell]:
    return {cell.key: cell for cell in cells}


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return grid_of(tmp_path)


def test_a_file_says_what_is_shown(grid: Grid) -> None:
    assert (grid.name, grid.title, grid.source) == ("mine", "A table", "Table 9")
    assert (grid.shows, grid.measures, grid.trains) == (("accuracy",), (), True)
    skewed, even = grid.columns
    assert (skewed.name, skewed.test, skewed.dataset["name"]) == ("Very skewed", "own", "digits")
    assert (even.name, even.test, even.dataset["name"]) == ("even", "balanced", "cinic10")
    rep, avg = grid.rows
    assert (rep.name, rep.view, dict(rep.paper)) == ("FedRep's", "post", {"even": 50, "skewed": 12.5})
    assert (avg.name, avg.view, dict(avg.paper)) == ("avg", "pre", {})


def test_a_row_without_a_view_has_its_methods_headline(tmp_path: Path) -> None:
    rows = grid_of(tmp_path, GRID + '[rows.local]\nmethod = {name = "local"}\n[rows.unsaid]\n').rows
    assert [row.view for row in rows] == ["post", "pre", "post", "pre"]


def test_cells_come_row_by_row_within_a_column_and_seeds_one_after_the_other(grid: Grid) -> None:
    cells = grid.cells(Wanted(seeds=2))
    order = ["skewed/rep", "skewed/avg", "even/rep", "even/avg"]
    assert [(cell.seed, cell.key) for cell in cells] == [(seed, key) for seed in (0, 1) for key in order]
    assert [cell.experiment.general.seed for cell in cells] == [0] * 4 + [1] * 4
    assert len({cell.name for cell in cells}) == 8


def test_rows_lie_over_columns_and_columns_over_the_base(grid: Grid) -> None:
    cells = by_key(grid.cells(Wanted()))
    rep, avg = cells["skewed/rep"].experiment, cells["even/avg"].experiment
    assert (rep.general.rounds, rep.training.epochs, rep.training.learning_rate) == (7, 2, 0.5)
    assert (rep.partition.options["share"], rep.method.options["classifier_epochs"]) == (5.0, 3)
    assert (avg.dataset.name, avg.training.epochs, avg.training.learning_rate) == ("cinic10", 4, 0.25)


def test_quick_lies_over_everything(grid: Grid) -> None:
    for cell in grid.cells(Wanted(quick=True)):
        assert (cell.experiment.general.rounds, cell.experiment.training.epochs) == (1, 1)
    avg = by_key(grid.cells(Wanted(quick=True)))["even/avg"].experiment
    assert avg.training.learning_rate == 0.25


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What gives methods other presets than they have; nothing else has been tuned."""
    nothing = tmp_path / "tuned.toml"
    nothing.write_text("", encoding="utf-8")
    monkeypatch.setattr("fedmate.experiment.tuned.FILE", nothing)
    return lambda method, **groups: monkeypatch.setattr(METHODS[method], "presets", groups)


def test_tuned_settings_lie_beneath_what_the_row_says(grid: Grid, presets: Callable[..., None]) -> None:
    presets("fedrep", tuned=TUNED)
    presets("fedavg", tuned={"training": TUNED["training"]})
    cells = by_key(grid.cells(Wanted(settings="tuned", quick=True)))
    rep, avg = cells["skewed/rep"].experiment, cells["skewed/avg"].experiment
    assert rep.method.options["classifier_epochs"] == 3
    assert rep.method.options["classifier_learning_rate"] == 0.07
    assert rep.training.learning_rate == 0.3
    assert (rep.general.rounds, rep.training.epochs) == (1, 1)
    assert avg.training.learning_rate == 0.25


def test_tuned_settings_replace_a_preset_and_need_no_name(tmp_path: Path, presets: Callable[..., None]) -> None:
    presets("fedrep", tuned=TUNED, authors={"method": {"tuning_epochs": 99}})
    rows = '[columns.a]\n[rows.theirs]\nmethod = {name = "fedrep", preset = "authors"}\n[rows.unsaid]\n'
    grid = grid_of(tmp_path, rows)
    assert by_key(grid.cells(Wanted()))["a/theirs"].experiment.method.options["tuning_epochs"] == 99
    tuned = [cell.experiment.method.options for cell in grid.cells(Wanted(settings="tuned"))]
    assert [(one["tuning_epochs"], one["classifier_learning_rate"]) for one in tuned] == [(10, 0.07)] * 2


def test_a_method_that_was_not_tuned_is_left_out_and_named(tmp_path: Path, presets: Callable[..., None]) -> None:
    presets("local")
    grid = grid_of(tmp_path, '[columns.a]\n[rows.b]\nmethod = {name = "local"}\n')
    assert not grid.cells(Wanted(settings="tuned"))
    assert grid.untuned(Wanted(settings="tuned")) == [(grid.columns[0], grid.rows[0])]
    assert not grid.untuned(Wanted())


@pytest.mark.parametrize(
    ("patterns", "keys"),
    [
        (["*/rep"], ["skewed/rep", "even/rep"]),
        (["even/*"], ["even/rep", "even/avg"]),
        (["even/avg", "skewed/a?g"], ["skewed/avg", "even/avg"]),
        (["even/avg", "nothing"], ["even/avg"]),
        ([], ["skewed/rep", "skewed/avg", "even/rep", "even/avg"]),
    ],
)
def test_patterns_choose_cells(grid: Grid, patterns: list[str], keys: list[str]) -> None:
    assert [cell.key for cell in grid.cells(Wanted(patterns=patterns))] == keys


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("Even/rep", "did you mean `even/rep`?"),
        ("skewd/*", "did you mean `skewed/*`?"),
        ("*/avgs", "did you mean `*/avg`?"),
        ("harmony", "columns are `skewed`, `even`, rows `rep`, `avg`."),
    ],
)
def test_patterns_that_fit_nothing_are_answered_with_what_there_is(grid: Grid, pattern: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        grid.check_patterns(["even/*", pattern])
    assert str(caught.value) == f"`--cells` got `{pattern}`, which no `column/row` fits; {hint}"


def test_a_column_offers_what_may_stand_in_for_its_data_set(grid: Grid) -> None:
    skewed, even = grid.columns
    assert [(one.dataset, one.stands_in_for) for one in even.candidates(quick=False)] == [
        ({"name": "cinic10"}, None),
        ({"name": "emnist", "split": "letters"}, "cinic10"),
    ]
    assert [one.dataset["name"] for one in even.candidates(quick=True)] == ["cinic10", "emnist", "digits"]
    assert len(list(skewed.candidates(quick=False))) == 1


MISTAKES = {
    "title": (changed('"A table"', "3"), "`title` 3; it must be a text."),
    "test": (changed('test = "own"', 'test = "owm"'), "`test` 'owm'; did you mean `own`?"),
    "shows": ('shows = "accuracy"\n' + GRID, "`shows` 'accuracy'; it must be a list."),
    "one shown": ("shows = [1]\n" + GRID, "`shows` [1]; it must be a list of names."),
    "measures": ("measures = [[]]\n" + GRID, "`measures` [[]]; it must be a list of names."),
    "trains": ("trains = 0\n" + GRID, "`trains` 0; it must be true or false."),
    "base": ("base = 1\n" + GRID.replace("[base]", "[other]"), "`base` 1; it must be a table."),
    "no rows": ("[columns.a]", "no tables `rows`; write `[rows.KEY]`"),
    "no columns": ("[rows.a]", "no tables `columns`; write `[columns.KEY]`"),
    "a row is no table": ("rows.a = 1\n[columns.b]", "no tables `rows`; write `[rows.KEY]`"),
    "rows are a list": ("rows = []\n[columns.b]", "`rows` []; it must be a table."),
    "unknown key": ("titel = ''\n" + GRID, "`titel`, which it does not know; did you mean `title`?"),
    "unknown table": (GRID + "[colums.a]\n", "`colums`, which it does not know; did you mean `columns`?"),
    "key of the base": (
        changed("rounds = 7", "round = 7"),
        "`round` in `[base]`, which it does not know; did you mean",
    ),
    "key of quick": (changed("rounds = 1\n", "round = 1\n"), "`round` in `[quick]`, which it does not know; did you"),
    "key of a column": (
        changed("stand_ins", "stand_in"),
        "`stand_in` in `[columns.even]`, which it does not know; did you mean `stand_ins`?",
    ),
    "key of a row": (
        changed("view =", "veiw ="),
        "`veiw` in `[rows.rep]`, which it does not know; did you mean `view`?",
    ),
    "test of a column": (changed('"balanced"', "1"), "`test` 1 in `[columns.even]`; it must be a text."),
    "unknown test of a column": (changed('"balanced"', '"iid"'), "`test` 'iid' in `[columns.even]`; known are"),
    "stand-ins": (changed('[{name = "emnist", split = "letters"}]', '["emnist"]'), "`stand_ins` in `[columns.even]`"),
    "view": (changed('"post"', "true"), "`view` True in `[rows.rep]`; it must be a text."),
    "paper": (changed("{even = 50, skewed = 12.5}", "[50]"), "`paper` [50] in `[rows.rep]`; it must be a table."),
    "column of the paper": (
        changed("even = 50", "evem = 50"),
        "`evem` in `paper` of `[rows.rep]`, which is no column; did you mean `even`?",
    ),
    "figure": (
        changed("even = 50", 'even = "50"'),
        "'50' for `even` in `paper` of `[rows.rep]`; write a number, or leave it out.",
    ),
    "figure that is no number": (
        changed("even = 50", "even = nan"),
        "nan for `even` in `paper` of `[rows.rep]`; write",
    ),
    "truth for a figure": (changed("even = 50", "even = true"), "True for `even` in `paper` of `[rows.rep]`; write a"),
    "section of a row": (
        changed('{name = "fedavg"}', '"fedavg"'),
        "`method` 'fedavg' in `[rows.avg]`; it must be a table",
    ),
    "section of a column": (
        changed('{name = "cinic10"}', '"cinic10"'),
        "`dataset` 'cinic10' in `[columns.even]`; it must",
    ),
    "unknown method": (changed('"fedavg"', '"fedagv"'), "`fedagv` is not among the methods; did you mean `fedavg`?"),
    "name of a method": (
        changed('"fedavg"', "[1]"),
        "`method.name` in [rows.avg] of `mine` is [1]; it must be a string",
    ),
    "option of a row": (
        changed("classifier_epochs", "classifier_epoch"),
        "`method.classifier_epoch` in [rows.rep] of `mine` is not an option of `fedrep`; did you mean",
    ),
    "value of a row": (changed("0.25", "-0.25"), "`training.learning_rate` is -0.25"),
    "value of a column": (
        changed("share = 5", 'share = "5"'),
        "`partition.share` in [columns.skewed] of `mine` is the",
    ),
    "value of quick": (
        changed("{epochs = 1}", '{epochs = "1"}'),
        "`training.epochs` in [quick] of `mine` is the string",
    ),
    "unknown data set": (changed('"cinic10"', '"cinic"'), "`cinic` is not among the datasets; did you mean `cinic10`?"),
    "name of a data set": (
        changed('"cinic10"', "10"),
        "`dataset.name` in [columns.even] of `mine` is 10; it must be a",
    ),
    "unknown stand-in": (changed('"emnist"', '"emnits"'), "`emnits` is not among the datasets; did you mean `emnist`?"),
    "option of a stand-in": (changed("split", "splt"), "`dataset.splt` in [columns.even] of `mine` is not an option"),
    "seed of the base": (changed("rounds = 7", "seed = 7"), "`seed` in `[base]`, but every cell is run with seeds"),
    "seed of a row": (changed('{name = "fedavg"}', '{name = "fedavg"}\nseed = 7'), "`seed` in `[rows.avg]`, but every"),
    "unknown view": (
        GRID + '[rows.local]\nview = "postt"\nmethod = {name = "local"}\n',
        "`view` 'postt' in `[rows.local]`; did you mean `post`?",
    ),
    "no TOML": ("[rows", "is not valid TOML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_is_one_sentence(tmp_path: Path, mistake: str) -> None:
    text, sentence = MISTAKES[mistake]
    with pytest.raises(UserError) as caught:
        grid_of(tmp_path, text)
    said = str(caught.value)
    assert sentence in said
    assert str(tmp_path / "mine.toml") in said
    assert "\n" not in said
    assert said.endswith((".", "?"))


def test_a_long_value_is_not_repeated_in_full(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        grid_of(tmp_path, changed('"A table"', str(list(range(100)))))
    assert "[0, 1, 2, 3" in str(caught.value)
    assert len(str(caught.value)) < 200 + len(str(tmp_path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.toml` does not exist; give the path"):
        load_grid(str(tmp_path / "nowhere.toml"))


def test_a_name_that_is_none_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"^`ablations` is no experiment .* no `.toml` file; did you mean `ablation`\?$"
    ):
        load_grid("ablations")
    assert load_grid("ablation").name in names()


@pytest.mark.parametrize("key", ["a/b", "*", "[/x]", "..", "ä", "x" * 61, "a b", ""])
def test_keys_are_parts_of_names_of_files(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match="letters, digits"):
        grid_of(tmp_path, f'[columns."{key}"]\n[rows.b]\nmethod = {{name = "local"}}\n')


@pytest.mark.parametrize("name", ["cells", "runs", "locks", "..", "a b"])
def test_a_file_may_not_be_called_like_what_a_store_holds(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.toml"
    path.write_text('[columns.a]\n[rows.b]\nmethod = {name = "local"}\n')
    with pytest.raises(UserError, match="needs another name"):
        load_grid(str(path))


def test_what_all_columns_are_run_with_is_each_ones_own(tmp_path: Path) -> None:
    text = '[base]\ndataset = {name = "cifar10"}\n[columns.a]\n[columns.b]\ndataset = {name = "mnist"}\n'
    grid = grid_of(tmp_path, text + '[rows.b]\nmethod = {name = "local"}\n')
    assert [column.dataset["name"] for column in grid.columns] == ["cifar10", "mnist"]
    chosen, notes = with_data(grid, Wanted(quick=True), tmp_path)
    assert [column.dataset["name"] for column in chosen.columns] == ["digits", "digits"]
    assert len(notes) == 2


def test_views_that_a_method_adds_are_known_when_it_has_run(tmp_path: Path) -> None:
    rows = grid_of(tmp_path, changed('"post"', '"classifier_tuned"')).rows
    assert [row.view for row in rows] == ["classifier_tuned", "pre"]


def test_nothing_is_said_of_columns_that_nobody_meant(grid: Grid, tmp_path: Path) -> None:
    skewed, notes = with_data(grid, Wanted(patterns=["skewed/*"]), tmp_path)
    assert ([column.key for column in skewed.columns], notes, skewed.left_out) == (["skewed"], [], ())
    assert with_records(grid, Wanted(patterns=["skewed/*"]), Store(tmp_path)).left_out == ("Very skewed",)
    chosen, notes = with_data(grid, Wanted(patterns=["even/avg"]), tmp_path)
    assert (chosen.columns, chosen.left_out, len(notes)) == ((), ("even",), 1)

"""Tables answer by name, learn from other packages, and help with typing errors."""

from __future__ import annotations

import stat
from fractions import Fraction
from pathlib import Path

import pytest

from fedmate.backends import BACKENDS
from fedmate.core.options import Registry
from fedmate.data import DATASETS
from fedmate.data.partitions import PARTITIONS
from fedmate.errors import UserError, nearest
from fedmate.methods import METHODS
from fedmate.models import MODELS

COLOURS: Registry[int] = Registry("colours", {"red": "stat:ST_UID", "green": "stat:ST_GID", "blue": "stat:ST_DEV"})


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that adds two colours, one of them under a name that is taken."""
    (tmp_path / "more_colours.py").write_text("violet = 4\nred = 5\n")
    info = tmp_path / "more_colours-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-colours\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedmate.colours]\nviolet = more_colours:violet\nred = more_colours:red\n"
        "[fedmate.shapes]\nround = more_colours:violet\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


class TestRegistry:
    def test_rows_by_name(self) -> None:
        assert COLOURS["green"] == stat.ST_GID
        assert COLOURS.names() == ["blue", "green", "red"]
        assert "red" in COLOURS
        assert "gren" not in COLOURS

    @pytest.mark.parametrize(
        ("name", "advice"),
        [("gren", "did you mean `green`?"), ("xyz", "known are `blue`, `green`, `red`.")],
    )
    def test_an_unknown_name_answers_with_the_nearest_or_all(self, name: str, advice: str) -> None:
        with pytest.raises(UserError) as error:
            COLOURS[name]
        assert str(error.value) == f"`{name}` is not among the colours; {advice}"

    @pytest.mark.parametrize(("name", "meant"), [("FedMate+", "fedmate_plus"), ("LG-FedAvg", "lg_fedavg")])
    def test_a_name_as_papers_write_it_answers_with_ours(self, name: str, meant: str) -> None:
        assert nearest(name, ["fedavg", "fedmate", "fedmate_plus", "lg_fedavg"]) == f"did you mean `{meant}`?"

    def test_a_row_may_be_imported_when_it_is_asked_for(self) -> None:
        table: Registry[object] = Registry("things", {"half": "fractions:Fraction", "gone": "nowhere:x"})
        assert table.names() == ["gone", "half"]
        assert table["half"] is Fraction
        with pytest.raises(ModuleNotFoundError):
            table["gone"]

    @pytest.mark.usefixtures("other_package")
    def test_other_packages_add_rows(self) -> None:
        assert COLOURS.names() == ["blue", "green", "red", "violet"]
        assert COLOURS["violet"] == 4
        assert "round" not in COLOURS.names()

    @pytest.mark.usefixtures("other_package")
    def test_built_in_rows_cannot_be_replaced(self) -> None:
        assert COLOURS["red"] == stat.ST_UID


class TestTables:
    @pytest.mark.parametrize("table", [METHODS, DATASETS, PARTITIONS, MODELS, BACKENDS], ids=lambda t: t.kind)
    def test_every_name_leads_to_a_documented_class(self, table: Registry[type]) -> None:
        names = table.names()
        assert names
        assert len({table[name] for name in names}) == len(names)
        for name in names:
            assert isinstance(table[name], type)
            assert table[name].__doc__

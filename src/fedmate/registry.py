"""Tables of named things: methods, data sets, partitions, models, back ends.

A table is an explicit dictionary beside the things it names, which are imported one by one. Other packages add rows
through entry points of the group `fedmate.<kind>`, such as `fedmate.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast, final

from fedmate.errors import UserError, nearest

Row = TypeVar("Row")


@final
class Registry(Generic[Row]):
    """A table that answers unknown names with the nearest known one.

    Args:
        kind: what the table holds, in the plural.
        rows: name to `module:class`; a row is imported when it is asked for.
    """

    def __init__(self, kind: str, rows: Mapping[str, str]) -> None:
        self.kind = kind
        self.built_in = dict(rows)
        self._rows: dict[str, Row | str] = dict(rows)

    def names(self) -> list[str]:
        """Return every known name, in alphabetical order."""
        return sorted({*self._rows, *(point.name for point in entry_points(group=f"fedmate.{self.kind}"))})

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a row called `name`; asking other packages takes long, so built-in rows come first."""
        return isinstance(name, str) and (name in self._rows or name in self.names())

    def __getitem__(self, name: str) -> Row:
        """Return the row called `name`, or raise `UserError`."""
        row = self._rows.get(name)
        if isinstance(row, str):
            module, _, attribute = row.partition(":")
            row = self._rows[name] = cast(Row, getattr(import_module(module), attribute))
        if row is not None:
            return row
        for point in entry_points(group=f"fedmate.{self.kind}", name=name):
            try:
                other: Row = point.load()
            except Exception as error:
                # Another package's fault: whatever it raises, say whose it is.
                raise UserError(f"`{name}` of the entry point `{point.value}` cannot be loaded ({error!r}).") from error
            return other
        raise UserError(f"`{name}` is not among the {self.kind}; {nearest(name, self.names())}")

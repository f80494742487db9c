"""Tables of named things: methods, data sets, partitions, models, back ends.

A table is an explicit dictionary beside the things it names. Other packages add rows through entry points of the group
`fedmate.<kind>`, such as `fedmate.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar, final

from fedmate.errors import UserError, nearest

Row = TypeVar("Row")


@final
class Registry(Generic[Row]):
    """A table that answers unknown names with the nearest known one.

    Args:
        kind: what the table holds, in the plural.
        rows: name to class.
        later: name to `module:class` for rows that are imported when they are asked for: they stand on the table.
    """

    def __init__(self, kind: str, rows: Mapping[str, Row], later: Mapping[str, str] | None = None) -> None:
        """Remember the built-in rows; those of other packages are looked up when asked for."""
        self.kind = kind
        self._rows = dict(rows)
        self._later = dict(later or {})

    def names(self) -> list[str]:
        """Return every known name, in alphabetical order."""
        names = [*self._rows, *self._later, *(point.name for point in entry_points(group=f"fedmate.{self.kind}"))]
        return sorted(set(names))

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a row called `name`; asking other packages takes long, so built-in rows come first."""
        return isinstance(name, str) and (name in self._rows or name in self.names())

    def __getitem__(self, name: str) -> Row:
        """Return the row called `name`, or raise `UserError`."""
        if name in self._later:
            self._rows[name] = EntryPoint(name, self._later[name], f"fedmate.{self.kind}").load()
        if name in self._rows:
            return self._rows[name]
        for point in entry_points(group=f"fedmate.{self.kind}", name=name):
            try:
                row: Row = point.load()
            except Exception as error:
                # Another package's fault: whatever it raises, say whose it is.
                raise UserError(f"`{name}` of the entry point `{point.value}` cannot be loaded ({error!r}).") from error
            return row
        raise UserError(f"`{name}` is not among the {self.kind}; {nearest(name, self.names())}")

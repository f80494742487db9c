"""A network given in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, final

from fedmate.core import option
from fedmate.errors import UserError
from fedmate.models.base import Architecture


@final
@dataclass(frozen=True, kw_only=True)
class CustomModel(Architecture):
    """A module given to `fedmate.run(model=...)`; it starts from its own weights."""

    layer: str = option("classifier", "the name of its last layer")
    digest: str = option("", "fingerprint of its structure")

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> NoReturn:
        """Say that a file cannot hold it."""
        raise UserError(
            "`model.name` is `given`, a network that was passed in Python and is in no file; call "
            "`fedmate.run(..., model=...)`, and pass it again, with `resume=...`, to continue a run."
        )

"""What tests of image trees share: writing one, and comparing what was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmate.data.files import Content


def put(root: Path, content: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def same(one: Content, other: Content) -> None:
    """Compare two contents, sample by sample."""
    assert one.test is not None
    assert other.test is not None
    for here, there in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(here.x, there.x)
        np.testing.assert_array_equal(here.y, there.y)
    assert one.class_names == other.class_names

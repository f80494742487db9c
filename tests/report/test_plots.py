"""Pictures: a circle for each client and class, the same bytes for the same numbers."""

from __future__ import annotations

import importlib.util
import io
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedmate.errors import UserError
from fedmate.report.plots import FORMATS, MOST, Holdings, check_picture, draw_holdings

SVG = "{http://www.w3.org/2000/svg}"
COUNTS = np.array([[9, 0, 1], [0, 4, 9]], dtype=np.int64)


def holdings(counts: list[list[int]] | None = None, title: str = "toys, iid", classes: str = "abc") -> Holdings:
    """Two clients and three classes, unless other numbers are given."""
    array = COUNTS if counts is None else np.array(counts, dtype=np.int64)
    return Holdings(array, [str(i) for i in range(array.shape[0])], list(classes)[: array.shape[1]], title)


def many(clients: int, classes: int) -> Holdings:
    counts = np.random.default_rng(0).integers(0, 500, (clients, classes))
    return Holdings(counts, [str(i) for i in range(clients)], [f"kind of thing {k}" for k in range(classes)], "many")


def drawing(drawn: Holdings) -> ElementTree.Element:
    return ElementTree.fromstring(draw_holdings(drawn, ".svg"))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def circles(root: ElementTree.Element) -> list[tuple[float, float, float]]:
    """Return place and diameter of all circles; those of a size are copies of one outline."""
    radii: dict[str, float] = {}
    for path in root.iter(f"{SVG}path"):
        if "id" in path.attrib:
            # An outline begins at its lowest point: `M 0 radius`.
            radii[f"#{path.attrib['id']}"] = float(path.attrib["d"].split()[2])
    return [
        (float(use.attrib["x"]), float(use.attrib["y"]), 2 * radii[use.attrib["{http://www.w3.org/1999/xlink}href"]])
        for use in root.iter(f"{SVG}use")
        if use.attrib["{http://www.w3.org/1999/xlink}href"] in radii
    ]


# -------------------- what is drawn


def test_areas_are_numbers_of_samples() -> None:
    found = circles(drawing(holdings()))
    # Four for what is held, three that explain sizes.
    assert len(found) == 7
    diameters = sorted(diameter for _, _, diameter in found)
    largest = diameters[-1]
    areas = [9 * (diameter / largest) ** 2 for diameter in diameters]
    assert areas == pytest.approx([1, 1, 4, 4, 9, 9, 9], rel=0.03)


def test_clients_go_to_the_right_and_classes_upwards() -> None:
    found = circles(drawing(holdings([[4, 0, 0], [0, 4, 0]])))[:2]
    (x0, y0, _), (x1, y1, _) = sorted(found)
    assert x1 - x0 == pytest.approx(0.28 * 72, abs=0.01)
    # In SVG larger numbers are lower.
    assert y0 - y1 == pytest.approx(0.28 * 72, abs=0.01)


@pytest.mark.parametrize("shape", [(1, 2), (20, 10), (20, 100), (100, 5)])
def test_circles_do_not_overlap(shape: tuple[int, int]) -> None:
    counts = np.full(shape, 7)
    clients, classes = [str(i) for i in range(shape[0])], [str(k) for k in range(shape[1])]
    found = circles(drawing(Holdings(counts, clients, classes, "full")))
    # One of them explains the size.
    places = sorted((x, y) for x, y, _ in found)[: shape[0] * shape[1]]
    columns, rows = sorted({x for x, _ in places}), sorted({y for _, y in places})
    assert (len(columns), len(rows)) == shape
    diameter = found[0][2]
    assert all(b - a >= diameter for row in (columns, rows) for a, b in pairwise(row))
    assert diameter >= 0.09 * 72 * 0.9


def test_a_single_sample_among_many_is_seen() -> None:
    diameters = [diameter for _, _, diameter in circles(drawing(holdings([[100_000, 1, 0]])))]
    assert min(diameters) >= 1
    assert max(diameters) > 15


def test_axes_title_and_names_are_there() -> None:
    found = texts(drawing(holdings(title="cifar10, share (share = 20)")))
    assert {"client", "class", "cifar10, share (share = 20)", "0", "1", "a", "b", "c", "samples"} <= {*found}


def test_sizes_are_explained() -> None:
    found = texts(drawing(holdings()))
    assert [word for word in found if word in ("9", "4", "1")] == ["1", "9", "4", "1"], "a client, then sizes"
    found = texts(drawing(many(4, 5)))
    largest = int(many(4, 5).counts.max())
    assert {str(largest), str(math.ceil(largest / 4)), str(math.ceil(largest / 16))} <= {*found}


def test_all_names_of_a_hundred_classes_are_written_and_apart() -> None:
    root = drawing(many(20, 100))
    assert {f"kind of thing {k}" for k in range(100)} <= {*texts(root)}
    names = [element for element in root.iter(f"{SVG}text") if (element.text or "").startswith("kind")]
    places = sorted(float(name.attrib["y"]) for name in names)
    sizes = {float(name.attrib["style"].split("font-size: ")[1].split("px")[0]) for name in names}
    assert min(np.diff(places)) > max(sizes) >= 6


def test_long_names_of_clients_stand_upright() -> None:
    def turned(name: str) -> bool:
        root = drawing(Holdings(COUNTS, ["0", name], list("abc"), "toys"))
        (found,) = [element for element in root.iter(f"{SVG}text") if element.text == name]
        return "rotate(-90" in found.attrib["transform"]

    assert turned("newcomer 0")
    assert not turned("19")


# -------------------- odd names


ODD = {
    "$x$ & <b>": "$x$ & <b>",
    "$\\frac{": "$\\frac{",
    "two\nlines\x00": "two?lines?",
    "_hidden": "_hidden",
    "猫 кошка": "猫 кошка",
    "\udce4": "?",
    "x" * 25: "x" * 23 + "…",
    "": "",
}
"""Names, and what is shown of them."""


@pytest.mark.parametrize("suffix", FORMATS)
def test_names_are_shown_as_they_are_as_far_as_can_be(suffix: str) -> None:
    counts = np.ones((len(ODD), len(ODD)), dtype=np.int64)
    picture = draw_holdings(Holdings(counts, [*ODD], [*ODD], "".join(ODD)), suffix)
    if suffix == ".svg":
        found = texts(ElementTree.fromstring(picture))
        assert [shown for shown in ODD.values() if shown and found.count(shown) != 2] == []
        assert "".join("?" if not c.isprintable() else c for c in "".join(ODD)) in found


# -------------------- forms


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG\r\n"), (".pdf", b"%PDF-")])
def test_the_same_numbers_give_the_same_bytes(suffix: str, start: bytes) -> None:
    first, again = (draw_holdings(holdings(), suffix) for _ in range(2))
    assert first == again
    assert first.startswith(start)
    assert first != draw_holdings(holdings([[9, 0, 1], [0, 5, 9]]), suffix)
    # Within a second even a date would be the same.
    assert [word for word in (b"Date", b"dc:date", b"Matplotlib", b"Software") if word in first] == []


def test_another_process_gives_the_same_bytes_and_loads_matplotlib_only_to_draw_without_windows() -> None:
    script = (
        "import sys, numpy as np; from fedmate.report.plots import *; before = 'matplotlib' in sys.modules; "
        "counts = np.array([[9, 0, 1], [0, 4, 9]]); "
        "sys.stdout.buffer.write(draw_holdings(Holdings(counts, ['0', '1'], list('abc'), 'toys, iid'), '.svg')); "
        "sys.exit(before or 'matplotlib.pyplot' in sys.modules or 'tkinter' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert answer.stdout == draw_holdings(holdings(), ".svg")


def test_a_users_own_style_does_not_show() -> None:
    import matplotlib

    plain = draw_holdings(holdings(), ".svg")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30.0, "svg.hashsalt": "mine"}):
        assert draw_holdings(holdings(), ".svg") == plain
        assert matplotlib.rcParams["font.size"] == 30.0


def test_a_png_is_a_picture_with_blue_circles() -> None:
    image = Image.open(io.BytesIO(draw_holdings(holdings(), ".png"))).convert("RGB")
    pixels = np.asarray(image).reshape(-1, 3)
    blue = (pixels == (0x2A, 0x6F, 0x97)).all(1).sum()
    # Three circles of the largest size and smaller ones, of all that is white and black.
    assert 0.02 < blue / len(pixels) < 0.3


def test_files_stay_small() -> None:
    assert len(draw_holdings(many(20, 10), ".svg")) < 100_000
    counts = (np.random.default_rng(0).random((20, 100)) < 0.1) * 250
    sparse = many(20, 100)._replace(counts=counts)
    assert len(draw_holdings(sparse, ".svg")) < 80_000


# -------------------- what is refused


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "picture.SVG", ".svg"])
def test_other_suffixes(name: str) -> None:
    with pytest.raises(UserError) as caught:
        check_picture(Path(name))
    suffix = Path(name).suffix
    assert str(caught.value) == f"`{name}` ends in `{suffix}`; name the picture `.svg`, `.png` or `.pdf`."


@pytest.mark.parametrize("suffix", FORMATS)
def test_these_do(suffix: str) -> None:
    check_picture(Path(f"folder/picture{suffix}"))


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        check_picture(Path("p.svg"))
    assert str(caught.value) == (
        "`p.svg` cannot be drawn without matplotlib; install it with `pip install 'fedmate[plots]'`."
    )


@pytest.mark.parametrize("shape", [(MOST + 1, 2), (2, MOST + 1)])
def test_too_many_to_tell_apart(shape: tuple[int, int]) -> None:
    with pytest.raises(UserError) as caught:
        draw_holdings(many(*shape), ".svg")
    assert str(caught.value) == (
        f"`--plot` would draw {shape[0]} clients and {shape[1]} classes, too many to tell apart; use at most {MOST} of "
        "each."
    )

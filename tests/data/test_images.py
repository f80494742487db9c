"""Images become exactly the bytes they hold, of whatever kind they are, and what cannot be read is named."""

from __future__ import annotations

import io
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fedmate.data.images import (
    FORMATS,
    SUFFIXES,
    Form,
    Gallery,
    Place,
    Tree,
    decode,
    divide,
    gather,
    is_image,
    present,
    printable,
    read_tree,
)
from fedmate.errors import UserError

RNG = np.random.default_rng(0)
PIXELS: NDArray[np.uint8] = RNG.integers(0, 256, (4, 6, 3), dtype=np.uint8)
"""A picture 6 wide and 4 high."""

GREYS: NDArray[np.uint8] = RNG.integers(0, 256, (4, 6), dtype=np.uint8)
PLAIN = Form()


def encoded(image: Image.Image | NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(buffer, kind, **options)
    return buffer.getvalue()


def read(data: bytes, form: Form = PLAIN) -> NDArray[np.uint8]:
    found = decode("a.png", data, form)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    return found


def refused(data: bytes, form: Form = PLAIN) -> str:
    with pytest.raises(UserError) as caught:
        decode("folder/a.png", data, form)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a piece of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def flat(colour: int, side: int = 2) -> bytes:
    return encoded(np.full((side, side, 3), colour, np.uint8))


# -------------------- pixels


LOSSLESS: dict[str, dict[str, Any]] = {
    "PNG": {},
    "BMP": {},
    "PPM": {},
    "TIFF": {"compression": "tiff_lzw"},
    "WEBP": {"lossless": True},
}


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_formats_give_their_pixels(kind: str) -> None:
    np.testing.assert_array_equal(read(encoded(PIXELS, kind, **LOSSLESS[kind])), PIXELS.transpose(2, 0, 1))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "GIF"])
def test_grey_images_have_three_equal_channels_or_one(kind: str) -> None:
    data = encoded(GREYS, kind)
    np.testing.assert_array_equal(read(data), np.stack([GREYS] * 3))
    np.testing.assert_array_equal(read(data, Form(grey=True)), GREYS[None])


def test_a_jpeg_gives_nearly_its_pixels() -> None:
    smooth = np.asarray(Image.fromarray(PIXELS).resize((48, 32), Image.Resampling.BICUBIC))
    found = read(encoded(smooth, "JPEG", quality=95, subsampling=0)).astype(int)
    assert np.abs(found - smooth.transpose(2, 0, 1)).max() < 24


def test_colours_become_grey_by_their_brightness() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    # ITU-R 601: 0.299 red, 0.587 green, 0.114 blue.
    assert read(encoded(colours), Form(grey=True)).tolist() == [[[76, 150, 29, 255]]]


def test_black_and_white() -> None:
    bits = np.array([[True, False], [False, False]])
    for kind in ("PNG", "TIFF", "BMP"):
        assert read(encoded(Image.fromarray(bits), kind), Form(grey=True)).tolist() == [[[255, 0], [0, 0]]]


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "TIFF"])
def test_a_palette_is_looked_up(kind: str) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 200, 100, 50, 1, 2, 3])
    image.putdata([2, 0, 1])
    assert read(encoded(image, kind))[:, 0].T.tolist() == [[1, 2, 3], [10, 20, 30], [200, 100, 50]]


@pytest.mark.parametrize("transparency", [1, b"\xff\x00\x80"])
def test_what_a_palette_calls_transparent_is_white(transparency: int | bytes) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 200, 100, 50, 100, 0, 50])
    image.putdata([0, 1, 2])
    third = [100, 0, 50] if transparency == 1 else [177, 127, 152]
    found = read(encoded(image, "PNG", transparency=transparency))[:, 0].T.tolist()
    assert found == [[10, 20, 30], [255, 255, 255], third]


def test_transparency_is_laid_over_white() -> None:
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 200, 128]]], np.uint8)
    # 128 of 255 parts of the colour, 127 of white.
    assert read(encoded(pixels))[:, 0].T.tolist() == [[10, 20, 30], [255, 255, 255], [127, 127, 227]]
    grey = Image.new("LA", (2, 1))
    grey.putdata([(9, 255), (9, 0)])
    assert read(encoded(grey), Form(grey=True)).tolist() == [[[9, 255]]]


def test_a_colour_that_is_called_transparent_is_white() -> None:
    pixels = np.array([[[1, 2, 3], [1, 2, 4]]], np.uint8)
    assert read(encoded(pixels, transparency=(1, 2, 3)))[:, 0].T.tolist() == [[255, 255, 255], [1, 2, 4]]
    assert read(encoded(np.array([[5, 6]], np.uint8), transparency=5))[0].tolist() == [[255, 6]]


def test_printing_colours_become_those_of_screens() -> None:
    inks = Image.new("CMYK", (2, 1))
    inks.putdata([(0, 255, 255, 0), (0, 0, 0, 255)])
    assert read(encoded(inks, "TIFF"))[:, 0].T.tolist() == [[255, 0, 0], [0, 0, 0]]
    assert read(encoded(inks, "TIFF"), Form(grey=True)).tolist() == [[[76, 0]]]
    jpeg = read(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)).astype(int)
    assert np.abs(jpeg[:, 0, 0] - [255, 0, 0]).max() < 8


WIDE = np.array([[0, 255, 256, 65535]], np.uint16)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_of_sixteen_bits_the_upper_eight_are_kept(kind: str) -> None:
    image = Image.fromarray(WIDE.astype(np.int32)) if kind == "PPM" else Image.fromarray(WIDE)
    data = encoded(image, kind)
    np.testing.assert_array_equal(read(data, Form(grey=True)), [[[0, 0, 1, 255]]])
    np.testing.assert_array_equal(read(data), [[[0, 0, 1, 255]]] * 3)


def test_of_sixteen_bits_and_three_channels_too() -> None:
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    row = b"\0" + struct.pack(">HHH", 0x1234, 0xABCD, 0x00FF)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(row)), chunk(b"IEND", b""))
    assert read(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).tolist() == [[[0x12]], [[0xAB]], [[0x00]]]


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_wider_numbers_have_no_known_range(kind: type) -> None:
    assert "(32 bits for a pixel; save it with 8 or 16)" in refused(encoded(np.ones((2, 2), kind), "TIFF"))


def test_the_cameras_note_is_not_followed() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read(encoded(PIXELS, "PNG", exif=exif)).shape == (3, 4, 6)
    np.testing.assert_array_equal(read(encoded(PIXELS, "PNG", exif=exif)), PIXELS.transpose(2, 0, 1))


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "PNG"])
def test_of_several_frames_the_first_counts(kind: str) -> None:
    frames = [Image.fromarray(np.full((2, 2), value, np.uint8)) for value in (3, 200)]
    assert np.unique(read(encoded(frames[0], kind, save_all=True, append_images=frames[1:]))).tolist() == [3]


def test_the_content_tells_the_format() -> None:
    np.testing.assert_array_equal(decode("a.jpeg", encoded(PIXELS, "PNG"), Form()), PIXELS.transpose(2, 0, 1))


# -------------------- sizes


def test_the_whole_image_is_stretched() -> None:
    halves = np.zeros((4, 16, 3), np.uint8)
    halves[:, 8:] = 255
    found = read(encoded(halves), Form(4))
    assert found.shape == (3, 4, 4)
    assert found[0, 0, 0] == 0
    assert found[0, 0, 3] == 255
    np.testing.assert_array_equal(read(flat(77, 3), Form(7)), np.full((3, 7, 7), 77))


def test_small_images_are_means_of_large_ones() -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::4] = 255
    # Without care about what lies between the points it would find stripes only, or none.
    np.testing.assert_allclose(read(encoded(stripes), Form(4, grey=True)), 255 / 4, atol=4)


def test_an_image_of_the_size_is_left_as_it_is() -> None:
    square = PIXELS[:, :4]
    for form in (Form(4), Form(4, resize=False), Form()):
        np.testing.assert_array_equal(read(encoded(square), form), square.transpose(2, 0, 1))


def test_another_size_is_refused_where_it_must_not_be_stretched() -> None:
    assert "(6 x 4 pixels instead of 32 x 32)" in refused(encoded(PIXELS), Form(32, resize=False))


# -------------------- what cannot be read


@pytest.mark.parametrize(
    "data",
    [b"", b"no image at all", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\x00\x00\x00\x0cjP  \r\n\x87\n"],
    ids=["empty", "text", "program", "unknown"],
)
def test_other_content_is_refused(data: bytes) -> None:
    assert refused(data) == (
        f"`folder/a.png` cannot be read as an image (none of {', '.join(FORMATS)}); mend or remove it, or set "
        "`dataset.skip_bad` to leave such files out."
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP"])
def test_half_an_image_is_refused(kind: str) -> None:
    data = encoded(RNG.integers(0, 256, (40, 40, 3), dtype=np.uint8), kind)
    assert refused(data[: len(data) // 2]).startswith("`folder/a.png` cannot be read as an image (")


def test_what_pillow_warns_of_is_read_all_the_same() -> None:
    plain = flat(5)
    # An animation of no frames, after the signature and the header of 33 bytes.
    odd = plain[:33] + chunk(b"acTL", struct.pack(">II", 0, 0)) + plain[33:]
    with pytest.warns(UserWarning, match="APNG"), Image.open(io.BytesIO(odd)):
        pass
    np.testing.assert_array_equal(read(odd), read(plain))


@pytest.mark.parametrize("side", [4, 5], ids=["doubtful", "certain"])
def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12)
    assert "(over 12 pixels, as a decompression bomb has)" in refused(flat(1, side))
    assert read(flat(1, 3)).shape == (3, 3, 3)


def test_a_bomb_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12)
    gallery = gather([(Place(False, 0, "a"), flat(1, 9)), (Place(False, 0, "b"), flat(2, 3))], Form(skip_bad=True))
    assert (gallery.bad, gallery.x.shape) == (["a"], (1, 3, 3, 3))


SOUND = [
    *(encoded(PIXELS, kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")),
    encoded(Image.fromarray(PIXELS).convert("P"), "PNG", transparency=b"\x00\x80"),
    encoded(Image.fromarray(PIXELS).convert("CMYK"), "TIFF"),
]


@settings(max_examples=100)
@given(st.sampled_from(SOUND), st.data())
def test_damage_never_leaks(sound: bytes, draw: st.DataObject) -> None:
    data = bytearray(sound)
    for place in draw.draw(st.lists(st.integers(0, len(sound) - 1), min_size=1, max_size=8)):
        data[place] = draw.draw(st.integers(0, 255))
    shape, sentence = None, ""
    try:
        shape = decode("a", bytes(data), Form(8)).shape
    except UserError as error:
        sentence = str(error)
    assert shape == (3, 8, 8) or sentence.startswith("`a` cannot be read as an image (")
    assert "object at 0x" not in sentence
    assert len(sentence.splitlines()) <= 1


@pytest.mark.parametrize("skip_bad", [False, True])
def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, skip_bad: bool) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    sentence = "Images are read with Pillow, which is missing; run `pip install 'fedmate[images]'`."
    with pytest.raises(UserError) as caught:
        decode("a", b"", Form(skip_bad=skip_bad))
    assert str(caught.value) == sentence
    with pytest.raises(UserError) as caught:
        gather([], Form(skip_bad=skip_bad))
    assert str(caught.value) == sentence


# -------------------- names


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_images_are_known_by_their_names(suffix: str) -> None:
    assert is_image(f"cat/a b{suffix}")
    assert is_image(f"É{suffix.upper()}")
    for name in (f".a{suffix}", f".git/a{suffix}", f"a/._b{suffix}", f"a{suffix}.txt", suffix, "a", suffix[1:]):
        assert not is_image(name)


def test_names_that_spoil_a_line_are_spelled_out() -> None:
    assert printable("Ünïcode ネコ 👩\u200d🔬 \u200c.png") == "Ünïcode ネコ 👩\u200d🔬 \u200c.png"
    assert printable("a\nb\x1b[1m\udcff") == "a\\nb\\x1b[1m\\udcff"


# -------------------- many images


def test_images_are_gathered_in_the_order_they_come() -> None:
    places = [Place(False, 1, "b"), Place(True, 0, "c"), Place(False, 0, "a")]
    gallery = gather([(place, flat(i)) for i, place in enumerate(places)], Form())
    assert gallery.places == places
    np.testing.assert_array_equal(gallery.x, np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 2, 2)))
    assert gallery.x.dtype == np.uint8
    assert gallery.notes == ()


def test_all_must_have_one_size() -> None:
    items = [(Place(False, 0, "a.png"), flat(1, 2)), (Place(False, 0, "b\n.png"), encoded(PIXELS))]
    with pytest.raises(UserError) as caught:
        gather(items, Form(skip_bad=True))
    assert str(caught.value) == (
        "`b\\n.png` has 6 x 4 pixels, those before it have 2 x 2; set `dataset.size` to stretch all images to one size."
    )
    assert gather(items, Form(5)).x.shape == (2, 3, 5, 5)


def test_what_cannot_be_read_is_named_or_left_out() -> None:
    items = [(Place(False, 0, f"{i}.png"), b"" if i in (2, 4, 6, 8, 9) else flat(i)) for i in range(11)]
    with pytest.raises(UserError, match=r"^`2.png` cannot be read as an image \("):
        gather(items, Form())
    gallery = gather(reversed(items), Form(skip_bad=True))
    assert gallery.x[:, 0, 0, 0].tolist() == [10, 7, 5, 3, 1, 0]
    assert [place.name for place in gallery.places] == [f"{i}.png" for i in (10, 7, 5, 3, 1, 0)]
    assert gallery.notes == ("Left out as unreadable: 5 of 11 images (`2.png`, `4.png`, `6.png` and 2 more).",)
    three = gather(items[:7], Form(skip_bad=True))
    assert three.notes == ("Left out as unreadable: 3 of 7 images (`2.png`, `4.png`, `6.png`).",)


def gallery_of(places: list[Place], width: int = 100) -> Gallery:
    """Make images that hold their number in every byte, of a width that is no multiple of what moves at once."""
    x = np.repeat(np.arange(len(places), dtype=np.uint8), width).reshape(-1, 1, 1, width)
    return Gallery(x, places, [])


@pytest.mark.parametrize("width", [1, 64, 100])
def test_an_official_split_is_sorted_by_class_and_name(width: int) -> None:
    places = [(1, 1, "a"), (0, 1, "b"), (0, 0, "z"), (1, 0, "a"), (0, 1, "a"), (0, 0, "a")]
    train, test = divide(gallery_of([Place(bool(test), label, name) for test, label, name in places], width))
    assert train.x[:, 0, 0].tolist() == [[i] * width for i in (5, 2, 4, 1)]
    assert train.y.tolist() == [0, 0, 1, 1]
    assert test.x[:, 0, 0].tolist() == [[i] * width for i in (3, 0)]
    assert test.y.tolist() == [0, 1]
    assert train.y.dtype == test.y.dtype == np.int64


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=200), st.integers(0, 5))
def test_a_drawn_split_is_disjoint_complete_and_a_fifth_of_each_class(labels: list[int], seed: int) -> None:
    places = [Place(False, label, f"{i:03}") for i, label in enumerate(labels)]
    train, test = divide(gallery_of(places), seed)
    found = np.concatenate([train.x, test.x])[:, 0, 0, 0]
    assert sorted(found.tolist()) == list(range(len(labels)))
    for part in (train, test):
        rows = part.x[:, 0, 0, 0].tolist()
        assert part.y.tolist() == [labels[row] for row in rows]
        # By class, then by name, in each part.
        assert rows == sorted(rows, key=lambda row: (labels[row], row))
    drawn, all_of = np.bincount(test.y, minlength=4), np.bincount(labels, minlength=4)
    assert (np.abs(drawn - all_of / 5) <= 1).all()


def test_the_seed_draws_the_split_whatever_the_order_of_the_files() -> None:
    places = [Place(False, i % 3, f"{i:03}") for i in range(90)]

    def drawn(order: list[int], seed: int) -> set[str]:
        gallery = gallery_of([places[i] for i in order])
        return {places[order[row]].name for row in divide(gallery, seed)[1].x[:, 0, 0, 0]}

    straight, mixed = list(range(90)), RNG.permutation(90).tolist()
    assert drawn(straight, 0) == drawn(mixed, 0) == drawn(straight, 0)
    assert drawn(straight, 0) != drawn(straight, 1)


def test_reading_takes_little_more_memory_than_the_images() -> None:
    data = [flat(value, 32) for value in range(200)]

    def items() -> Iterator[tuple[Place, bytes]]:
        yield from ((Place(i % 2 == 0, -i, "name"), data[i % 200]) for i in range(2000))

    decode("warm up", data[0], Form())
    tracemalloc.start()
    try:
        train, test = divide(gather(items(), Form()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    images = train.x.nbytes + test.x.nbytes
    assert images == 2000 * 3072
    # The rest are names and places.
    assert peak < 1.4 * images


# -------------------- trees


def grow(root: Path, *names: str) -> list[Path]:
    """Write an image for each name, which holds its number, and return the folders."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(flat(number))
    return sorted({(root / name).parent for name in names})


def by_letter(name: str) -> Place | None:
    *_, part, letter, _ = name.split("/")
    return Place(part == "test", "ab".index(letter), name) if letter in "ab" else None


def test_a_tree_is_read_without_what_is_not_wanted(tmp_path: Path) -> None:
    found = grow(tmp_path, "train/a/2.png", "test/a/1.png", "train/b/1.png", "train/c/1.png", "train/b/.2.png")
    content = read_tree(Tree(found, by_letter, ("one", "two")), Form())
    assert content.test is not None
    assert content.train.x[:, 0, 0, 0].tolist() == [0, 2]
    assert content.train.y.tolist() == [0, 1]
    assert content.test.x[:, 0, 0, 0].tolist() == [1]
    assert content.class_names == ("one", "two")
    assert content.notes == ("There is no image to test on of `two`.",)


def test_a_class_without_images_to_train_on_is_refused(tmp_path: Path) -> None:
    found = grow(tmp_path, "train/a/2.png", "test/a/1.png", "test/b/1.png")
    with pytest.raises(UserError) as caught:
        read_tree(Tree(found, by_letter, ("one", "two")), Form())
    assert str(caught.value) == (
        f"`{tmp_path}` has no image of the class `two` to train on; see whether it is complete."
    )


def test_nothing_to_test_on_is_refused(tmp_path: Path) -> None:
    found = grow(tmp_path, "train/a/2.png", "train/b/1.png")
    for seed in (None, 0):
        with pytest.raises(UserError) as caught:
            read_tree(Tree(found, by_letter, ("one", "two")), Form(), seed)
        assert str(caught.value) == f"`{tmp_path / 'train'}` has 2 images, but none to test on; add more."


def test_folders_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert present([tmp_path / "a"]) == [tmp_path / "a"]
    (tmp_path / "b").write_bytes(b"")
    for name in ("b", "c"):
        with pytest.raises(UserError, match=f"has no folder `{name}`; see whether the data set is complete"):
            present([tmp_path / "a", tmp_path / name])

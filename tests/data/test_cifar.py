"""CIFAR in every form in which it is published, the same samples out of each, and one sentence for what is wrong."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmate.core import Augmentation
from fedmate.data import DATASETS
from fedmate.data.cifar import CIFAR10, CIFAR100, Cifar10, Cifar100, Layout
from fedmate.data.dataset import Arrays
from fedmate.errors import UserError

RNG = np.random.default_rng(0)
LAYOUTS = {layout.name: layout for layout in (CIFAR10, CIFAR100)}


class Batch(NamedTuple):
    """Some images as rows of red, green and blue pixels, with their labels."""

    x: NDArray[np.uint8]
    y: list[int]
    coarse: list[int]


def some(classes: int, size: int) -> Batch:
    labels = [int(label) for label in RNG.integers(0, classes, size)]
    return Batch(RNG.integers(0, 256, (size, 3072), dtype=np.uint8), labels, [label // 5 for label in labels])


BATCHES = {
    "cifar10": [some(10, size) for size in (3, 2, 4, 2, 3, 5)],
    "cifar100": [some(100, size) for size in (7, 4)],
}
"""In the official order, the test split last."""


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


# -------------------- writing the forms


class Python2(pickle._Pickler):
    """Writes `bytes` as Python 2 wrote its strings."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, words: bytes) -> None:
        self.write(b"T" + struct.pack("<i", len(words)) + words)  # type: ignore[attr-defined]

    dispatch[bytes] = save_string


def python2(batch: dict[Any, Any]) -> bytes:
    file = io.BytesIO()
    Python2(file, 2).dump(batch)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.")


def python3(batch: dict[Any, Any]) -> bytes:
    return pickle.dumps({key.decode(): value for key, value in batch.items()})


def pickled(layout: Layout, batch: Batch, dump: Callable[[dict[Any, Any]], bytes] = python2) -> bytes:
    fields: dict[Any, Any] = {b"batch_label": b"a batch", layout.labels.encode(): batch.y, b"data": batch.x}
    if layout.name == "cifar100":
        fields[b"coarse_labels"] = batch.coarse
    return dump({**fields, b"filenames": [b"some_%d.png" % i for i in range(len(batch.y))]})


def rows(layout: Layout, batch: Batch) -> bytes:
    heads = [
        bytes([label]) if layout is CIFAR10 else bytes([coarse, label])
        for label, coarse in zip(*batch[1:], strict=True)
    ]
    return b"".join(head + image.tobytes() for head, image in zip(heads, batch.x, strict=True))


def contents(layout: Layout, *, binary: bool, dump: Callable[[dict[Any, Any]], bytes] = python2) -> dict[str, bytes]:
    form = layout.forms[binary]
    write = rows if binary else lambda layout, batch: pickled(layout, batch, dump)
    files = {file: write(layout, batch) for file, batch in zip(form.files, BATCHES[layout.name], strict=True)}
    return {form.extra: b"names of classes", **files}


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, top: str, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        # The official archives are in an order of their own.
        for name, content in reversed(files.items()):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write(layout: Layout, kind: str, folder: Path) -> Path:
    """Put a data set into a folder in one of its forms, and return the folder to load from."""
    binary = "binary" in kind
    form, files = layout.forms[binary], contents(layout, binary=binary, dump=python3 if "3" in kind else python2)
    if kind.endswith("archive"):
        write_archive(folder / form.archive, form.folder, files)
    elif kind.endswith("itself"):
        write_folder(folder, files)
    else:
        write_folder(folder / form.folder, files)
    return folder


FORMS = (
    *("python 2 folder", "python 3 folder", "binary folder", "python 2 archive", "python 3 archive", "binary archive"),
    *("python 2 itself", "binary itself"),
)


def load(layout: Layout, folder: Path) -> Arrays:
    return {"cifar10": Cifar10, "cifar100": Cifar100}[layout.name]().load(folder)


def refused(layout: Layout, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(layout, folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def check(arrays: Arrays, layout: Layout) -> None:
    *train, test = BATCHES[layout.name]
    assert arrays.test is not None
    np.testing.assert_array_equal(arrays.train.x, np.concatenate([batch.x for batch in train]).reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(arrays.test.x, test.x.reshape(-1, 3, 32, 32))
    assert arrays.train.y.tolist() == [label for batch in train for label in batch.y]
    assert arrays.test.y.tolist() == test.y
    assert arrays.train.x.dtype == arrays.test.x.dtype == np.uint8
    assert arrays.train.y.dtype == arrays.test.y.dtype == np.int64
    assert arrays.class_names == layout.class_names


# -------------------- what is read


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples_in_the_official_order(name: str, form: str, tmp_path: Path) -> None:
    folder = write(LAYOUTS[name], form, tmp_path)
    check(load(LAYOUTS[name], folder), LAYOUTS[name])
    # And again, out of the cache, which must not count as a new file of a folder that is the data set itself.
    (cache,) = (tmp_path / "cached").iterdir()
    written = cache.stat().st_mtime_ns
    check(load(LAYOUTS[name], folder), LAYOUTS[name])
    assert [path.stat().st_mtime_ns for path in (tmp_path / "cached").iterdir()] == [written]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_prepared_file_is_read(name: str, tmp_path: Path) -> None:
    *train, test = BATCHES[name]
    images = [np.concatenate([batch.x for batch in part]).reshape(-1, 3, 32, 32) for part in (train, [test])]
    labels = [np.concatenate([batch.y for batch in part]).astype(np.uint8) for part in (train, [test])]
    np.savez(
        tmp_path / f"{name}.npz",
        train_x=images[0].transpose(0, 2, 3, 1),
        train_y=labels[0],
        test_x=images[1].transpose(0, 2, 3, 1),
        test_y=labels[1],
    )
    check(load(LAYOUTS[name], tmp_path), LAYOUTS[name])


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_first_form_of_the_documented_order_is_taken(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    dataset = DATASETS[name]()
    assert isinstance(dataset, Cifar10 | Cifar100)
    found = []
    for kind in ("binary itself", "binary archive", "python 2 archive", "binary folder", "python 2 folder"):
        write(layout, kind, tmp_path)
        found.append(dataset.find(tmp_path)[0].relative_to(tmp_path).as_posix())
    (tmp_path / f"{name}.npz").touch()
    found.append(dataset.find(tmp_path)[0].name)
    python, binary = layout.forms
    assert found == [
        binary.files[0],
        binary.archive,
        python.archive,
        f"{binary.folder}/{binary.files[0]}",
        f"{python.folder}/{python.files[0]}",
        f"{name}.npz",
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_that_lacks_files_gives_way_to_an_archive(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    write(layout, "python 2 folder", tmp_path)
    (tmp_path / layout.forms[0].folder / layout.forms[0].files[1]).unlink()
    write(layout, "binary archive", tmp_path)
    check(load(layout, tmp_path), layout)


def test_fine_labels_are_used_not_coarse_ones(tmp_path: Path) -> None:
    assert BATCHES["cifar100"][0].y != BATCHES["cifar100"][0].coarse
    assert load(CIFAR100, write(CIFAR100, "binary folder", tmp_path)).train.y.tolist() == BATCHES["cifar100"][0].y


def test_labels_may_be_an_array(tmp_path: Path) -> None:
    folder = write(CIFAR100, "python 2 folder", tmp_path)
    batch = BATCHES["cifar100"][0]
    data = pickle.dumps({"data": batch.x, "fine_labels": np.array(batch.y, dtype=np.int16)})
    (folder / "cifar-100-python" / "train").write_bytes(data)
    check(load(CIFAR100, folder), CIFAR100)


# -------------------- what belongs to it


def test_class_names_are_the_official_ones() -> None:
    assert " ".join(CIFAR10.class_names) == "airplane automobile bird cat deer dog frog horse ship truck"
    names = CIFAR100.class_names
    assert len(names) == len(set(names)) == 100
    assert list(names) == sorted(names)
    known = {0: "apple", 1: "aquarium_fish", 39: "keyboard", 47: "maple_tree", 58: "pickup_truck", 99: "worm"}
    assert {label: names[label] for label in known} == known


def test_pixels_are_standardised_by_the_papers_constants(tmp_path: Path) -> None:
    found = load(CIFAR10, write(CIFAR10, "binary folder", tmp_path)).normalisation
    np.testing.assert_allclose(np.array(found) / 255, [[0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]])
    found = load(CIFAR100, write(CIFAR100, "binary folder", tmp_path)).normalisation
    np.testing.assert_allclose(np.array(found) / 255, [[0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]])


def test_images_are_cropped_and_mirrored_unless_asked_not_to_be() -> None:
    assert Cifar10().augmentation == Cifar100().augmentation == Augmentation(4, True)
    assert Cifar10(crop=0, flip=False).augmentation == Augmentation()


def test_an_experiment_starts_from_the_papers_setting() -> None:
    share = {"name": "share", "examples": 600}
    assert Cifar10().defaults == {"partition": share, "model": {"name": "cifar_cnn"}}
    assert Cifar100().defaults == {
        "partition": share,
        "model": {"name": "cifar100_cnn"},
        "training": {"learning_rate": 0.01},
    }


def test_the_hundred_classes_dominate_in_tens() -> None:
    groups = Cifar100().groups
    assert len(groups) == 10
    assert groups[0] == tuple(range(10))
    assert [label for group in groups for label in group] == list(range(100))
    assert Cifar10().groups == ()


# -------------------- what is refused


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_data_set_says_what_would_do_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    message = refused(LAYOUTS[name], tmp_path)
    for form in LAYOUTS[name].forms:
        assert f"`{form.folder}`" in message
        assert f"`{form.archive}`" in message
    assert f"`{name}.npz`" in message
    assert f"`fedmate data {name}`" in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("binary", [False, True])
def test_a_missing_batch_is_named(name: str, binary: bool, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    form, files = layout.forms[binary], contents(layout, binary=binary)
    del files[form.files[-1]]
    folder = write_folder(tmp_path / "one" / form.folder, files)
    message = refused(layout, tmp_path / "one")
    assert f"has no `{form.files[-1]}` beside it in `{folder}`" in message
    assert f"`fedmate data {name}`" in message
    path = write_archive(tmp_path / form.archive, form.folder, files)
    assert f"`{path}` is damaged or not complete (it has no `{form.folder}/{form.files[-1]}`)" in refused(
        layout, tmp_path
    )


def test_a_folder_with_a_file_of_a_common_name_is_not_taken_for_cifar(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / name).touch()
        assert f"`{tmp_path}` has no `cifar100.npz`" in refused(CIFAR100, tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("binary", [False, True])
def test_a_truncated_archive_is_said(name: str, binary: bool, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    write(layout, f"{'binary' if binary else 'python 2'} archive", tmp_path)
    path = tmp_path / layout.forms[binary].archive
    whole = path.read_bytes()
    for cut in (0, 5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        message = refused(layout, tmp_path)
        assert f"`{path}` is damaged or not complete" in message
        assert "fetch it again" in message


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 1000, -1])
def test_a_truncated_batch_is_said(name: str, binary: bool, cut: int, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    form = layout.forms[binary]
    folder = write(layout, f"{'binary' if binary else 'python 2'} folder", tmp_path)
    path = folder / form.folder / form.files[0]
    path.write_bytes(path.read_bytes()[:cut])
    assert f"`{path}` is damaged or not complete" in refused(layout, folder)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("form", ["python 2 folder", "binary archive"])
def test_a_label_that_names_no_class_is_said(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = LAYOUTS[name]
    classes = len(layout.class_names)
    wrong = BATCHES[name][-1]._replace(y=[0, classes, *BATCHES[name][-1].y[2:]])
    monkeypatch.setitem(BATCHES, name, [*BATCHES[name][:-1], wrong])
    message = refused(layout, write(layout, form, tmp_path))
    assert f"[{layout.labels}]` is {classes} at [1], but labels are whole numbers from 0 to {classes - 1}" in message
    assert layout.forms["binary" in form].files[-1] in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((2, 3071), np.uint8)}, "has uint8 images of shape [3071], expected uint8 of shape [3072]"),
        ({"data": np.zeros((2, 3, 32, 32), np.uint8)}, "has uint8 images of shape [3, 32, 32]"),
        ({"data": np.zeros((2, 3072), np.int16)}, "has int16 images of shape [3072]"),
        ({"data": np.zeros((3, 3072), np.uint8)}, "it has 3 images and labels of shape [2]"),
        ({"data": [0]}, "it has no images `data` with `labels`"),
        ({"labels": None}, "it has no images `data` with `labels`"),
        ({"labels": [1, "x"]}, "it has no images `data` with `labels`"),
        ({"labels": [1, 2**70]}, "[labels]` "),
        ({"labels": [1, -1]}, "[labels]` is -1 at [1]"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "it holds no image"),
    ],
)
def test_a_batch_of_something_else_is_said(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(CIFAR10, "python 2 folder", tmp_path)
    path = folder / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2], **change}))
    assert message in refused(CIFAR10, folder)
    assert str(path) in refused(CIFAR10, folder)


def test_a_pickle_that_is_no_dictionary_is_said(tmp_path: Path) -> None:
    folder = write(CIFAR10, "python 2 folder", tmp_path)
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps([1]))
    assert "test_batch` is damaged or not complete (it has no images" in refused(CIFAR10, folder)


def test_a_binary_batch_of_the_other_data_set_is_said(tmp_path: Path) -> None:
    folder = write(CIFAR10, "binary folder", tmp_path)
    path = folder / "cifar-10-batches-bin" / "data_batch_1.bin"
    path.write_bytes(rows(CIFAR100, BATCHES["cifar10"][0]))
    assert "it has 9,222 bytes, no multiple of 3,073" in refused(CIFAR10, folder)


def test_a_batch_that_runs_something_is_refused(tmp_path: Path) -> None:
    folder = write(CIFAR10, "python 2 archive", tmp_path)
    files = {**contents(CIFAR10, binary=False), "data_batch_3": b"cos\nsystem\n(S'touch mark'\ntR."}
    write_archive(folder / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    message = refused(CIFAR10, folder)
    assert "cifar-10-python.tar.gz/cifar-10-batches-py/data_batch_3` is a pickle that asks for `os.system`" in message
    assert not list(tmp_path.rglob("mark"))


def test_a_prepared_file_of_another_size_is_said(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 28, 28), np.uint8), np.zeros(2, np.uint8)
    np.savez(tmp_path / "cifar10.npz", train_x=images, train_y=labels, test_x=images, test_y=labels)
    message = refused(CIFAR10, tmp_path)
    assert "cifar10.npz[train_x]` has images of shape [28, 28], expected [3, 32, 32]" in message

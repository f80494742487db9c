"""Models as files and as objects: what goes in comes out, in plain PyTorch too, and what is wrong gets one sentence."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

import fedmate
from fedmate.core.layers import drop_statistics
from fedmate.core.metrics import CHUNK
from fedmate.core.serialise import digest
from fedmate.data import Normalisation
from fedmate.data.digits import NORMALISATION
from fedmate.errors import UserError
from fedmate.experiment.inputs import read_array, read_arrays, read_table
from fedmate.experiment.predict import PortableModel, load_model
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import structure
from fedmate.models import MODELS

ORIGIN = {"method": "fedper", "dataset": "digits", "client": 3, "round": 7, "fedmate": "0.1.0"}
DIGITS = Signature((1, 8, 8), tuple("abcdefghij"), NORMALISATION, "float32")


def make(name: str = "digits_cnn", signature: Signature = DIGITS, **options: Any) -> PortableModel:
    """Return a model with random weights of one of the package's architectures."""
    options = {"buffers": "shared", "width": 8, **options} if name == "digits_cnn" else {"buffers": "shared", **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = MODELS[name](**options).build(signature.input_shape, len(signature.class_names))
    module = module.to(getattr(torch, signature.dtype)).eval()
    return PortableModel(module, signature, {"name": name, "options": options}, dict(ORIGIN))


def network() -> nn.Sequential:
    """Return a network with statistics and tied weights, as users bring them."""
    first = nn.Linear(4, 4)
    last = nn.Linear(4, 4)
    last.weight = first.weight
    layers = OrderedDict(first=first, norm=nn.BatchNorm1d(4), again=last, head=nn.Linear(4, 2))
    return nn.Sequential(layers)


def make_given(buffers: str = "shared") -> PortableModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = network()
    module(torch.randn(20, 4))
    options = {"buffers": buffers, "layer": "head", "digest": structure(module)}
    if buffers == "dropped":
        drop_statistics(module)
    signature = Signature((4,), ("no", "yes"), Normalisation(), "float32")
    return PortableModel(module.eval(), signature, {"name": "given", "options": options}, dict(ORIGIN))


def pixels(size: int = 6) -> NDArray[np.float64]:
    return np.random.default_rng(0).integers(0, 17, (size, 1, 8, 8)).astype(np.float64)


def sentence(function: Any, *arguments: Any) -> str:
    """Return the sentence that something is refused with: an argument, what was found, what to do."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    text = str(caught.value)
    assert text.startswith("`")
    assert "; " in text
    assert text.endswith(".")
    assert "\n" not in text
    return text


# -------------------- predicting


def test_raw_samples_are_normalised_before_the_network_reads_them() -> None:
    model = make()
    with torch.no_grad():
        normalised = torch.from_numpy((pixels().astype(np.float32) - np.float32(4.884)) / np.float32(6.017))
        expected = model.module(normalised).softmax(-1).numpy()
    found = model.predict(pixels())
    assert np.array_equal(found.probabilities, expected)
    assert found.labels.tolist() == expected.argmax(1).tolist()
    assert found.class_names == [tuple("abcdefghij")[label] for label in found.labels]
    assert len(set(found.class_names)) > 1
    assert not np.allclose(expected, model.module(torch.from_numpy(pixels()).float()).softmax(-1).detach().numpy())


def test_channels_have_numbers_of_their_own() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Identity())
    signature = Signature((2, 1, 1), ("a", "b"), Normalisation((1.0, 10.0), (2.0, 5.0)), "float64")
    model = PortableModel(module, signature, {"name": "given", "options": {}}, ORIGIN)
    found = model.predict(np.array([[[[3.0]], [[20.0]]]])).probabilities
    assert found == pytest.approx(torch.tensor([[1.0, 2.0]]).softmax(-1).numpy(), abs=1e-7)


@pytest.mark.parametrize(
    "form",
    [
        lambda x: x.tolist(),
        lambda x: x.astype(np.uint8),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(">i4"),
        lambda x: torch.from_numpy(x),
        lambda x: torch.from_numpy(x).bfloat16(),
        lambda x: torch.from_numpy(x).int(),
        lambda x: x.reshape(6, 64),
        lambda x: np.asfortranarray(x),
    ],
)
def test_samples_come_in_many_forms(form: Any) -> None:
    expected = make().predict(pixels()).probabilities
    assert np.array_equal(make().predict(form(pixels())).probabilities, expected)


@pytest.mark.parametrize("shape", [(1, 8, 8), (64,), (1, 64), (1, 1, 8, 8)])
def test_one_sample_needs_no_axis(shape: tuple[int, ...]) -> None:
    one = pixels()[2]
    assert np.array_equal(make().predict(one.reshape(shape)).probabilities, make().predict([one]).probabilities)


def test_many_samples_are_answered_some_at_a_time() -> None:
    """A network without statistics reads the same batches as in the run's evaluation."""
    model, x = make_given("dropped"), np.random.default_rng(0).normal(size=(CHUNK + 300, 4))
    x[CHUNK:] += 5
    parts = [model.predict(part).probabilities for part in (x[:CHUNK], x[CHUNK:])]
    assert np.array_equal(model.predict(x).probabilities, np.concatenate(parts))


def test_the_answers_are_a_table() -> None:
    signature = replace(DIGITS, class_names=("a,b", 'say "hi"', *"cdefghij"))
    found = (
        make(signature=signature).predict(pixels(2))._replace(labels=np.array([1, 0]), class_names=['say "hi"', "a,b"])
    )
    table = found.to_csv().splitlines()
    assert table[0] == "sample,class,probability"
    assert table[1] == f'0,"say ""hi""",{found.probabilities[0, 1]:.6f}'
    assert table[2] == f'1,"a,b",{found.probabilities[1, 0]:.6f}'


@pytest.mark.parametrize(
    ("x", "found"),
    [
        (np.zeros((5, 8, 7)), "`x` has the shape [5, 8, 7]; give [samples, 1, 8, 8], [1, 8, 8] for one sample, or "),
        (np.zeros((5, 63)), "`x` has the shape [5, 63]; "),
        (np.zeros((2, 2, 8, 8)), "`x` has the shape [2, 2, 8, 8]; "),
        (3.0, "`x` has the shape []; "),
        (np.zeros((0, 64)), "`x` holds no sample; "),
        (np.full((2, 64), np.nan), "`x` is nan at [0, 0]; "),
        (np.array([[0.0] * 64, [0.0] * 63 + [-np.inf]]), "`x` is -inf at [1, 63]; "),
        ([["a"] * 64], "`x` holds <U1 values; "),
        ([[1, 2], [3]], "`x` has rows of unequal length; "),
        (np.array([None] * 64), "`x` holds object values; "),
        (np.zeros(64, dtype=complex), "`x` holds complex128 values; "),
        (np.full((1, 64), 1e300), "`x` makes the network overflow at sample 0; "),
    ],
)
def test_samples_that_cannot_be_read(x: Any, found: str) -> None:
    assert sentence(make().predict, x).startswith(found)


@pytest.mark.parametrize("shape", [(6, 8, 8), (6, 8, 8, 1), (6, 64)])
def test_grey_images_may_have_no_channels_or_have_them_last(shape: tuple[int, ...]) -> None:
    found, expected = (make().predict(pixels().reshape(form)).probabilities for form in (shape, (6, 1, 8, 8)))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("alone", [False, True])
def test_channels_may_come_last(alone: bool) -> None:
    signature = Signature((3, 4, 5), ("a", "b"), Normalisation((1.0, 2.0, 3.0), (1.0, 2.0, 4.0)), "float32")
    module = nn.Sequential(nn.Flatten(), nn.Linear(60, 2)).eval()
    model = PortableModel(module, signature, {"name": "given", "options": {}}, {"client": "global"})
    images = np.arange(2 * 60).reshape(2, 3, 4, 5)
    images = images[:1] if alone else images
    turned = np.moveaxis(images, 1, 3)
    found = model.predict(turned[0] if alone else turned).probabilities
    assert np.array_equal(found, model.predict(images).probabilities)


def test_a_network_that_cannot_answer() -> None:
    assert "cannot be answered by this network" in sentence(make_given("dropped").predict, np.zeros((1, 4)))
    model = replace(make(), signature=replace(DIGITS, class_names=("a", "b")))
    assert "an answer [6, 10] torch.float32 from a model of 2 classes" in sentence(model.predict, pixels())


class Sure(nn.Module):
    """Answers that a class is impossible."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0], torch.full_like(x[:, 0], -torch.inf)], 1)


def test_a_class_may_be_impossible() -> None:
    model = replace(make_given(), module=Sure())
    assert model.predict(np.ones((3, 4))).probabilities.tolist() == [[1.0, 0.0]] * 3


# -------------------- files


@pytest.mark.parametrize("name", [name for name in MODELS.names() if name != "given"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_safetensors_come_back_as_they_were(tmp_path: Path, name: str, dtype: str) -> None:
    shape = {"digits_cnn": (1, 8, 8), "emnist_cnn": (1, 28, 28)}.get(name, (3, 32, 32))
    model = make(name, replace(DIGITS, input_shape=shape, dtype=dtype))
    model.save(tmp_path / "model.safetensors")
    state = torch.random.get_rng_state()
    again = load_model(tmp_path / "model.safetensors")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (again.signature, again.architecture, again.origin) == (model.signature, model.architecture, model.origin)
    assert not again.module.training
    x = np.random.default_rng(0).normal(size=(3, *shape))
    assert np.array_equal(again.predict(x).probabilities, model.predict(x).probabilities)
    assert again.predict(x).probabilities.dtype == dtype


def test_safetensors_are_a_state_dict_for_plain_pytorch(tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "model.safetensors")
    plain = MODELS["digits_cnn"](width=8).build((1, 8, 8), 10)  # type: ignore[call-arg]
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(plain(x), model.module(x))
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert list(file.metadata()) == ["fedmate"]
        note = json.loads(json.loads(file.metadata()["fedmate"])["note"])
    assert (note["format"], note["origin"], note["architecture"]["name"]) == (1, ORIGIN, "digits_cnn")
    assert note["signature"]["normalisation"] == {"mean": [4.884], "std": [6.017]}


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make().save(tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("buffers", ["shared", "private", "dropped"])
def test_networks_from_python_keep_statistics_and_ties(tmp_path: Path, buffers: str) -> None:
    model = make_given(buffers)
    model.save(tmp_path / "m.safetensors")
    structure_only = network()
    again = load_model(tmp_path / "m.safetensors", structure_only)
    x = np.random.default_rng(0).normal(size=(7, 4))
    assert np.array_equal(again.predict(x).probabilities, model.predict(x).probabilities)
    statistics = [name for name in again.module.state_dict() if "running" in name]
    assert len(statistics) == (0 if buffers == "dropped" else 2)
    assert structure_only.training
    assert not torch.equal(*(one.state_dict()["head.weight"] for one in (structure_only, model.module)))


def test_a_network_is_asked_for_only_where_it_is_needed(tmp_path: Path) -> None:
    make().save(tmp_path / "m.safetensors")
    make_given().save(tmp_path / "given.safetensors")
    assert "which fedmate has; leave it out" in sentence(load_model, tmp_path / "m.safetensors", network())
    assert "not its layers; give them with" in sentence(load_model, tmp_path / "given.safetensors")
    assert "another structure" in sentence(load_model, tmp_path / "given.safetensors", nn.Linear(4, 2))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    text = sentence(make().save, tmp_path / "model.safetensors")
    assert "exists already and is not overwritten" in text
    assert (tmp_path / "model.safetensors").read_bytes() == b"mine"
    (tmp_path / "dangling.pt2").symlink_to(tmp_path / "nowhere")
    assert "exists already" in sentence(make().save, tmp_path / "dangling.pt2")
    assert "ends in `.bin`; name the model" in sentence(make().save, tmp_path / "model.bin")
    assert "which does not exist; make it first" in sentence(make().save, tmp_path / "no" / "model.pt2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling.pt2", "model.safetensors"]


def test_what_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.safetensors"

    def slow(self: PortableModel) -> bytes:
        target.write_bytes(b"mine")
        return b"theirs"

    monkeypatch.setattr(PortableModel, "to_safetensors", slow)
    assert "exists already" in sentence(make().save, target)
    assert target.read_bytes() == b"mine"


def test_paths_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    assert "cannot be read (No such file or directory); give" in sentence(load_model, tmp_path / "none.safetensors")
    assert "cannot be read (Is a directory); give" in sentence(load_model, tmp_path / "folder.safetensors")
    assert "is no model; give" in sentence(load_model, str(tmp_path / "model.pt"))


def note(**changes: Any) -> dict[str, Any]:
    model = make()
    whole = {"format": 1, "signature": model.signature.to_dict(), "architecture": model.architecture, "origin": ORIGIN}
    return {**whole, **changes}


def with_signature(**changes: Any) -> dict[str, Any]:
    return note(signature={**note()["signature"], **changes})


def with_method(options: Any, name: Any = "moon", **network: Any) -> dict[str, Any]:
    whole = {"name": "digits_cnn", "options": {"width": 8, **network}, "method": {"name": name, "options": options}}
    return note(architecture=whole)


WRONG_NOTES: dict[str, tuple[Any, str]] = {
    "another version": (note(format=2), "it is of format 2"),
    "no signature": (note(signature=None), "its description is not fedmate's"),
    "no shape": (with_signature(input_shape=[]), "its description"),
    "negative shape": (with_signature(input_shape=[1, -8, 8]), "its description makes no sense"),
    "no classes": (with_signature(class_names=[]), "its description makes no sense"),
    "strange precision": (with_signature(dtype="load"), "its description makes no sense"),
    "no spread": (with_signature(normalisation={"mean": [0], "std": [0]}), "its description makes no sense"),
    "words": (with_signature(normalisation={"mean": ["a"], "std": [1]}), "its description is not fedmate's"),
    "beyond numbers": (
        with_signature(normalisation={"mean": [10**400], "std": [1]}),
        "its description is not fedmate's",
    ),
    "other classes": (with_signature(class_names=["a", "b"]), "its tensors do not fit its architecture"),
    "unknown network": (note(architecture={"name": "digits_cn", "options": {}}), "did you mean `digits_cnn`?"),
    "another network": (note(architecture={"name": "cifar_cnn", "options": {}}), "cannot read inputs of shape"),
    "unknown option": (
        note(architecture={"name": "digits_cnn", "options": {"widht": 8}}),
        "`model.widht`",
    ),
    "smuggled name": (
        note(architecture={"name": "digits_cnn", "options": {"name": "cifar_cnn", "width": 4}}),
        "its tensors do not fit its architecture",
    ),
    "option of another type": (note(architecture={"name": "digits_cnn", "options": {"width": "8"}}), "`model.width`"),
    "huge": (note(architecture={"name": "digits_cnn", "options": {"width": 10**15}}), "its network cannot be built"),
    "options are a list": (note(architecture={"name": "digits_cnn", "options": [1]}), "its description makes no sense"),
    "layers that are not there": (with_method({"projection": "official"}), "its tensors do not fit its architecture"),
    "method without options": (with_method(None), "its description makes no sense"),
    "method without a name": (with_method({}, name=3), "its description makes no sense"),
    "unknown method": (with_method({}, name="mon"), "`method.name`"),
    "unknown option of a method": (with_method({"projektion": "official"}), "`method.projektion`"),
    "huge, with a method": (with_method({"projection": "official"}, width=10**15), "its network cannot be built"),
    "a list": ([1, 2], "it is not a file of fedmate's"),
    "deep": ("[" * 100_000, "it is not a file of fedmate's"),
    "no JSON": ("{", "it is not a file of fedmate's"),
}


@pytest.mark.parametrize("case", WRONG_NOTES)
def test_descriptions_that_make_no_sense(tmp_path: Path, case: str) -> None:
    content, found = WRONG_NOTES[case]
    text, tensors = content if isinstance(content, str) else json.dumps(content), dict(make().module.state_dict())
    signed = json.dumps({"note": text, "digest": digest(tensors, text)})
    (tmp_path / "m.safetensors").write_bytes(save(tensors, {"fedmate": signed}))
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "m.safetensors")
    assert found in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 8,
        b"\xff" * 40,
        struct.pack("<Q", 5) + b"[1,2]",
        struct.pack("<Q", 2) + b"{}",
        save({"a": torch.zeros(1)}),
        save({"a": torch.zeros(1)}, {"format": "pt"}),
        save({"a": torch.zeros(1)}, {"fedmate": json.dumps(note())}),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    assert "cannot be used: it" in sentence(load_model, tmp_path / "m.safetensors")


def test_a_model_with_one_changed_bit(tmp_path: Path) -> None:
    make().save(tmp_path / "whole.safetensors")
    data = (tmp_path / "whole.safetensors").read_bytes()
    for place in range(0, 8 * len(data), 8 * len(data) // 97):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        (tmp_path / "m.safetensors").write_bytes(changed)
        assert "cannot be used: it" in sentence(load_model, tmp_path / "m.safetensors")


def test_a_place_that_cannot_be_written_gets_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("fedmate.storage.write", refuse)
    target = tmp_path / "m.safetensors"
    assert sentence(make().save, target) == (
        f"`{target}` cannot be written (Read-only file system); choose another place."
    )


def test_a_model_that_was_cut_off(tmp_path: Path) -> None:
    make().save(tmp_path / "whole.safetensors")
    data = (tmp_path / "whole.safetensors").read_bytes()
    for size in range(0, len(data), len(data) // 37):
        (tmp_path / "m.safetensors").write_bytes(data[:size])
        assert "cannot be used" in sentence(load_model, tmp_path / "m.safetensors")


# -------------------- numbers in files


def test_arrays_are_read_from_files(tmp_path: Path) -> None:
    x = pixels()
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "one.npz", whatever=x)
    np.savez_compressed(tmp_path / "several.npz", y=np.zeros(6), x=x, test_x=x[:1])
    np.savez(tmp_path / "test.npz", test_y=np.zeros(6), test_x=x)
    np.savetxt(tmp_path / "x.csv", x.reshape(6, 64), delimiter=",")
    expected = make().predict(x).probabilities
    for name in ("x.npy", "one.npz", "several.npz", "test.npz", "x.csv"):
        assert np.array_equal(fedmate.predict(make(), tmp_path / name).probabilities, expected), name
    assert np.array_equal(fedmate.predict(make(), str(tmp_path / "x.npy")).probabilities, expected)
    assert sorted(read_arrays(tmp_path / "several.npz")) == ["test_x", "x", "y"]


CSV: dict[str, tuple[str, list[list[float]]]] = {
    "plain": ("1,2\n3,4\n", [[1, 2], [3, 4]]),
    "names": ("a,b\n3,4\n", [[3, 4]]),
    "quoted names": ('"a, the first","b"\n3,4\n', [[3, 4]]),
    "blanks": ("\n 1 ,\t2\n\n3,4\n\n", [[1, 2], [3, 4]]),
    "Windows": ("\ufeff1,2\r\n3,4\r\n", [[1, 2], [3, 4]]),
    "Windows with names": ("\ufeffa,b\r\n3,4\r\n", [[3, 4]]),
    "no last line break": ("1,2\n3,4", [[1, 2], [3, 4]]),
    "exponents": ("1e3,-2.5E-1\n", [[1000, -0.25]]),
    "quoted numbers": ('"1","2"\n', [[1, 2]]),
    "names that count": ("0,1,2\n3,4,5\n", [[3, 4, 5]]),
    "a sample that counts": ("0,1,2\n", [[0, 1, 2]]),
    "a short sample that counts": ("0,1\n3,4\n", [[0, 1], [3, 4]]),
    "one column": ("x\n1\n2\n", [[1], [2]]),
}


@pytest.mark.parametrize("case", CSV)
def test_tables_are_read(tmp_path: Path, case: str) -> None:
    text, expected = CSV[case]
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert read_array(tmp_path / "x.csv").tolist() == expected


def test_the_names_of_columns_are_kept(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a, b ,label\n1,2,cat\n\n3,4,dog\n", encoding="utf-8")
    table = read_table(tmp_path / "x.csv")
    assert (table.header, table.rows, table.lines) == (
        ["a", "b", "label"],
        [["1", "2", "cat"], ["3", "4", "dog"]],
        [2, 4],
    )


WRONG_CSV: dict[str, tuple[bytes, str]] = {
    "a word": (b"1,2\n3,x\n", "is `x` in row 2, column 2; "),
    "a word below names": (b"a,b\n1,2\n3,x\n", "is `x` in row 3, column 2; "),
    "a word in the first row": (b"1,x\n3,4\n", "is `x` in row 1, column 2; "),
    "empty cell": (b"1,2\n,4\n", "is empty in row 2, column 1; "),
    "not a number": (b"1,2\nnan,4\n", "is `nan` in row 2, column 1; "),
    "infinite": (b"1,inf\n", "is `inf` in row 1, column 2; "),
    "overflow": (b"1,1e999\n", "is `1e999` in row 1, column 2; "),
    "thousands": (b"1,1_000\n", "is `1_000` in row 1, column 2; "),
    "short row": (b"1,2\n3\n", "has 1 cells in row 2, 2 above it; "),
    "long row": (b"a,b\n3,4,5\n", "has 3 cells in row 2, 2 above it; "),
    "semicolons": (b"1;2\n3;4\n", "has semicolons between its cells; "),
    "empty": (b"", "holds no row of numbers; "),
    "names only": (b"a,b\n", "holds no row of numbers; "),
    "binary": (b"\x93NUMPY\xff\xfe", "is not a CSV file"),
    "zeros": (b"1,\x00\n", "x.csv` is "),
}


@pytest.mark.parametrize("case", WRONG_CSV)
def test_tables_that_cannot_be_read(tmp_path: Path, case: str) -> None:
    data, found = WRONG_CSV[case]
    (tmp_path / "x.csv").write_bytes(data)
    text = sentence(read_array, tmp_path / "x.csv")
    assert text.startswith(f"`{tmp_path / 'x.csv'}` ")
    assert found in text


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def test_files_of_numpy_that_cannot_be_read(tmp_path: Path) -> None:
    fired = tmp_path / "fired"
    np.save(tmp_path / "bomb.npy", np.array([Bomb(fired)]), allow_pickle=True)
    np.savez(tmp_path / "bomb.npz", x=np.array([Bomb(fired)]))
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    np.savez(tmp_path / "none.npz")
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    np.save(tmp_path / "holes.npy", np.array([[1.0, np.nan]]))
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'sh")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:-30])
    (tmp_path / "text.npy").write_text("1,2\n", encoding="utf-8")
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "zip.npy").write_bytes((tmp_path / "two.npz").read_bytes())
    np.save(tmp_path / "plain.npy", np.zeros(2))
    (tmp_path / "plain.npz").write_bytes((tmp_path / "plain.npy").read_bytes())
    expected = {
        "bomb.npy": "holds Python objects, which are not read; save plain numbers, with `numpy.save`.",
        "bomb.npz": "holds Python objects, which are not read; save plain numbers, and words with",
        "two.npz": "holds `a`, `b`; call the array of samples `x`",
        "none.npz": "is another kind of file than its name says",
        "words.npy": "holds <U1 values",
        "holes.npy": "is nan at [0, 1]",
        "empty.npy": "is not a file of numpy's numbers",
        "torn.npy": "is not a file of numpy's numbers",
        "torn.npz": "is not a file of numpy's numbers",
        "folder.npy": "is a folder; give the path of a file",
        "folder": "is a folder; give a `.npy`, `.npz` or `.csv` file.",
        "text.npy": "is not a file of numpy's numbers (but Python objects, which are not read, or something else)",
        "zip.npy": "is another kind of file than its name says",
        "plain.npz": "is another kind of file than its name says",
        "missing.npy": "does not exist",
        "missing.csv": "does not exist",
        "x.txt": "ends in `.txt`",
        "x": "has no ending",
    }
    for name, found in expected.items():
        text = sentence(read_array, tmp_path / name)
        assert text.startswith(f"`{tmp_path / name}` {found}"), text
    assert not fired.exists()


# -------------------- the package's own names


def test_the_package_offers_them(tmp_path: Path) -> None:
    make().save(tmp_path / "m.safetensors")
    model = fedmate.load_model(tmp_path / "m.safetensors")
    assert isinstance(model, fedmate.PortableModel)
    found = fedmate.predict(tmp_path / "m.safetensors", pixels())
    assert isinstance(found, fedmate.Predictions)
    assert np.array_equal(found.probabilities, fedmate.predict(model, pixels()).probabilities)
    assert {"export", "load_model", "predict", "PortableModel", "Predictions"} <= {*fedmate.__all__}
    assert sorted(fedmate.__all__) == fedmate.__all__
    assert "fedper on digits, client 3, round 7" in repr(model)

"""Graphs as files: PyTorch runs them without fedmate, and fedmate runs them without executing what a file says.

Each planted program makes a folder. Given to `torch.export.load` (2.11 and 2.13), those marked as `FIRES` do.
"""

from __future__ import annotations

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedmate.core.layers import drop_statistics
from fedmate.core.serialise import DamagedError
from fedmate.data import Normalisation
from fedmate.errors import UserError
from fedmate.experiment import pt2
from fedmate.experiment.card import Card
from fedmate.experiment.portable import PortableModel, load_model
from fedmate.experiment.program import Program, read_program
from fedmate.models import MODELS

CARD = Card((2, 6, 6), ("no", "yes", "maybe"), Normalisation((3.0, -1.0), (2.0, 0.5)), "float32")
ORIGIN = {"method": "fedper", "dataset": "own", "client": "global", "round": 7, "fedmate": "0.1.0"}
Entries = dict[str, bytes]


class Network(nn.Module):
    """Layers that leave many kinds of arguments in a graph: lists, sizes, constants, several results."""

    def __init__(self, *, statistics: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout()
        self.head = nn.Linear(6, 3)
        self.bias = torch.tensor([0.1, 0.0, -0.1])
        if not statistics:
            drop_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.gelu(self.norm(self.conv(x)), approximate="tanh")
        y = nn.functional.max_pool2d(self.drop(y.relu_()), 2)
        y = nn.functional.pad(y, (0, 1), value=float("-inf")).clamp(min=-1.0)
        words = torch.cat([y.flatten(2), y.mean((2, 3))[..., None]], 2).chunk(2, 2)[0]
        rows = words.reshape(x.shape[0] * 4, 7).sort(1)[0][:, 1:]
        logits: Tensor = self.head(rows).view(-1, 4, 3).sum(1) + self.bias
        lengths: Tensor = torch.linalg.vector_norm(logits, dim=1, keepdim=True)
        return logits / lengths.clamp(min=1)


def make(network: nn.Module | None = None, card: Card = CARD) -> PortableModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = Network() if network is None else network
    with torch.no_grad():
        module.train()(torch.randn(8, *card.input_shape))
    module = module.to(getattr(torch, card.dtype)).eval()
    return PortableModel(module, card, {"name": "given", "options": {}}, dict(ORIGIN))


def raw(size: int, card: Card = CARD) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, *card.input_shape, generator=generator, dtype=getattr(torch, card.dtype)) + 1


@pytest.fixture(scope="module")
def model() -> PortableModel:
    return make()


@pytest.fixture(scope="module")
def archive(model: PortableModel, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    model.save(path)
    return path.read_bytes()


def unzip(data: bytes) -> Entries:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {info.filename.removeprefix("archive/"): file.read(info) for info in file.infolist()}


def repack(entries: Entries, compression: int = zipfile.ZIP_STORED, root: str = "archive/") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as file:
        for name, content in entries.items():
            file.writestr(root + name, content)
    return data.getvalue()


def refusal(tmp_path: Path, data: bytes) -> str:
    """Return the sentence that a file is refused with."""
    path = tmp_path / "planted.pt2"
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        load_model(path)
    text = str(caught.value)
    assert text.startswith(f"`{path}` cannot be used: ")
    assert text.endswith("; give a model that `fedmate export` wrote, or export it again.")
    assert "\n" not in text
    return text


# -------------------- what is written


def test_pytorch_runs_it_on_raw_samples(model: PortableModel, archive: bytes) -> None:
    with warnings.catch_warnings():
        # torch 2.11 about its own way to read a file.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(io.BytesIO(archive)).module()
    for size in (1, 2, 5):
        x = raw(size)
        with torch.no_grad():
            expected = model.module(
                (x - torch.tensor([3.0, -1.0])[:, None, None]) / torch.tensor([2, 0.5])[:, None, None]
            )
            assert torch.allclose(program(x), expected, atol=1e-5)
        assert np.allclose(model.predict(x).probabilities, expected.softmax(-1), atol=1e-5)


def test_fedmate_runs_it_alike(model: PortableModel, archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(archive)
    again = load_model(tmp_path / "m.pt2")
    for size in (1, 2, 1500):
        expected, found = model.predict(raw(size)), again.predict(raw(size))
        assert np.allclose(found.probabilities, expected.probabilities, atol=1e-5)
    assert len({*again.predict(raw(100)).class_names}) > 1
    assert (again.architecture, again.origin) == (model.architecture, model.origin)
    assert again.card == replace(CARD, normalisation=Normalisation())
    assert not again.module.training
    assert {tensor.dtype for tensor in again.module.state_dict().values()} == {torch.float32, torch.int64}


def test_double_precision_and_batches_without_statistics(tmp_path: Path) -> None:
    card = replace(CARD, dtype="float64")
    torch.manual_seed(0)
    model = make(Network(statistics=False), card)
    model.save(tmp_path / "m.pt2")
    found = load_model(tmp_path / "m.pt2").predict(raw(9, card)).probabilities
    assert found.dtype == np.float64
    assert np.allclose(found, model.predict(raw(9, card)).probabilities, atol=1e-9)
    assert not np.allclose(found[:5], model.predict(raw(9, card)[:5]).probabilities, atol=1e-4)


@pytest.mark.parametrize("name", ["digits_cnn", "cifar100_cnn"])
def test_the_packages_own_networks(name: str, tmp_path: Path) -> None:
    card = replace(CARD, input_shape=(2, 32, 32))
    model = make(MODELS[name]().build(card.input_shape, 3), card)
    model.save(tmp_path / "m.pt2")
    found = load_model(tmp_path / "m.pt2").predict(raw(3, card)).probabilities
    assert np.allclose(found, model.predict(raw(3, card)).probabilities, atol=1e-6)


def test_nothing_of_this_machine_leaves(model: PortableModel, archive: bytes) -> None:
    entries = unzip(archive)
    assert b"test_pt2" not in archive
    assert b"/" not in entries["models/model.json"]
    assert entries["data/sample_inputs/model.pt"] == b""
    assert json.loads(entries["extra/fedmate.json"])["origin"] == ORIGIN
    assert pt2.write(model.module, CARD, entries["extra/fedmate.json"].decode()) == archive


def test_a_network_that_torch_cannot_export(tmp_path: Path) -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(72, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x.flatten(1))
            return logits if x.sum() > 0 else -logits

    with pytest.raises(UserError) as caught:
        make(Fickle()).save(tmp_path / "m.pt2")
    text = str(caught.value)
    assert text.startswith("`model` cannot be written as `.pt2`, torch says: ")
    assert text.endswith("; use `.safetensors`.")
    assert "\n" not in text
    assert not list(tmp_path.iterdir())


def test_a_graph_is_not_written_again(archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(archive)
    for suffix in ("pt2", "safetensors"):
        with pytest.raises(UserError, match=r"which cannot be taken apart; copy that file\.$"):
            load_model(tmp_path / "m.pt2").save(tmp_path / f"other.{suffix}")
    with pytest.raises(UserError, match=r"^`model` is given, but `.*m.pt2` holds its network itself; leave it out\.$"):
        load_model(tmp_path / "m.pt2", Network())


def test_what_is_not_needed_any_more_is_forgotten(archive: bytes) -> None:
    """Or a deep network would keep all it computes for a thousand samples at a time."""
    program, _ = pt2.read(archive)
    made = {name for step in program._steps for name in step.results if name is not None}
    done = [name for step in program._steps for name in step.done]
    assert len(done) == len({*done})
    assert made - {*done} == {program._answer}


# -------------------- what is planted


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def saved(bomb: Bomb) -> bytes:
    data = io.BytesIO()
    torch.save(bomb, data)
    return data.getvalue()


def edit(entries: Entries, name: str, change: Callable[[Any], object]) -> Entries:
    content = json.loads(entries[name])
    change(content)
    return {**entries, name: json.dumps(content).encode()}


def in_graph(change: Callable[[Any], object]) -> Callable[[Entries, Path], Entries]:
    return lambda entries, _: edit(entries, "models/model.json", lambda content: change(content["graph_module"]))


def pickled_weight(entries: Entries, fired: Path) -> Entries:
    entries = edit(
        entries,
        "data/weights/model_weights_config.json",
        lambda content: content["config"]["network.conv.weight"].update(use_pickle=True, path_name="weight_0"),
    )
    return {**entries, "data/weights/weight_0": saved(Bomb(fired))}


def custom_object(prefix: str) -> Callable[[Entries, Path], Entries]:
    def plant(entries: Entries, fired: Path) -> Entries:
        payload = {"path_name": f"{prefix}0", "is_param": False, "use_pickle": True, "tensor_meta": None}
        entries = edit(
            entries,
            "data/constants/model_constants_config.json",
            lambda content: content["config"].update(planted=payload),
        )
        bomb = pickle.dumps(Bomb(fired))
        # As many bytes as a tensor could have, however long the path; unpickling stops before what is added.
        return {**entries, f"data/constants/{prefix}0": bomb + bytes(-len(bomb) % 8)}

    return plant


def code(fired: Path) -> str:
    return f"__import__('os').mkdir({str(fired)!r})"


def expression(entries: Entries, fired: Path) -> Entries:
    def plant(content: Any) -> None:
        graph = content["graph_module"]["graph"]
        sizes = [size for value in graph["tensor_values"].values() for size in value["sizes"] if "as_expr" in size]
        sizes[0]["as_expr"]["expr_str"] = code(fired)

    return edit(entries, "models/model.json", plant)


def name_of_input(entries: Entries, fired: Path) -> Entries:
    """Call the input something that is source code: torch writes its name into a function that it compiles."""
    name = json.dumps(f"x={code(fired)}").encode()
    return {**entries, "models/model.json": entries["models/model.json"].replace(b'"x"', name)}


def guards(entries: Entries, fired: Path) -> Entries:
    return edit(entries, "models/model.json", lambda content: content.update(guards_code=[code(fired)]))


def function(target: str) -> Callable[[Entries, Path], Entries]:
    def plant(entries: Entries, fired: Path) -> Entries:
        def change(content: Any) -> None:
            node = content["graph_module"]["graph"]["nodes"][-1]
            node.update(target=target, inputs=[{"name": "", "arg": {"as_string": str(fired)}, "kind": 1}])

        return edit(entries, "models/model.json", change)

    return plant


def legacy(entries: Entries, fired: Path) -> Entries:
    """Make an archive of the format before, which is four files, three of them pickles."""
    names = ("serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt")
    bombs = {name: saved(Bomb(fired)) for name in names}
    return {"version": b"8.20", "serialized_exported_program.json": entries["models/model.json"], **bombs}


FIRES: dict[str, tuple[Callable[[Entries, Path], Entries], str]] = {
    "pickle in the sample inputs": (
        lambda entries, fired: {**entries, "data/sample_inputs/model.pt": saved(Bomb(fired))},
        "it holds sample inputs, which are a pickle",
    ),
    "pickle among the weights": (pickled_weight, "it holds `network.conv.weight` as a pickle"),
    "opaque object": (custom_object("opaque_obj_"), "it holds `archive/data/constants/opaque_obj_0`"),
    "object under the name of a tensor": (custom_object("tensor_"), "it holds `planted` as a pickle"),
    "weights of the older format": (
        lambda entries, fired: {**entries, "data/weights/model.pt": saved(Bomb(fired))},
        "it holds `archive/data/weights/model.pt`",
    ),
    "constants of the older format": (
        lambda entries, fired: {**entries, "data/constants/model.pt": saved(Bomb(fired))},
        "it holds `archive/data/constants/model.pt`",
    ),
    "expression": (expression, "it holds a size that is Python code"),
    "name of the input": (name_of_input, "in the place of a name"),
}
PLANTED: dict[str, tuple[Callable[[Entries, Path], Entries], str]] = {
    **FIRES,
    "custom object": (custom_object("custom_obj_"), "it holds `archive/data/constants/custom_obj_0`"),
    "guards": (guards, "it holds guards, which are Python code"),
    "function of torch's imports": (function("torch.os.mkdir"), "calls `torch.os.mkdir`"),
    "function of Python": (function("_operator.call"), "calls `_operator.call`"),
    "function by attribute": (function("torch.ops.aten.__class__.mro"), "calls `torch.ops.aten.__class__.mro`"),
    "operator that opens files": (function("torch.ops.aten.from_file.default"), "calls `torch.ops.aten.from_file"),
    "operator that writes": (function("torch.ops.aten.resize_.default"), "calls `torch.ops.aten.resize_.default`"),
    "operator for training": (function("torch.ops.aten.convolution_backward.default"), "convolution_backward"),
    "operator of another library": (function("torch.ops.prims.add.default"), "calls `torch.ops.prims.add.default`"),
    "extension": (function("#planted:add"), "calls `#planted:add`"),
    "older format": (legacy, "it holds `archive/version`"),
    "compiled code": (
        lambda entries, _: {**entries, "data/aotinductor/model/model.so": b"\x7fELF"},
        "it holds `archive/data/aotinductor/model/model.so`",
    ),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_program_is_refused_and_does_not_run(archive: bytes, tmp_path: Path, case: str) -> None:
    plant, reason = PLANTED[case]
    fired = tmp_path / "fired"
    assert reason in refusal(tmp_path, repack(plant(unzip(archive), fired)))
    assert not fired.exists()


@pytest.mark.parametrize("case", ["pickle in the sample inputs", "expression", "name of the input"])
def test_the_planted_programs_are_live(archive: bytes, tmp_path: Path, case: str) -> None:
    """Or refusing them would show nothing: here is what torch's own loader does with three of them."""
    fired = tmp_path / "fired"
    data = io.BytesIO(repack(FIRES[case][0](unzip(archive), fired)))
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        torch.export.load(data).module()
    assert fired.is_dir()


def test_an_archive_made_by_the_same_means_is_read(archive: bytes) -> None:
    """Or everything above could be refused for how it was packed."""
    assert isinstance(pt2.read(repack(unzip(archive)))[0], Program)


# -------------------- what is damaged


def first_weight(**changes: Any) -> Callable[[Entries, Path], Entries]:
    def change(content: Any) -> None:
        content["config"]["network.head.bias"]["tensor_meta"].update(changes)

    return lambda entries, _: edit(entries, "data/weights/model_weights_config.json", change)


def node(**changes: Any) -> Callable[[Entries, Path], Entries]:
    return in_graph(lambda module: module["graph"]["nodes"][1].update(changes))


def argument(arg: Any) -> Callable[[Entries, Path], Entries]:
    return node(inputs=[{"name": "self", "arg": arg, "kind": 1}])


DAMAGED: dict[str, tuple[Callable[[Entries, Path], Entries], str]] = {
    "no graph": (lambda entries, _: {k: v for k, v in entries.items() if k != "models/model.json"}, "KeyError"),
    "no note": (lambda entries, _: {k: v for k, v in entries.items() if k != "extra/fedmate.json"}, "KeyError"),
    "graph is no JSON": (lambda entries, _: {**entries, "models/model.json": b"{"}, "not a file of fedmate's"),
    "graph is deep": (lambda entries, _: {**entries, "models/model.json": b"[" * 100_000}, "does not fit together"),
    "graph is a list": (lambda entries, _: {**entries, "models/model.json": b"[]"}, "not a file of fedmate's"),
    "another format": (lambda entries, _: {**entries, "archive_format": b"pt3"}, "it is of another format"),
    "another byte order": (lambda entries, _: {**entries, "byteorder": b"big"}, "it is of another format"),
    "another version": (
        lambda entries, _: edit(entries, "models/model.json", lambda c: c.update(schema_version={"major": 9})),
        "it is of version 9, not 8",
    ),
    "a weight is missing": (
        lambda entries, _: edit(
            entries, "data/weights/model_weights_config.json", lambda c: c["config"].pop("network.head.bias")
        ),
        "it lacks `network.head.bias`",
    ),
    "a weight is short": (first_weight(sizes=[{"as_int": 4}]), "larger than its file"),
    "a weight is stretched": (
        first_weight(sizes=[{"as_int": 10**12}], strides=[{"as_int": 0}]),
        "larger than its file",
    ),
    "a weight reaches beyond its file": (first_weight(storage_offset={"as_int": 1}), "does not fit together"),
    "a weight has long strides": (first_weight(strides=[{"as_int": 2}]), "does not fit together"),
    "a negative size": (first_weight(sizes=[{"as_int": -1}]), "it has -1 in the place of a size"),
    "a true size": (first_weight(sizes=[{"as_int": True}]), "it has True in the place of a size"),
    "an unknown type": (first_weight(dtype=99), "not a file of fedmate's"),
    "two inputs": (
        in_graph(lambda m: m["signature"]["input_specs"].append(m["signature"]["input_specs"][-1])),
        "does not read one tensor",
    ),
    "an object for an input": (
        in_graph(lambda m: m["signature"]["input_specs"].append({"custom_obj": {}})),
        "reads a custom_obj",
    ),
    "two outputs": (
        in_graph(lambda m: m["graph"]["outputs"].append(m["graph"]["outputs"][0])),
        "answer with one tensor",
    ),
    "a statistic that changes": (
        in_graph(lambda m: m["signature"].update(output_specs=[{"buffer_mutation": {}}])),
        "answer with one tensor",
    ),
    "an unknown output": (
        in_graph(lambda m: m["graph"].update(outputs=[{"as_tensor": {"name": "nobody"}}])),
        "answer with one tensor",
    ),
    "a value from the future": (argument({"as_tensor": {"name": "nobody"}}), "uses 'nobody' before it exists"),
    "a value twice": (in_graph(lambda m: m["graph"]["nodes"].append(m["graph"]["nodes"][1])), "twice"),
    "a graph inside": (argument({"as_graph": {"name": "g", "graph": {}}}), "passes an argument as_graph"),
    "an operator inside": (argument({"as_operator": "torch.os.mkdir"}), "passes an argument as_operator"),
    "an object inside": (argument({"as_custom_obj": {"name": "x"}}), "passes an argument as_custom_obj"),
    "another device": (argument({"as_device": {"type": "cuda", "index": 0}}), "passes an argument as_device"),
    "a word for a number": (argument({"as_int": "7"}), "passes an argument as_int"),
    "words for numbers": (argument({"as_ints": [1, "7"]}), "passes an argument as_ints"),
    "a word for a size": (argument({"as_sym_ints": [{"as_int": "7"}]}), "takes '7' for a size"),
    "two arguments in one": (argument({"as_int": 1, "as_float": 1.0}), "not a file of fedmate's"),
    "a name that is none": (node(outputs=[{"as_tensor": {"name": "a b"}}]), "'a b' in the place of a name"),
    "an expression for a result": (node(outputs=[{"as_graph": {"name": "g"}}]), "gives a result as_graph"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_found(archive: bytes, tmp_path: Path, case: str) -> None:
    change, reason = DAMAGED[case]
    assert reason in refusal(tmp_path, repack(change(unzip(archive), tmp_path)))


def test_archives_of_another_make(archive: bytes, tmp_path: Path) -> None:
    entries = unzip(archive)
    assert "twice, or compressed" in refusal(tmp_path, repack(entries, zipfile.ZIP_DEFLATED))
    assert "which no model of fedmate's has" in refusal(tmp_path, repack(entries, root="other/"))
    assert "which no model of fedmate's has" in refusal(tmp_path, repack(entries, root="archive/../"))
    doubled = io.BytesIO(archive)
    with warnings.catch_warnings(), zipfile.ZipFile(doubled, "a") as file:
        warnings.simplefilter("ignore")
        file.writestr("archive/models/model.json", b"{}")
    assert "twice, or compressed" in refusal(tmp_path, doubled.getvalue())
    for data in (b"", b"PK", archive[:-100], archive[: len(archive) // 2], b"\x80\x02}q\x00."):
        assert "not a file of fedmate's" in refusal(tmp_path, data)


def test_a_changed_number_is_noticed(archive: bytes, tmp_path: Path) -> None:
    weight = unzip(archive)["data/weights/weight_0"]
    place = archive.index(weight)
    assert "its content has changed since it was written" in refusal(
        tmp_path, archive[:place] + b"\x00\x01" + archive[place + 2 :]
    )


def test_sizes_do_not_grow_for_ever() -> None:
    """Squaring a number sixty times would fill the memory; eight times are enough to be refused."""
    square = {"target": "_operator.mul", "metadata": {}}
    nodes: list[Any] = [
        {
            "target": "torch.ops.aten.sym_size.int",
            "inputs": [
                {"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},
                {"name": "dim", "arg": {"as_int": 0}, "kind": 1},
            ],
            "outputs": [{"as_sym_int": {"as_name": "n0"}}],
        }
    ]
    for i in range(8):
        size = {"arg": {"as_sym_int": {"as_name": f"n{i}"}}, "name": "", "kind": 1}
        nodes.append({**square, "inputs": [size, size], "outputs": [{"as_sym_int": {"as_name": f"n{i + 1}"}}]})
    signature = {
        "input_specs": [{"user_input": {"arg": {"as_tensor": {"name": "x"}}}}],
        "output_specs": [{"user_output": {}}],
    }
    graph = {"nodes": nodes, "outputs": [{"as_tensor": {"name": "x"}}]}
    program = read_program({"graph": graph, "signature": signature}, {})
    assert torch.equal(program(torch.ones(1, 3)), torch.ones(1, 3))
    with pytest.raises(OverflowError):
        program(torch.ones(2, 3))


def test_random_damage_never_does_more_than_be_refused(archive: bytes) -> None:
    """Whatever bytes change, the answer is a program or `DamagedError`."""
    random = np.random.default_rng(0)
    entries = unzip(archive)
    graph = entries["models/model.json"]
    refused = 0
    for _ in range(150):
        changed = bytearray(graph)
        for place in random.integers(0, len(graph), 3):
            changed[place] = random.choice(np.frombuffer(b'{}[]",:0a_', np.uint8))
        try:
            pt2.read(repack({**entries, "models/model.json": bytes(changed)}))
        except DamagedError:
            refused += 1
    assert refused > 100

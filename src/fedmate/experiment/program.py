"""A network as a list of operators, read from data and run by us: nothing a file says is ever evaluated as Python.

The list is the graph that `torch.export` writes. torch's own loader would trust it: it looks up any attribute of torch
by name, evaluates expressions and generates source code from the names it finds. Here a name is a key of a dictionary,
an operator is one of ATen's core set, and everything else is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from fedmate.core.serialise import DamagedError

Json: TypeAlias = Any
"""What `json.loads` gives: its shape is checked where it is used."""

DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
}
"""By the number under which an exported graph knows them."""

_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_LAYOUTS = {7: torch.strided}

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
    **{f"_operator.{name}": getattr(operator, name) for name in ("eq", "ne", "ge", "gt", "le", "lt")},
    "torch.sym_max": torch.sym_max,
    "torch.sym_min": torch.sym_min,
}
"""What is done with sizes."""

_ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_ALSO = {
    "_assert_scalar.default",
    "_assert_tensor_metadata.default",
    "adaptive_max_pool2d.default",
    "adaptive_max_pool3d.default",
    "linalg_vector_norm.default",
}
"""What `run_decompositions` leaves in common networks although it is not in the core set."""

_NEVER = {"_embedding_bag", "native_dropout", "rand", "randn", "randperm"}
"""Of the core set, what trusts its indices or draws random numbers; and whatever is for training only."""


@final
class Reference(str):
    """The name of a value computed before."""


@dataclass(frozen=True)
class Step:
    """One operator.

    Attributes:
        call: what to do.
        arguments, keywords: what it is given; a `Reference` stands for a value.
        results: the names of what it returns, one by one; `None` where nobody asks.
        single: whether it returns one value, not several.
        done: names nobody asks for later.
    """

    call: Callable[..., Any]
    arguments: list[Any]
    keywords: dict[str, Any]
    results: list[str | None]
    single: bool
    done: Sequence[str] = ()


@final
class Program(nn.Module):
    """Runs operators one after the other.

    Args:
        tensors: parameters, statistics and constants, by the name the graph has for them.
        sample: the graph's name for its input.
        steps: the operators.
        answer: the name of what it returns.
    """

    def __init__(self, tensors: Mapping[str, Tensor], sample: str, steps: Sequence[Step], answer: str) -> None:
        """Keep the tensors where a module keeps them, under numbers: names in a file are nobody's attributes."""
        super().__init__()
        self._places = {name: f"tensor_{number}" for number, name in enumerate(tensors)}
        for name, tensor in tensors.items():
            self.register_buffer(self._places[name], tensor)
        self._sample, self._steps, self._answer = sample, steps, answer

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's answer."""
        values: dict[str, Any] = {name: self.get_buffer(place) for name, place in self._places.items()}
        values[self._sample] = x
        for step in self._steps:
            arguments, keywords = _fill(step.arguments, values), _fill(step.keywords, values)
            returned = step.call(*arguments, **keywords)
            for name, value in zip(step.results, (returned,) if step.single else returned, strict=True):
                if name is not None:
                    values[name] = value
            for name in step.done:
                del values[name]
        answer: Tensor = values[self._answer]
        return answer


def read_program(module: Json, tensors: Mapping[str, Tensor]) -> Program:
    """Make a program from the `graph_module` of an exported program, or raise `DamagedError`.

    Args:
        module: as JSON holds it.
        tensors: parameters, statistics and constants, by the name the network has for them.
    """
    graph, signature = module["graph"], module["signature"]
    held, sample = _inputs(signature["input_specs"], tensors)
    known = {*held, sample}
    steps = []
    for node in graph["nodes"]:
        step = _step(node, known)
        new = [name for name in step.results if name is not None]
        if len({*new, *known}) != len(new) + len(known):
            raise DamagedError(f"its graph computes `{new[0]}` twice")
        known.update(new)
        steps.append(step)
    answer = _answer(graph, signature, known)
    return Program(held, sample, _with_last_uses(steps, answer), answer)


def _inputs(specs: Json, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors by the graph's own names, and its name for the samples."""
    held: dict[str, Tensor] = {}
    samples = []
    for spec in specs:
        kind, content = _only(spec)
        if kind == "user_input":
            samples.append(_named("as_tensor", content["arg"]))
        elif kind in ("parameter", "buffer", "tensor_constant"):
            name = content[f"{kind}_name"]
            if name not in tensors:
                raise DamagedError(f"it lacks `{name}`")
            held[_word(content["arg"]["name"])] = tensors[name]
        else:
            raise DamagedError(f"its graph reads a {kind}")
    if len(samples) != 1 or samples[0] in held:
        raise DamagedError("its graph does not read one tensor of samples")
    return held, samples[0]


def _answer(graph: Json, signature: Json, known: set[str]) -> str:
    kinds = [_only(spec)[0] for spec in signature["output_specs"]]
    names = [_named("as_tensor", output) for output in graph["outputs"]]
    if kinds != ["user_output"] or len(names) != 1 or names[0] not in known:
        raise DamagedError("its graph does not answer with one tensor")
    return names[0]


def _step(node: Json, known: set[str]) -> Step:
    arguments, keywords = [], {}
    for given in node["inputs"]:
        value = _argument(given["arg"], known)
        if given.get("kind") == 1:
            arguments.append(value)
        else:
            keywords[_word(given["name"])] = value
    results, single = _results(node["outputs"])
    return Step(_operator(node["target"]), arguments, keywords, results, single)


def _operator(target: Json) -> Callable[..., Any]:
    """Return the operator of that name if it is a harmless one: it computes tensors from tensors, and that is all."""
    if target in _ARITHMETIC:
        return _bounded(_ARITHMETIC[target])
    found = _ATEN.fullmatch(target)
    packet = getattr(torch.ops.aten, found[1], None) if found and not found[1].startswith("__") else None
    overload = getattr(packet, found[2], None) if found and packet is not None else None
    if found and isinstance(overload, torch._ops.OpOverload):
        core = torch.Tag.core in overload.tags and not overload._schema.is_mutable
        never = found[1] in _NEVER or found[1].endswith("_backward")
        if (core and not never) or f"{found[1]}.{found[2]}" in _ALSO:
            return overload
    raise DamagedError(f"its graph calls `{target}`, which is not an operator that networks are made of")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep sizes from growing until they fill the memory."""

    def call(*sizes: Any) -> Any:
        size = function(*sizes)
        if not -(2**63) <= size < 2**63:
            raise OverflowError("a size is out of range")
        return size

    return call


def _results(outputs: Json) -> tuple[list[str | None], bool]:
    """Return the names of what an operator returns, and whether that is one value."""
    if len(outputs) == 1:
        kind, content = _only(outputs[0])
        if kind == "as_tensors":
            return [_word(one["name"]) for one in content], False
    if not outputs:
        return [None], True
    return [_result(output) for output in outputs], len(outputs) == 1


def _result(output: Json) -> str | None:
    kind, content = _only(output)
    if kind == "as_none":
        return None
    if kind == "as_tensor":
        return _word(content["name"])
    if kind in ("as_sym_int", "as_sym_bool"):
        return _named("as_name", content)
    raise DamagedError(f"its graph gives a result {kind}")


_PLAIN: dict[str, type | tuple[type, ...]] = {"as_int": int, "as_bool": bool, "as_string": str}
_LISTS = {"as_ints": int, "as_bools": bool}
_NUMBERED: dict[str, Mapping[int, Any]] = {
    "as_scalar_type": DTYPES,
    "as_memory_format": _MEMORY_FORMATS,
    "as_layout": _LAYOUTS,
}


def _argument(argument: Json, known: set[str]) -> Any:
    """Return what an operator is given: a number, a list of them, a reference."""
    kind, content = _only(argument)
    if kind == "as_none":
        return None
    if kind in _PLAIN and type(content) is _PLAIN[kind]:
        return content
    if kind in _LISTS and all(type(one) is _LISTS[kind] for one in content):
        return list(content)
    if kind in ("as_float", "as_floats"):
        # Infinity and NaN are words in JSON.
        return [float(one) for one in content] if kind == "as_floats" else float(content)
    if kind in _NUMBERED and content in _NUMBERED[kind]:
        return _NUMBERED[kind][content]
    if kind == "as_device" and content["type"] == "cpu":
        return torch.device("cpu")
    if kind == "as_tensor":
        return _reference(content["name"], known)
    if kind == "as_tensors":
        return [_reference(one["name"], known) for one in content]
    if kind == "as_optional_tensors":
        return [None if _only(one)[0] == "as_none" else _reference(_named("as_tensor", one), known) for one in content]
    if kind in ("as_sym_int", "as_sym_bool"):
        return _size(content, known)
    if kind == "as_sym_ints":
        return [_size(one, known) for one in content]
    raise DamagedError(f"its graph passes an argument {kind}")


def _size(content: Json, known: set[str]) -> Any:
    kind, value = _only(content)
    if kind == "as_name":
        return _reference(value, known)
    if type(value) not in (int, bool):
        raise DamagedError(f"its graph takes {value!r} for a size")
    return value


def _reference(name: Json, known: set[str]) -> Reference:
    if name not in known:
        raise DamagedError(f"its graph uses {name!r} before it exists")
    return Reference(name)


def _named(kind: str, argument: Json) -> str:
    found, content = _only(argument)
    if found != kind:
        raise DamagedError(f"its graph has {found} in the place of {kind}")
    return _word(content["name"] if kind == "as_tensor" else content)


def _only(union: Json) -> tuple[str, Json]:
    """Return the one key of a dictionary and its value, which is how a choice is written."""
    ((kind, content),) = union.items()
    return kind, content


def _word(name: Json) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise DamagedError(f"its graph has {name!r} in the place of a name")
    return name


def _with_last_uses(steps: Sequence[Step], answer: str) -> list[Step]:
    """Tell each step what may be forgotten after it, so that memory holds what a plain network's would."""
    wanted, told = {answer}, list[Step]()
    for step in reversed(steps):
        used = {*_references([step.arguments, *step.keywords.values()])}
        used |= {name for name in step.results if name is not None}
        told.append(replace(step, done=sorted(used - wanted)))
        wanted |= used
    return told[::-1]


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for one in value for name in _references(one)]
    return [value] if isinstance(value, Reference) else []


def _fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace references by what they stand for."""
    if isinstance(value, Reference):
        return values[value]
    if isinstance(value, list):
        return [_fill(one, values) for one in value]
    if isinstance(value, dict):
        return {name: _fill(one, values) for name, one in value.items()}
    return value

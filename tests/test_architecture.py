"""The shape of the package, read from its source: who imports whom, and the house rules a machine can check."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedmate

ROOT = Path(fedmate.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
"""Every file of the package, by its path inside it."""

ARROWS: dict[str, tuple[str, ...]] = {
    "core": ("core", "errors"),
    "components": ("components", "core", "errors"),
    "methods": ("methods", "components", "core", "registry", "errors"),
    "backends": ("backends", "core", "registry", "errors"),
    "datasets": ("datasets", "core", "registry", "errors"),
    "partitions": ("partitions", "core", "registry", "errors"),
    "models": ("models", "core", "registry", "errors"),
    "report": ("report", "experiment.record", "errors"),
    "registry": ("errors",),
    "errors": (),
}
"""By area: what of fedmate it may import. Others (`experiment`, `cli`) may import anything but `cli`."""

THIRD_PARTIES: dict[str, tuple[str, ...]] = {
    "core": ("torch",),
    "components": ("torch",),
    "methods": ("torch",),
    "datasets": ("torch", "numpy", "sklearn"),
    "partitions": ("torch", "numpy"),
    "models": ("torch",),
    "registry": (),
    "errors": (),
}
"""By area: what of other packages it may import. Areas that are not here may import anything declared."""

MAY_PRINT = ("cli", "report")
MOST_LINES = 350


def area(path: str) -> str:
    """Return the sub-package or module that a file of the package belongs to."""
    return path.split("/")[0].removesuffix(".py")


def imports(source: str) -> Iterator[str]:
    """Yield the dotted name of everything a file imports, at its top or anywhere inside."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_arrows(path: str, source: str) -> list[str]:
    """Return what a file imports although its place in the architecture forbids it."""
    inside, outside = ARROWS.get(area(path)), THIRD_PARTIES.get(area(path))
    wrong = []
    for name in imports(source):
        package, _, rest = name.partition(".")
        if package == "fedmate":
            forbidden = inside is not None and not any(f"{rest}.".startswith(f"{allowed}.") for allowed in inside)
            if forbidden or rest.split(".")[0] == "cli":
                wrong.append(name)
        elif outside is not None and package not in (*outside, *sys.stdlib_module_names):
            wrong.append(name)
    return wrong


def broken_rules(path: str, source: str) -> list[str]:
    """Return the house rules that a file breaks."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="hasattr"), args=[ast.Name(id="os"), *_]):
                pass
            case ast.Call(func=ast.Name(id="hasattr")):
                found.append(f"line {node.lineno}: hasattr")
            case ast.Call(func=ast.Name(id="print")) if area(path) not in MAY_PRINT:
                found.append(f"line {node.lineno}: print")
            case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
                found.append(f"line {node.lineno}: torch.load")
    for name in imports(source):
        if name.split(".")[0] in ("pickle", "cPickle", "cloudpickle", "dill"):
            found.append(f"imports {name}")
        if name in ("torch.load", "torch.serialization.load"):
            found.append(name)
    if len(source.splitlines()) > MOST_LINES:
        found.append(f"{len(source.splitlines())} lines")
    if area(path) == "methods" and not path.endswith("__init__.py"):
        documentation = ast.get_docstring(ast.parse(source)) or ""
        if "Deviations" not in documentation:
            found.append("its docstring does not list `Deviations`")
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_imports_follow_the_arrows(path: str) -> None:
    assert wrong_arrows(path, SOURCES[path]) == []


@pytest.mark.parametrize("path", SOURCES)
def test_house_rules_hold(path: str) -> None:
    assert broken_rules(path, SOURCES[path]) == []


def test_the_areas_with_rules_exist() -> None:
    """A renamed sub-package would otherwise leave its rules behind unnoticed."""
    assert {*ARROWS, *THIRD_PARTIES} <= {area(path) for path in SOURCES}


# -------------------- the checks can fail


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/tree.py", "import numpy"),
        ("core/tree.py", "from fedmate.registry import Registry"),
        ("core/tree.py", "from fedmate import methods"),
        ("core/tree.py", "def f():\n    import fedmate.backends.base"),
        ("components/mixing.py", "from fedmate.methods import METHODS"),
        ("components/mixing.py", "from fedmate.corelike import x"),
        ("methods/fedavg.py", "from fedmate.backends import BACKENDS"),
        ("methods/fedavg.py", "import scipy.optimize"),
        ("backends/base.py", "from fedmate.methods import METHODS"),
        ("backends/base.py", "from fedmate.experiment.record import Record"),
        ("datasets/digits.py", "from fedmate.partitions import PARTITIONS"),
        ("report/page.py", "from fedmate.experiment.run import run"),
        ("report/page.py", "from fedmate.core import Tree"),
        ("experiment/run.py", "from fedmate.cli import main"),
        ("experiment/run.py", "from fedmate import cli"),
        ("errors.py", "import fedmate.core"),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str) -> None:
    assert len(wrong_arrows(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/tree.py", "import math\nimport torch.func\nfrom torch import nn\nfrom fedmate.errors import UserError"),
        ("methods/fedavg.py", "from fedmate.core import Tree\nfrom fedmate.components.mixing import mix_by_size"),
        ("report/page.py", "from fedmate.experiment.record import Record\nfrom fedmate.report.tables import table"),
        ("experiment/run.py", "from fedmate.methods import METHODS\nfrom fedmate.backends import BACKENDS"),
    ],
)
def test_a_right_import_is_not(path: str, source: str) -> None:
    assert wrong_arrows(path, source) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/tree.py", "hasattr(x, 'y')"),
        ("core/tree.py", "print('x')"),
        ("experiment/run.py", "print('x')"),
        ("core/tree.py", "import pickle"),
        ("core/tree.py", "from pickle import loads"),
        ("experiment/run.py", "torch.load('x')"),
        ("experiment/run.py", "from torch import load"),
        ("core/tree.py", "\n" * (MOST_LINES + 1)),
        ("methods/new.py", '"""A method."""'),
        ("methods/new.py", "x = 1"),
    ],
)
def test_a_broken_rule_is_found(path: str, source: str) -> None:
    assert len(broken_rules(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("core/tree.py", "import os\nhasattr(os, 'sched_getaffinity')"),
        ("cli.py", "print('x')"),
        ("report/page.py", "print('x')"),
        ("core/tree.py", "console.print('x')"),
        ("methods/new.py", '"""A method.\n\nDeviations: none.\n"""'),
    ],
)
def test_a_kept_rule_is_not(path: str, source: str) -> None:
    assert broken_rules(path, source) == []

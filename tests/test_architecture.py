"""The shape of the package, read from its source: who imports whom, and the house rules a machine can check."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedmate
from fedmate.backends import BACKENDS
from fedmate.core.task import TASKS
from fedmate.data import DATASETS
from fedmate.data.partitions import PARTITIONS
from fedmate.experiment.callback import CALLBACKS
from fedmate.methods import METHODS
from fedmate.models import MODELS
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS

ROOT = Path(fedmate.__file__).parent
SOURCES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
"""Every file of the package, by its path inside it."""

ARROWS: dict[str, tuple[str, ...]] = {
    "core": ("core", "errors"),
    "components": ("components", "core", "errors"),
    "methods": ("methods", "components", "core", "errors"),
    "backends": ("backends", "core", "errors"),
    "flower": (
        "flower",
        "backends",
        "core",
        "data",
        "experiment",
        "progress",
        "report",
        "storage",
        "tasks",
        "errors",
        "__version__",
    ),
    "tasks": ("tasks", "core", "errors"),
    "server": ("server", "core"),
    "data": ("data", "core", "storage", "errors"),
    "models": ("models", "core", "errors"),
    "report": ("report", "experiment.record", "errors"),
    "studies": ("studies", "experiment", "report", "core", "data", "methods", "storage", "errors"),
    "experiment": (
        *("experiment", "backends", "components", "core", "data", "methods", "models", "server", "tasks"),
        *("storage", "errors", "__version__"),
    ),
    "progress": ("experiment", "errors"),
    "callbacks": ("callbacks", "experiment.callback", "experiment.sections", "core", "errors"),
    "catalogue": (
        *("experiment.callback", "experiment.config", "experiment.sections", "experiment.record"),
        *("backends", "core", "data", "methods", "models", "tasks", "errors"),
    ),
    "api": ("progress", "experiment", "data", "errors"),
    "cli": (
        *("cli", "api", "catalogue", "progress", "studies", "report", "flower", "experiment"),
        *("core", "data", "methods", "storage", "errors", "__version__"),
    ),
    "storage": ("errors",),
    "errors": (),
}
"""By area: what of fedmate it may import. A row for each, and no cycle between them."""

THIRD_PARTIES: dict[str, tuple[str, ...]] = {
    "core": ("torch", "safetensors"),
    "components": ("torch",),
    "methods": ("torch",),
    "tasks": ("torch",),
    "server": ("torch",),
    "data": ("torch", "numpy", "safetensors", "pooch", "requests", "platformdirs", "sklearn", "PIL"),
    "models": ("torch",),
    "flower": ("torch", "numpy", "rich", "flwr", "ray", "cryptography"),
    "storage": ("filelock",),
    "errors": (),
}
"""By area: what of other packages it may import. Areas that are not here may import anything declared."""

ONLY_FROM = {"cli": ("cli",), "flower": ("flower", "cli")}
"""By area: who may import it. The registry of back ends names `flower` in a string, so a run without it loads none."""

MAY_PRINT = ("cli", "report")
MOST_LINES = 350

MAY_WRITE = "storage.py"
MAY_MAKE_FOLDERS = ("storage.py", "experiment/record.py", "experiment/checkpoint.py")
OS_WRITES = (
    *("open", "fdopen", "write", "pwrite", "writev", "sendfile", "truncate", "ftruncate"),
    *("rename", "renames", "replace", "link", "symlink", "unlink", "remove", "removedirs"),
    *("rmdir", "mkdir", "makedirs"),
)
"""What of `os` changes files."""

WRITES = ("write_text", "write_bytes", "unlink", "rename", "rmdir", "touch", "symlink_to", "hardlink_to", "tofile")
"""Methods of paths and arrays that do."""

SAVES = ("save_file", "serialize_file", "savez", "savez_compressed", "savetxt")
"""Functions of other packages that do, besides their `save`."""


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
            may_import = ONLY_FROM.get(rest.split(".")[0])
            if forbidden or (may_import is not None and area(path) not in may_import):
                wrong.append(name)
        elif outside is not None and package not in (*outside, *sys.stdlib_module_names):
            wrong.append(name)
    return wrong


ROWS = {
    tuple(row.split(":"))
    for table in (TASKS, METHODS, AGGREGATORS, SERVER_OPTIMISERS, DATASETS, PARTITIONS, MODELS, BACKENDS, CALLBACKS)
    for row in table.built_in.values()
}
"""The classes that stand on a table, and the mixins of methods: other areas know their base classes only."""


def foreign_checks(path: str, source: str) -> list[str]:
    """Return the classes on another area's table that a file asks for by `isinstance` or `issubclass`."""
    tree, found = ast.parse(source), []
    known = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                names = [known.get(part.id) for part in ast.walk(classes) if isinstance(part, ast.Name)]
                found += [f"{module}:{name}" for module, name in filter(None, names) if (module, name) in ROWS]
    return [name for name in found if name.split(".")[1] != area(path)]


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
    if area(path) == "methods" and not path.endswith(("__init__.py", "base.py")):
        documentation = ast.get_docstring(ast.parse(source)) or ""
        if "Deviations" not in documentation:
            found.append("its docstring does not list `Deviations`")
    return found


def unsafe_writes(path: str, source: str) -> list[str]:
    """Return where a file writes past `storage`, which is what keeps records whole when a process is killed."""
    if path == MAY_WRITE:
        return []
    found = [
        name
        for name in imports(source)
        if name.split(".")[0] in ("shutil", "tempfile")
        or name.split(".")[-1] in SAVES
        or name in ("torch.save", "numpy.save", *(f"os.{verb}" for verb in OS_WRITES))
    ]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.alias(name="os", asname=str()):
                found.append("os under another name")
            case ast.Attribute(value=ast.Name(id="os"), attr=verb) if verb in OS_WRITES:
                found.append(f"line {node.lineno}: os.{verb}")
            case ast.Attribute(value=ast.Name(id="torch" | "np" | "numpy"), attr="save"):
                found.append(f"line {node.lineno}: save")
            case ast.Attribute(attr=verb) if verb in (*WRITES, *SAVES):
                found.append(f"line {node.lineno}: {verb}")
            case ast.Call(func=ast.Attribute(attr="mkdir")) if path not in MAY_MAKE_FOLDERS:
                found.append(f"line {node.lineno}: mkdir")
            # A path's `replace` has one argument, a string's has two.
            case ast.Call(func=ast.Attribute(attr="replace"), args=[_], keywords=[]):
                found.append(f"line {node.lineno}: replace")
            case ast.Call(func=ast.Name(id="open") | ast.Attribute(attr="open")) if _may_write(node):
                found.append(f"line {node.lineno}: open")
    return found


def _may_write(call: ast.Call) -> bool:
    """Tell whether a call of `open` has a mode that is not for reading alone."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="os")):
            return False
        case ast.Attribute(value=ast.Call(func=ast.Name(id="_opener"))):
            # A request to a server.
            return False
        case ast.Attribute(value=ast.Name(id="io" | "gzip" | "bz2" | "lzma" | "tarfile" | "archive" | "Image")):
            modes = call.args[1:2]
        case ast.Name():
            modes = call.args[1:2]
        case _:
            modes = call.args[:1]
    modes = [*modes, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    return any(not (isinstance(mode, ast.Constant) and {*str(mode.value)} <= {*"rbt:"}) for mode in modes)


def test_storage_does_write() -> None:
    """Or the rule would look past everything."""
    assert len(unsafe_writes("elsewhere.py", SOURCES[MAY_WRITE])) > 8


@pytest.mark.parametrize("check", [wrong_arrows, broken_rules, unsafe_writes, foreign_checks])
def test_rules_hold_in_every_file(check: Callable[[str, str], list[str]]) -> None:
    assert {path: wrong for path, source in SOURCES.items() if (wrong := check(path, source))} == {}


def test_no_area_depends_on_itself_through_others() -> None:
    edges = {name: {allowed.split(".")[0] for allowed in row} - {name, "__version__"} for name, row in ARROWS.items()}
    while leaves := [name for name, below in edges.items() if not below & edges.keys()]:
        for name in leaves:
            del edges[name]
    assert edges == {}


def test_every_area_has_a_row() -> None:
    """A renamed sub-package would otherwise leave its rules behind unnoticed."""
    assert {area(path) for path in SOURCES} - {"__init__", "__main__"} == {*ARROWS, *THIRD_PARTIES}


# -------------------- the checks can fail


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("core/tree.py", "import numpy", 1),
        ("core/tree.py", "def f():\n    import fedmate.backends.base", 1),
        ("components/aggregation.py", "from fedmate.corelike import x", 1),
        ("methods/fedavg.py", "from fedmate.backends import BACKENDS", 1),
        ("report/page.py", "from fedmate.experiment.run import run", 1),
        ("experiment/build.py", "from fedmate.flower.backend import Flower", 1),
        ("experiment/run.py", "from fedmate import cli", 1),
        ("core/tree.py", "import math\nimport torch.func\nfrom fedmate.errors import UserError", 0),
        ("report/page.py", "from fedmate.experiment.record import Record\nfrom fedmate.report.tables import table", 0),
    ],
)
def test_wrong_imports_are_found_and_right_ones_are_not(path: str, source: str, found: int) -> None:
    assert len(wrong_arrows(path, source)) == found


@pytest.mark.parametrize(
    "source",
    [
        *("open('x', mode='ab')", "open('x', mode)", "path.open('w')", "io.open('x', 'w')", "os.open(x, y)"),
        *("list(map(path.write_bytes, parts))", "path.replace('y')", "path.mkdir()", "from os import replace"),
        *("import os as system", "import shutil", "from torch import save", "np.save('x', array)"),
    ],
)
def test_a_write_past_storage_is_found(source: str) -> None:
    assert len(unsafe_writes("experiment/export.py", source)) == 1


def test_reading_and_asking_storage_is_not() -> None:
    reading = "open('x')\nopen('x', 'rb')\npath.open()\npath.open('r')\nopen('wax')"
    asking = "'a'.replace('b', 'c')\nx._replace(y=1)\nstorage.write(path, b'')\nfile.write('x')"
    assert unsafe_writes("core/tree.py", f"{reading}\n{asking}") == []


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("core/tree.py", "hasattr(x, 'y')", 1),
        ("experiment/run.py", "print('x')", 1),
        ("core/tree.py", "from pickle import loads", 1),
        ("experiment/run.py", "torch.load('x')", 1),
        ("experiment/run.py", "from torch import load", 1),
        ("core/tree.py", "\n" * (MOST_LINES + 1), 1),
        ("methods/new.py", '"""A method."""', 1),
        ("cli.py", "import os\nhasattr(os, 'sched_getaffinity')\nprint('x')", 0),
        ("methods/new.py", '"""A method.\n\nDeviations: none.\n"""', 0),
    ],
)
def test_broken_rules_are_found(path: str, source: str, found: int) -> None:
    assert len(broken_rules(path, source)) == found


def test_a_class_that_is_asked_for_is_found() -> None:
    source = "from fedmate.methods.local import Local as L\nisinstance(x, int | L)"
    assert foreign_checks("experiment/run.py", source) == ["fedmate.methods.local:Local"]
    assert foreign_checks("methods/ditto.py", source) == []

"""The names that an experiment can use: their options, what a method costs in a round, and what to cite for them."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmate import data, methods
from fedmate.backends import BACKENDS
from fedmate.backends.base import one_thread
from fedmate.core import (
    BOOKKEEPING,
    Method,
    Model,
    Setup,
    Training,
    Tree,
    client_data,
    leaves,
    make_key,
    normal,
    num_bytes,
    select,
    tree_map,
    unmapped,
)
from fedmate.core.options import Registry, options_of
from fedmate.data import DATASETS, Dataset
from fedmate.data.partitions import PARTITIONS
from fedmate.errors import UserError, nearest
from fedmate.experiment.callback import CALLBACKS
from fedmate.experiment.config import TUNED, tuned_on
from fedmate.experiment.record import Record, runs_of
from fedmate.experiment.sections import PLAIN_SECTIONS, SERVER, General
from fedmate.methods import METHODS
from fedmate.models import MODELS
from fedmate.tasks.metrics import METRICS, Metric

SECTIONS: dict[str, type] = {"settings": General, **PLAIN_SECTIONS}
"""Options without names: the keys outside any section, and the section that all methods share."""

TABLES: dict[str, Registry[Any]] = {
    table.kind: table
    for table in (METHODS, *SERVER.values(), METRICS, DATASETS, PARTITIONS, MODELS, BACKENDS, CALLBACKS)
}

INPUT, CLASSES, CLIENTS, ROUNDS = (3, 32, 32), 10, 20, 200
"""The setting in which costs are counted, which is the paper's."""

SETTING = f"the paper's CIFAR CNN with {CLASSES} classes, T = {ROUNDS}"

CITED: dict[str, tuple[str, Registry[Any]]] = {"method": ("method", METHODS), "dataset": ("data set", DATASETS)}
"""By section of an experiment: its name, and the table of its rows, whose `citation` says what to cite."""

ADDITIONS = {
    ("objective", "calibration"): ("prior calibration", "logitadjustment2021"),
    ("server", "momentum"): ("server momentum", "fedavgm2019"),
}
"""By section and option that methods share: what it adds to them where it is not 0, and what to cite for that."""

OWN_ENTRIES = [Path(package.__path__[0], "citations.bib") for package in (methods, data)]
ENTRY = re.compile(r"^@\w+\{([^\s,]+),.*?(?=^@|\Z)", re.MULTILINE | re.DOTALL)
"""An entry of BibTeX that begins its line, and its key."""


def catalogue(kind: str | None) -> Iterator[str]:
    """Yield the lines that describe one table, or all of them."""
    if kind is not None and kind not in (*SECTIONS, *TABLES):
        raise UserError(f"`{kind}` cannot be listed; {nearest(kind, (*SECTIONS, *TABLES))}")
    for name, section in SECTIONS.items():
        if kind in (None, name):
            yield f"{name}: {_first_line(section)}"
            yield from _options(section)
    for name, table in TABLES.items():
        if kind in (None, name):
            caption = f"numbers are what a client receives (down) and sends (up) in a round, in float32, on {SETTING}"
            yield f"{name}: {caption}" if table is METHODS else f"{name}:"
            for row in table.names():
                try:
                    yield from _describe(row, table[row])
                except UserError as error:
                    yield f"  {row:<14} {error}"


def _describe(name: str, cls: object) -> Iterator[str]:
    if isinstance(cls, Metric):
        yield f"  {name:<18} {_first_line(cls.values)}"
        return
    if not isinstance(cls, type):
        raise UserError(f"`{name}` is {cls!r}, which is not a class; see what its entry point names.")
    yield f"  {name:<14} {_first_line(cls)}"
    presets = [*getattr(cls, "presets", {})]
    if issubclass(cls, Method):
        try:
            yield f"      {costs_of(cls).describe()}"
        except Exception as error:
            # Another package's fault: the other methods are listed all the same.
            yield f"      its costs are unknown: it raised {error!r}"
        found = tuned_on(name)
        if found and TUNED not in presets:
            presets.append(f"{TUNED} (on {', '.join(found)})")
    yield from _options(cls)
    if issubclass(cls, Dataset):
        spread = (f"{section}.{key}={value}" for section, keys in cls().defaults.items() for key, value in keys.items())
        yield f"      starts from: {', '.join(spread) or 'nothing of its own'}"
    if presets:
        yield f"      preset: {', '.join(presets)}"


def _options(cls: type) -> Iterator[str]:
    for key, field in (options_of(cls) if is_dataclass(cls) else {}).items():
        values = field.default if isinstance(field.default, tuple) else (field.default,)
        default = "" if values in ((), (None,)) else f" [{', '.join(map(str, values))}]"
        yield f"      {key}: {field.metadata['help']}{default}"


def _first_line(row: object) -> str:
    return (inspect.getdoc(row) or "").partition("\n")[0]


class Costs(NamedTuple):
    """The costs of a method's rounds, for one client.

    Attributes:
        shares: for each part that ever crosses, the directions in which it does, bookkeeping apart.
        keeps: for each part that ever stays with the client, the number of rounds in which it does.
        down, up: float32 numbers that cross, and in how many rounds so many do.
    """

    shares: dict[str, set[str]]
    keeps: Counter[str]
    down: Counter[int]
    up: Counter[int]

    def describe(self) -> str:
        """Return them as a line of text."""
        shares = [part if len(ways) == 2 else f"{part} ({min(ways)})" for part, ways in self.shares.items()]
        keeps = [part if n == ROUNDS else f"{part} (in {n} of {ROUNDS} rounds)" for part, n in self.keeps.items()]
        (down, _), (up, _) = self.down.most_common(1)[0], self.up.most_common(1)[0]
        others = (*self.down.most_common()[1:], *self.up.most_common()[1:])
        odd = dict.fromkeys(f"{numbers:,} in {rounds} of {ROUNDS} rounds" for numbers, rounds in others)
        return (
            f"shares {', '.join(shares) or 'nothing'}; keeps {', '.join(keeps) or 'nothing'}; "
            f"{down:,} numbers down, {up:,} up" + (f" ({', '.join(odd)})" if odd else "")
        )


def costs_of(cls: type[Method]) -> Costs:
    """Call a method's own functions, with its defaults, as a back end does: one step of one client on two samples."""
    architecture, key, costs = MODELS["cifar_cnn"](), make_key(0), Costs({}, Counter(), Counter(), Counter())
    with torch.random.fork_rng(devices=[]):
        model = Model(architecture.build(INPUT, CLASSES), classifier=architecture.classifier)
    setup = Setup(model, CLASSES, ROUNDS, Training(epochs=1))
    method = cls(setup=replace(setup, model=cls(setup=setup).prepare(model)))
    params, samples = method.setup.model.init_params, client_data(normal(key, (2, *INPUT)), torch.arange(2))
    server, client = method.init_server(params(), CLIENTS, key), method.init_client(params(), key)

    def take_part(client: Tree, received: Tree) -> tuple[Tree, Tree]:
        """Return a client's upload, and all that its part of a round leads to."""
        held, result = method.personal_params(client, received), method.local_update(client, received, samples, key)
        return result.upload, {"held": held, "client": result.client, "up": result.upload, "params": result.params}

    with torch.no_grad(), unmapped(), one_thread():
        sent = method.download(server, torch.tensor(0))
        for wire, rounds in Counter(method.wire(t) for t in range(ROUNDS)).items():
            received = select(sent, wire.down)
            upload, outcome = take_part(client, received)
            for way, message, totals in (("down", received, costs.down), ("up", select(upload, wire.up), costs.up)):
                sizes = {part: num_bytes({part: value}) for part, value in message.items() if part not in BOOKKEEPING}
                totals[sum(-(-size // torch.float32.itemsize) for size in sizes.values())] += rounds
                for part in filter(sizes.get, sizes):
                    costs.shares.setdefault(part, set()).add(way)
            for part in client:
                own = select(client, (part,))
                # Counters and flags are bookkeeping.
                if any(leaf.is_floating_point() for leaf in leaves(own)):
                    other = {**client, **tree_map(lambda leaf: leaf + torch.ones_like(leaf), own)}
                    # A part that comes with the download may matter all the same.
                    if part not in received or not _equal(outcome, take_part(other, received)[1]):
                        costs.keeps[part] += rounds
    return costs


def _equal(a: Tree, b: Tree) -> bool:
    return all(torch.equal(left, right) for left, right in zip(leaves(a), leaves(b), strict=True))


def bibliography(folders: Sequence[Path]) -> Iterator[str]:
    """Yield what to cite for runs and comparisons, finished or not: comments, and each entry of BibTeX once.

    Raises:
        UserError: a folder holds no record, or a damaged one; nothing has been yielded then.
    """
    records = [Record(run) for folder in folders for run in runs_of(folder)]
    used = {section: dict.fromkeys(_name(record, section) for record in records) for section in CITED}
    citations, software = dict[str, str | None](), _software(records)
    for section, (what, table) in CITED.items():
        for name in used[section]:
            citations[f"{what} {name}"] = table[name].citation if name in table else None
    for (section, option), (what, citation) in ADDITIONS.items():
        if any(record.config.get(section, {}).get(option) for record in records):
            citations[what] = citation
    for option, table in SERVER.items():
        for name in dict.fromkeys(record.config.get("server", {}).get(option) for record in records):
            if name in table and table[name].citation:
                citations[f"{option} {name}"] = table[name].citation
    cited = set[str]()
    for what, text in citations.items():
        entries = entries_of(text or "")
        reference = "not found here, so its reference is not known" if text is None else ", ".join(entries)
        yield f"% {what}: {reference or 'no reference'}"
        yield from (f"{entry}\n" for key, entry in entries.items() if key not in cited)
        cited.update(entries)
    yield from ("% software", software)


def entries_of(citation: str) -> dict[str, str]:
    """Return entries of BibTeX by key: those of a text, or one of fedmate's own that a key names."""
    if citation.isidentifier():
        known = "\n".join(path.read_text(encoding="utf-8") for path in OWN_ENTRIES)
        return {citation: entries_of(known)[citation]}
    return {found[1]: found[0].strip() for found in ENTRY.finditer(citation)}


def _name(record: Record, section: str) -> str:
    """Return the name in a section of a run's experiment, whether or not it is known here."""
    named = record.config.get(section)
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str) or not name.isprintable():
        raise UserError(f"`{record.folder / 'config.toml'}` names no {CITED[section][0]}; put it back from a copy.")
    return name


def _software(records: Sequence[Record]) -> str:
    """Return the entry of fedmate, with the versions that began the runs or went on with them."""
    begun = [record.environment for record in records if (record.folder / "environment.json").exists()]
    entries = [entry for environment in begun for entry in (environment, *environment.get("resumed", []))]
    versions = dict.fromkeys(str(entry["fedmate"]) for entry in entries if "fedmate" in entry)
    fields = ["title = {{fedmate}}", "author = {{The fedmate developers}}", "howpublished = {Software}"]
    if versions:
        fields.append(f"note = {{Version {', '.join(versions)}}}")
    return "@misc{fedmate_software,\n  " + ",\n  ".join(fields) + "\n}"

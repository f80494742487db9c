"""The declaration of an experiment, and how it is put together from layers.

Layers, each overriding those before it: the options' own defaults, the data set's defaults, the file, `--dataset` and
`--method`, `--set`. In a section with a `name` every name has keys of its own; when a layer changes the name, the keys
that not all names of the section share are dropped from the layers below; what a data set says of a name holds for no
other. A method's `preset` stands for the values it names, beneath what the same layer says itself; `tuned` for those
that were found for it on the data set of the experiment.
"""

from __future__ import annotations

import tomllib
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from fedmate.backends import BACKENDS
from fedmate.core.options import Registry, check_options, check_type, options_of, spelled
from fedmate.data import DATASETS, Dataset
from fedmate.data.sources import expand
from fedmate.errors import UserError, nearest
from fedmate.experiment.callback import CALLBACKS, Callback
from fedmate.experiment.record import Record
from fedmate.experiment.sections import (
    COMMON,
    NAMED_SECTIONS,
    PLAIN_SECTIONS,
    SERVER,
    Experiment,
    General,
    Section,
    ServerSection,
    Values,
)
from fedmate.methods import METHODS


class ConfigSource(NamedTuple):
    """A layer: some values and where they come from, for error messages."""

    source: str
    values: Values


SERVER_DEFAULTS = {"aggregator": "mean", "optimiser": "sgd"}
DEFAULT_NAMES = {"dataset": "digits", "partition": "share", "model": "digits_cnn", "method": "fedrep"}

TUNED = "tuned"
"""The preset that stands for what tuning found for a method on a data set."""

TUNED_FILE = Path(__file__).parents[1] / "tuned.toml"
"""An entry `[METHOD.DATASET]` has the settings found for `training` and `method`, and says where they come from."""


def load_file(path: Path) -> ConfigSource:
    """Read a TOML file as a layer."""
    try:
        if path.is_fifo():
            raise UserError(f"`{path}` is a pipe, not a file; give an experiment's TOML file.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"`{path}` does not exist; give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{path}` cannot be read as text ({error}); give an experiment's TOML file.") from None
    try:
        return ConfigSource(str(path), tomllib.loads(text))
    except (ValueError, RecursionError) as error:
        where = str(error).replace("at end of document", f"at line {len(text.splitlines())}, its end")
        raise UserError(f"`{path}` is not valid TOML: {where}; mend that line.") from None


def stored_experiment(folder: Path) -> Experiment:
    """Return the experiment of a run."""
    return resolve([load_file(Record(folder).folder / "config.toml")])


def parse_set(assignments: Sequence[str], source: str = "--set") -> ConfigSource:
    """Read `key=value` and `section.key=value` as a layer; a value that is not TOML is taken as a string."""
    pairs = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"`{source}` got `{assignment}`; write `key=value` or `section.key=value`.")
        try:
            parsed = tomllib.loads(f"value = {text.strip()}")
        except (ValueError, RecursionError):
            parsed = {}
        # A line break could smuggle in further keys.
        pairs.append((key.strip(), parsed["value"] if list(parsed) == ["value"] else text.strip()))
    return nest(source, pairs)


def nest(source: str, pairs: Iterable[tuple[str, Any]]) -> ConfigSource:
    """Make a layer of values whose keys are written `key` or `section.key`."""
    values: Values = {}
    for key, value in pairs:
        section, dot, name = key.rpartition(".")
        if not name or (dot and not section) or "." in section:
            raise UserError(f"`{source}` got `{key}={value}`; write `key=value` or `section.key=value`.")
        target = values.setdefault(section, {}) if section else values
        if not isinstance(target, dict) or isinstance(target.get(name), dict):
            raise UserError(f"`{source}` gives `{section or name}` both a value and keys; give one of them.")
        target[name] = value
    return ConfigSource(source, values)


def resolve(layers: Sequence[ConfigSource]) -> Experiment:
    """Put layers together into an experiment, or raise `UserError` for the first thing that is wrong."""
    for layer in layers:
        check_shape(layer)
    dataset = _resolve_section("dataset", layers)
    layers = _with_presets(layers, dataset.name)
    method = _resolve_section("method", layers)
    implied = ConfigSource(f"the method `{method.name}`", METHODS[method.name].defaults)
    layers = [_defaults_of(dataset, layers), implied, *layers]
    general = Values()
    for layer in layers:
        found = {key: value for key, value in layer.values.items() if key in options_of(General)}
        general |= _typed("", General, found, layer.source)
    check_options("", General, general)
    sections: dict[str, Any] = {name: _resolve_section(name, layers) for name in ("partition", "model", "method")}
    for name, cls in PLAIN_SECTIONS.items():
        typed = [_typed(name, cls, layer.values.get(name, {}), layer.source) for layer in layers]
        sections[name] = cls(**dict(ChainMap(*reversed(typed))))
    sections["server"] = _resolve_server(layers)
    if general.get("backend", "auto") != "auto":
        lookup("backend", BACKENDS, general["backend"], "the experiment")
    return Experiment(general=General(**general), dataset=dataset, **sections)


def check_shape(layer: ConfigSource) -> None:
    """Refuse unknown keys and sections, and sections that are not tables."""
    sections = [*NAMED_SECTIONS, *PLAIN_SECTIONS, "server", "callbacks"]
    for key, value in layer.values.items():
        if key in sections:
            if not isinstance(value, dict):
                raise UserError(
                    f"`{key}` in {layer.source} is {spelled(value)}; it is a section: write `[{key}]` and keys."
                )
        elif isinstance(value, dict):
            raise UserError(f"`[{key}]` in {layer.source} is not a section; {nearest(key, sections)}")
        elif key not in options_of(General):
            hint = elsewhere(key) or nearest(key, [*options_of(General), *sections])
            raise UserError(f"`{key}` in {layer.source} is not a key; {hint}")


def elsewhere(key: str, section: str = "") -> str | None:
    """Return a hint what else a key is an option of, if it is one."""
    names = _rows_with(key, section) if section in (*NAMED_SECTIONS, "server") else []
    if names:
        return f"it is one of {_some(names)}: leave it out, or choose one that has it."
    sections = [section for section, cls in PLAIN_SECTIONS.items() if key in options_of(cls)]
    sections += [section for section in NAMED_SECTIONS if _rows_with(key, section)]
    return f"did you mean `{sections[0]}.{key}`?" if sections else None


def _rows_with(key: str, section: str) -> list[str]:
    names = list[str]()
    for table in SERVER.values() if section == "server" else [NAMED_SECTIONS[section]]:
        for name in table.names():
            # A package that cannot be loaded is not what the user asked about.
            with suppress(UserError):
                names += [name] * (key in options_of(table[name]))
    return names


def _some(names: Iterable[str]) -> str:
    """Name all of a few, and the first of many."""
    words = [f"`{name}`" for name in names]
    words = words if len(words) <= 3 else [*words[:2], f"{len(words) - 2} others"]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _defaults_of(dataset: Section, layers: Sequence[ConfigSource]) -> ConfigSource:
    """Return what the chosen data set brings along; what it says of a name does not hold for another one."""
    chosen: Dataset = DATASETS[dataset.name](**dataset.options)
    kept = {}
    for section, values in chosen.defaults.items():
        names = [layer.values[section]["name"] for layer in layers if "name" in layer.values.get(section, {})]
        if "name" not in values or not names or names[-1] == values["name"]:
            kept[section] = values
    return ConfigSource(f"the data set `{dataset.name}`", kept)


def _with_presets(layers: Sequence[ConfigSource], dataset: str) -> list[ConfigSource]:
    """Add what the presets of methods say, each beneath the layer that asks for it."""
    name, spread = DEFAULT_NAMES["method"], list[ConfigSource]()
    for layer in layers:
        given = dict(layer.values.get("method", {}))
        if given.get("name", name) != name:
            name = given["name"]
            spread = [lower for lower in spread if not lower.source.startswith("a preset of")]
        if "preset" in given:
            values = _preset(name, given.pop("preset"), dataset, layer.source)
            # Its own section is named, for the layer that names it lies above.
            values["method"] = {"name": name, **values.get("method", {})}
            spread.append(ConfigSource(f"a preset of `{name}`", values))
        spread.append(ConfigSource(layer.source, {**layer.values, "method": given}))
    return spread


def _resolve_section(section: str, layers: Sequence[ConfigSource]) -> Section:
    table, name, options = NAMED_SECTIONS[section], DEFAULT_NAMES[section], Values()
    for layer in layers:
        given = dict(layer.values.get(section, {}))
        # The default's row is not imported where a layer names another one.
        if not given:
            continue
        chosen = given.pop("name", name)
        cls = lookup(section, table, chosen, layer.source)
        if chosen != name:
            options = {key: value for key, value in options.items() if key in options_of(COMMON[section])}
            name = chosen
        options |= _typed(section, cls, given, layer.source, f" of `{name}`")
    check_options(section, table[name], options)
    return Section(name, {key: options.get(key, field.default) for key, field in options_of(table[name]).items()})


def _resolve_server(layers: Sequence[ConfigSource]) -> ServerSection:
    rows: dict[str, Any] = {part: SERVER[part][name] for part, name in SERVER_DEFAULTS.items()}
    names, options = dict(SERVER_DEFAULTS), Values()
    for layer in layers:
        given = dict(layer.values.get("server", {}))
        for part in SERVER:
            chosen = given.pop(part, names[part])
            if chosen != names[part]:
                options = {key: value for key, value in options.items() if key not in options_of(rows[part])}
                names[part], rows[part] = chosen, lookup(f"server.{part}", SERVER[part], chosen, layer.source)
        for key, value in given.items():
            cls = next((row for row in rows.values() if key in options_of(row)), rows["optimiser"])
            options |= _typed("server", cls, {key: value}, layer.source, " of " + _some(names.values()))
    found = {}
    for part, cls in rows.items():
        check_options("server", cls, options)
        found[part] = Section(names[part], {key: options.get(key, f.default) for key, f in options_of(cls).items()})
    return ServerSection(**found)


def resolve_callbacks(layers: Iterable[ConfigSource | None]) -> dict[str, Values]:
    """Return the options of the callbacks that layers ask for, by name: no part of what a run is.

    A layer gives a table of options, `true` for none, or `false` for no such callback.
    """
    asked, sources = dict[str, Values](), dict[str, str]()
    for layer in filter(None, layers):
        check_shape(layer)
        for name, given in layer.values.get("callbacks", {}).items():
            if not isinstance(given, bool | dict):
                found = f"`callbacks.{name}` in {layer.source} is {spelled(given)}"
                raise UserError(f"{found}; write `[callbacks.{name}]` and options, or `true` or `false`.")
            if given is False:
                asked.pop(name, None)
            else:
                asked[name] = {**asked.get(name, {}), **({} if given is True else given)}
                sources[name] = layer.source
    for name, options in asked.items():
        section = f"callbacks.{name}"
        cls = lookup(section, CALLBACKS, name, sources[name])
        asked[name] = _typed(section, cls, options, sources[name], f" of `{name}`")
        check_options(section, cls, asked[name])
    return asked


def make_callbacks(asked: Mapping[str, Values]) -> list[Callback]:
    """Make callbacks of what `resolve_callbacks` gives."""
    return [CALLBACKS[name](**options) for name, options in asked.items()]


def lookup(section: str, table: Registry[Any], name: object, source: str) -> Any:
    """Return the row that a section's `name` names, or raise `UserError` naming the section."""
    if not isinstance(name, str):
        raise UserError(f"`{section}.name` in {source} is {spelled(name)}; it must be a string.")
    try:
        return table[name]
    except UserError as error:
        place = section if section == "backend" or "." in section else f"{section}.name"
        raise UserError(f"`{place}`: {error}") from None


def tuned_on(method: str) -> dict[str, dict[str, Values]]:
    """Return what tuning found for a method: settings by section, for each data set."""
    return {
        dataset: {section: dict(entry[section]) for section in ("training", "server", "method") if section in entry}
        for dataset, entry in _read_tuned(TUNED_FILE).get(method, {}).items()
    }


@cache
def _read_tuned(path: Path) -> Values:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _preset(name: str, preset: object, dataset: str, source: str) -> Values:
    """Return what a preset of a method stands for; its own come before what tuning found."""
    own: Mapping[str, Values] = lookup("method", METHODS, name, source).presets
    found = tuned_on(name)
    presets = {**({TUNED: found[dataset]} if dataset in found else {}), **own}
    if preset in list(presets):
        return dict(presets[str(preset)])
    place = f"`method.preset` in {source} is {spelled(preset)}"
    if preset == TUNED:
        where = f"on {_some(found)} only, not on `{dataset}`" if found else "on no data set"
        advice = f"leave it out, or run `fedmate tune {name}` on data with a test split of its own (`digits` has none)"
        raise UserError(f"{place}, but `{name}` was tuned {where}; {advice}.")
    none = f"it has none on `{dataset}`, only `{TUNED}` on {_some(found)}" if found else "it has none"
    known = f"use {' or '.join(f'`{known}`' for known in sorted(presets))}" if presets else f"{none}: leave it out"
    raise UserError(f"{place}, which `{name}` does not have; {known}.")


def _typed(section: str, cls: type, values: Values, source: str, of: str = "") -> Values:
    """Check keys and types of a section's values; `of` says of which row."""
    known, checked = options_of(cls), Values()
    for key, value in values.items():
        place = f"{section}.{key}" if section else key
        if key not in known:
            hint = elsewhere(key, section) or nearest(key, [*known, *(SERVER if section == "server" else [])])
            raise UserError(f"`{place}` in {source} is not an option{of}; {hint}")
        checked[key] = check_type(place, cls, key, value, source)
        if checked[key] and known[key].metadata["path"]:
            checked[key] = str(expand(checked[key]).absolute())
    return checked

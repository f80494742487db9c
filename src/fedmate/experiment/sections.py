"""The sections of an experiment: their options, the tables that their names stand in, and what they make together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import tomli_w

from fedmate.core import Limits, Method, ObjectiveOptions, Server, Training, option
from fedmate.core.options import NONE, Registry, check_options
from fedmate.data import DATASETS, Dataset
from fedmate.data.partitions import PARTITIONS, Partition
from fedmate.methods import METHODS
from fedmate.models import MODELS, Architecture
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS
from fedmate.tasks.metrics import METRICS

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class General:
    """The keys outside any section."""

    seed: int = option(0, "where all randomness comes from")
    rounds: int = option(50, "how many rounds there are (T)", Limits(at_least=1))
    participation: float = option(1.0, "share of clients sampled each round", Limits(above=0, at_most=1))
    eval_every: int = option(10, "rounds between evaluations; the last is always evaluated", Limits(at_least=1))
    evaluate_on: Literal["test", "validation"] = option(
        "test", "`validation`: training samples that no client holds instead, to choose settings on"
    )
    validation_per_class: int = option(100, "how many of those there are for each class", Limits(at_least=1))
    holdout_clients: float = option(
        0.0, "share of clients held out of training and evaluated as unseen clients", Limits(at_least=0, below=1)
    )
    checkpoint_every: int = option(10, "rounds between checkpoints; the last is always saved", Limits(at_least=1))
    backend: str = option("auto", "how clients are run; `auto` chooses")
    chunk_size: int | None = option(None, "the most clients at once, to bound memory", Limits(at_least=1))
    device: str = option("auto", "`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU if there is one")
    dtype: Literal["float32", "float64"] = option("float32", "precision of data and parameters")
    precision: Literal["strict", "tf32", "bf16"] = option(
        "tf32", "how a GPU multiplies: `strict`, numbers as they are; `tf32`, rounded to 10 bits; `bf16`, to 7"
    )
    min_clients: int = option(
        1, "clients that must answer for a round to count, where they live elsewhere", Limits(at_least=1)
    )
    patience: float = option(
        600.0, "seconds to wait for the next answer, where clients live elsewhere", Limits(above=0)
    )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is computed of models' answers (the `[evaluation]` section)."""

    metrics: tuple[str, ...] = option((), "further metrics beside the accuracy: precision, macro_f1, auroc, ...")
    local: float = option(
        0.0, "share of each client's samples held back as its test `local`", Limits(at_least=0, below=1)
    )

    def __post_init__(self) -> None:
        check_options("evaluation", Evaluation, vars(self))
        for name in self.metrics:
            _ = METRICS[name]


@dataclass(frozen=True)
class Section:
    """A named choice and its options, all of them spelled out."""

    name: str
    options: Values


@dataclass(frozen=True)
class ServerSection:
    """How the server combines what clients send, and how its model moves, with the options of both."""

    aggregator: Section
    optimiser: Section

    def to_dict(self) -> Values:
        """Return the content of `[server]`."""
        chosen = {"aggregator": self.aggregator.name, "optimiser": self.optimiser.name}
        return {**chosen, **self.aggregator.options, **self.optimiser.options}

    def make(self) -> Server:
        """Return the server's step."""
        aggregator, optimiser = self.aggregator, self.optimiser
        return Server(
            AGGREGATORS[aggregator.name](**aggregator.options), SERVER_OPTIMISERS[optimiser.name](**optimiser.options)
        )


@dataclass(frozen=True)
class Experiment:
    """Everything a run is made from: two equal experiments give the same record."""

    general: General
    dataset: Section
    partition: Section
    model: Section
    training: Training
    objective: ObjectiveOptions
    evaluation: Evaluation
    server: ServerSection
    method: Section

    def to_dict(self) -> Values:
        """Return what its file holds: the keys outside the sections, and a dictionary for each section."""
        values = asdict(self.general)
        for field in fields(self)[1:]:
            section = getattr(self, field.name)
            match section:
                case Section():
                    values[field.name] = {"name": section.name, **section.options}
                case ServerSection():
                    values[field.name] = section.to_dict()
                case _:
                    values[field.name] = asdict(section)
        return values

    def to_toml(self) -> str:
        """Write the experiment as a file that `load_file` reads back."""
        return tomli_w.dumps(written(self.to_dict()))

    def with_general(self, **changes: str) -> Experiment:
        """Return a copy with some keys outside the sections replaced."""
        return replace(self, general=replace(self.general, **changes))  # type: ignore[arg-type]


NAMED_SECTIONS: dict[str, Registry[Any]] = {
    "dataset": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHODS,
}
SERVER: dict[str, Registry[Any]] = {"aggregator": AGGREGATORS, "optimiser": SERVER_OPTIMISERS}
"""The tables that `[server]` names rows of, in the order of `Server`."""
PLAIN_SECTIONS: dict[str, type] = {"training": Training, "objective": ObjectiveOptions, "evaluation": Evaluation}
COMMON: dict[str, type] = {"dataset": Dataset, "partition": Partition, "model": Architecture, "method": Method}
"""The options that all rows of a section's table share: they survive a change of name."""


def written(values: Values) -> Values:
    """Return values as TOML has them, which knows no missing value."""
    return {
        key: written(value) if isinstance(value, dict) else NONE if value is None else value
        for key, value in values.items()
    }


def flat(values: Mapping[str, Any]) -> Values:
    """Return values with their keys written `key` and `section.key`."""
    return {
        f"{key}.{inner}".removesuffix("."): leaf
        for key, value in values.items()
        for inner, leaf in (value.items() if isinstance(value, dict) else [("", value)])
    }

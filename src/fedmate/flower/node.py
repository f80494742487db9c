"""A node of a Flower app: which client it is, of which experiment, and where its data and its state lie.

Its node config says `partition-id`, and `site`: the file that describes the site (`fedmate.flower.site_data`).
Without `site` it takes its share of the experiment's own data set, as a virtual client does, or in a trial of a
deployment; it then keeps its state in `state` of the node config, or $FEDMATE_STATE, or a folder of the user's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, final

from fedmate.core import ClientData, Federation, Method, Tree, class_counts, make_key
from fedmate.data.paths import expand
from fedmate.errors import UserError
from fedmate.experiment.build import decide_device, make_method
from fedmate.experiment.config import Experiment
from fedmate.experiment.export import TrainedRun, describe
from fedmate.experiment.partitioning import make_federation, split_samples
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import NO_INPUTS
from fedmate.flower.client import Site, now
from fedmate.flower.client_state import ClientState, make_private
from fedmate.flower.messages import PublicError
from fedmate.flower.run_config import experiment_of
from fedmate.flower.site_data import load_data, read_site

VARIABLE = "FEDMATE_STATE"
"""The variable of the environment that names the folder for states."""

USUAL = "~/.local/state/fedmate"


class NodeError(PublicError, UserError):
    """What a node's config says does not fit the experiment."""


class SiteDataError(PublicError):
    """A site's own data cannot be used; why is for its own log, and does not leave it."""


@final
@dataclass(frozen=True)
class Plan:
    """What all clients of an experiment know.

    Attributes:
        experiment: with the device of this machine.
        method: with its setup.
        signature: what its networks read and answer.
        federation: who holds what; stand-ins where data lies with sites.
    """

    experiment: Experiment
    method: Method
    signature: Signature
    federation: Federation


@final
@dataclass(frozen=True)
class Holding:
    """What one client holds: its samples, what it tests on, and where it keeps its state."""

    data: ClientData
    test: ClientData
    state: Path


def open_site(run_config: Mapping[str, Any], node_config: Mapping[str, Any], token: str, folder: Path) -> Site:
    """Return the client that a node is.

    Args:
        run_config: which experiment it is asked for.
        node_config: what its owner says about it.
        token: what tells the run from others.
        folder: the app's, where experiments lie.

    Raises:
        UserError: the node cannot take part in this experiment.
        SiteDataError: its own data cannot be used.
    """
    plan = _plan(tuple(sorted(run_config.items())), folder)
    client = _client(node_config, len(plan.federation.clients))
    held = _own(plan, node_config) if plan.federation.at_sites else _share(plan, node_config, client)
    general = plan.experiment.general
    return Site(
        client,
        len(plan.federation.clients),
        plan.method,
        held.data,
        held.test,
        make_key(general.seed, general.device),
        ClientState(held.state, token, client),
        now,
        general.precision,
        describe=partial(_describe, plan, client, class_counts(held.data, len(plan.signature.class_names)).tolist()),
        reports_own=plan.federation.at_sites,
    )


def _describe(plan: Plan, client: int, counts: list[int], params: Tree, done: int) -> bytes:
    """Return a client's own model as `fedmate predict` reads it."""
    run = TrainedRun(plan.experiment, plan.method, plan.signature, done)
    return describe(run, params, client, counts).to_safetensors()


# Where a process answers one message after the other, as in a simulation, it reads everything once.
@lru_cache(maxsize=1)
def _plan(run_config: tuple[tuple[str, Any], ...], folder: Path) -> Plan:
    experiment = experiment_of(dict(run_config), folder)
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    dealt = split_samples(experiment, NO_INPUTS)
    signature = Signature.of(dealt.arrays, experiment.general.dtype)
    return Plan(experiment, make_method(experiment, signature), signature, make_federation(experiment, dealt))


def _client(node_config: Mapping[str, Any], clients: int) -> int:
    """Return the number of a node's client."""
    client, nodes = node_config.get("partition-id"), node_config.get("num-partitions", clients)
    if type(client) is not int or not 0 <= client < clients:
        raise NodeError(
            f"`partition-id` of the node config is {client!r}, but the experiment's clients are 0 to {clients - 1}; "
            "give each node a number of its own."
        )
    if nodes != clients:
        raise NodeError(
            f"`num-partitions` of the node config is {nodes!r}, but the experiment has {clients} clients; start "
            f"the node with `num-partitions={clients}`, or without it."
        )
    return client


def _own(plan: Plan, node_config: Mapping[str, Any]) -> Holding:
    """Read a site's own data."""
    file = _path(node_config, "site")
    if file is None:
        raise NodeError(
            "the data of this experiment lies with sites, but the node config has no `site`; name its file."
        )
    try:
        return _read_own(file, plan)
    except Exception as error:
        # Whatever is said about it may say something of it.
        raise SiteDataError("the site cannot use its own data, and its own log says why") from error


def _read_own(file: Path, plan: Plan) -> Holding:
    site = read_site(file)
    return Holding(*load_data(site, plan.experiment), site.state)


def _share(plan: Plan, node_config: Mapping[str, Any], client: int) -> Holding:
    """Take a client's share of the experiment's own data set."""
    if "site" in node_config:
        raise NodeError(
            f"the node config names a `site`, but the experiment is on `{plan.experiment.dataset.name}`, of which "
            "clients get a share; choose an experiment on `sites`, or start the node without it."
        )
    state = _path(node_config, "state") or expand(VARIABLE, os.environ.get(VARIABLE) or USUAL)
    make_private(state)
    return Holding(plan.federation.clients[client], plan.federation.test, state)


def _path(node_config: Mapping[str, Any], key: str) -> Path | None:
    value = node_config.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise UserError(f"`{key}` of the node config is {value!r}; give a path.")
    return expand(key, value)

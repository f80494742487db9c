"""A node of a Flower app: the client that it is, where its data and its state lie, and how it answers messages.

Its node config has `partition-id`, the number of its client, and `site`, the file that describes the site's own data
(`fedmate.flower.site_data`). Without `site` it takes its share of the experiment's data set, as a virtual client does;
it then keeps its state in `state` of the node config, in $FEDMATE_STATE, or in a folder of the user's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from fedmate import __version__, storage
from fedmate.core import ClientData, Federation, Method, Tree, make_key
from fedmate.data.sources import expand
from fedmate.errors import FedmateError, UserError
from fedmate.experiment.build import Signature, decide_device, make_method
from fedmate.experiment.export import TrainedRun, describe
from fedmate.experiment.inputs import NO_INPUTS, make_federation, split_samples
from fedmate.experiment.prepare import compose
from fedmate.experiment.sections import Experiment
from fedmate.flower.client import Client
from fedmate.flower.client_state import ClientState, make_private
from fedmate.flower.messages import (
    ErrorReply,
    Introduction,
    MessageError,
    PublicError,
    read_request,
    sentence,
    write_reply,
)
from fedmate.flower.run_config import request_of
from fedmate.flower.site_data import load_data, read_site

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

OpenClient: TypeAlias = Callable[[str], Client]
"""Returns the client that answers in an experiment, given the experiment's token."""

VARIABLE, DEFAULT = "FEDMATE_STATE", "~/.local/state/fedmate"
"""The environment's name for the folder for states, and the folder without it."""


class NodeError(PublicError, UserError):
    """A node config that does not fit the experiment."""


class SiteDataError(PublicError):
    """A site's own data cannot be used; the reason is for its own log, and does not leave it."""


def client_app(open_client: Callable[[Context, str], Client], *, is_virtual: bool = False) -> ClientApp:
    """Return the app that every node runs.

    Args:
        open_client: returns a node's client in an experiment; Flower's context identifies the node.
        is_virtual: whether it runs on the machine of the server, which may read every error.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def work(message: Message, context: Context) -> Message:
        content = answer(message.content, partial(open_client, context), is_virtual=is_virtual)
        return Message(content, reply_to=message)

    def introduce_node(message: Message, context: Context) -> Message:
        return Message(introduce(context.node_config), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    app.query()(introduce_node)
    return app


def answer(content: RecordDict, open_client: OpenClient, *, is_virtual: bool = False) -> RecordDict:
    """Return the answer to a request; an error becomes a sentence that may leave the site, without a traceback."""
    try:
        experiment, number, request = read_request(content)
        client = open_client(experiment)
        if client.number != number:
            raise MessageError(f"client {number} is asked, but this is client {client.number}")
        return write_reply(client.answer(request))
    except Exception as error:
        logging.getLogger("fedmate.site").error("a message could not be answered", exc_info=error)
        if isinstance(error, storage.BusyError):
            reason = "it is still at an earlier message"
        elif isinstance(error, PublicError) or is_virtual:
            kind = "" if isinstance(error, FedmateError) else f"{type(error).__name__}: "
            reason = (kind + sentence(str(error))).removesuffix(".")
        else:
            reason = f"it failed, and its own log says why ({type(error).__name__})"
        return write_reply(ErrorReply(reason))


def introduce(node_config: Mapping[str, Any]) -> RecordDict:
    """Return a node's introduction."""
    partition = node_config.get("partition-id")
    if type(partition) is not int or partition < 0:
        return write_reply(ErrorReply(f"a node's `partition-id` is {partition!r}, which is no client's number"))
    return write_reply(Introduction(partition, __version__))


class Plan(NamedTuple):
    """Facts that all clients of an experiment share; the federation has stand-ins where data lies with sites."""

    experiment: Experiment
    method: Method
    signature: Signature
    federation: Federation


def open_client(run_config: Mapping[str, Any], node_config: Mapping[str, Any], token: str, folder: Path) -> Client:
    """Return a node's client in a run, which has a token, of an experiment in the app's folder.

    Raises:
        UserError: the node cannot take part in this experiment.
        SiteDataError: its own data cannot be used.
    """
    plan = _plan(tuple(sorted(run_config.items())), folder)
    federation, general = plan.federation, plan.experiment.general
    number, clients = node_config.get("partition-id"), len(federation.clients)
    if type(number) is not int or not 0 <= number < clients:
        raise NodeError(
            f"`partition-id` of the node config is {number!r}, but the experiment's clients are 0 to {clients - 1}; "
            "give each node a number of its own."
        )
    if federation.at_sites:
        data, test, state = _own(plan, node_config)
    elif "site" in node_config:
        raise NodeError(
            f"the node config names a `site`, but the experiment is on `{plan.experiment.dataset.name}`, of which "
            "clients get a share; choose an experiment on `sites`, or start the node without it."
        )
    else:
        data, test = federation.clients[number], federation.test
        state = expand(str(node_config["state"])) if "state" in node_config else default_state()
        make_private(state)
    counts = plan.method.setup.class_counts(data).tolist()

    def own_model(params: Tree, done: int) -> bytes:
        run = TrainedRun(plan.experiment, plan.method, plan.signature, done)
        return describe(run, params, number, counts).to_safetensors()

    key, kept, at_sites = make_key(general.seed, general.device), ClientState(state, token, number), federation.at_sites
    return Client(
        number, clients, plan.method, data, test, key, kept, general.precision, describe=own_model, reports_own=at_sites
    )


# A process that answers one message after the other reads everything once.
@lru_cache(maxsize=1)
def _plan(run_config: tuple[tuple[str, Any], ...], folder: Path) -> Plan:
    (experiment,) = compose(request_of(dict(run_config), folder))
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    split = split_samples(experiment, NO_INPUTS)
    arrays, dtype = split.arrays, experiment.general.dtype
    signature = Signature(tuple(arrays.train.x.shape[1:]), arrays.class_names, arrays.normalisation, dtype)
    return Plan(experiment, make_method(experiment, signature), signature, make_federation(experiment, split))


def _own(plan: Plan, node_config: Mapping[str, Any]) -> tuple[ClientData, ClientData, Path]:
    """Read a site's own data."""
    if "site" not in node_config:
        raise NodeError(
            "the data of this experiment lies with sites, but the node config has no `site`; name its file."
        )
    try:
        site = read_site(expand(str(node_config["site"])))
        return *load_data(site, plan.experiment), site.state
    except Exception as error:
        # Any text about the data may reveal something of it.
        raise SiteDataError("the site cannot use its own data, and its own log says why") from error


def default_state() -> Path:
    """Return the folder for states where none is named."""
    return expand(os.environ.get(VARIABLE) or DEFAULT)

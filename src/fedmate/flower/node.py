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
from fedmate.core import ClientData, Federation, Method, Tree, class_counts, make_key
from fedmate.data.sources import expand
from fedmate.errors import FedmateError, UserError
from fedmate.experiment.build import decide_device, make_method
from fedmate.experiment.config import Experiment
from fedmate.experiment.export import TrainedRun, describe
from fedmate.experiment.partitioning import make_federation, split_samples
from fedmate.experiment.signature import Signature
from fedmate.experiment.user_inputs import NO_INPUTS
from fedmate.flower.client import Client
from fedmate.flower.client_state import ClientState, make_private
from fedmate.flower.messages import (
    Answer,
    ErrorReply,
    Introduction,
    MessageError,
    PublicError,
    read_request,
    sentence,
    write_answer,
    write_introduction,
)
from fedmate.flower.run_config import experiment_of
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


# -------------------- messages


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
    """Return the answer to a request; an error becomes a sentence, without a traceback."""
    try:
        return write_answer(_answer(content, open_client))
    except Exception as error:
        return write_answer(_error_reply(error, is_virtual))


def introduce(node_config: Mapping[str, Any]) -> RecordDict:
    """Return a node's introduction."""
    partition = node_config.get("partition-id")
    if type(partition) is not int or partition < 0:
        return write_introduction(ErrorReply(f"a node's `partition-id` is {partition!r}, which is no client's number"))
    return write_introduction(Introduction(partition, __version__))


def _answer(content: RecordDict, open_client: OpenClient) -> Answer:
    address, request = read_request(content)
    client = open_client(address.experiment)
    if client.number != address.client:
        raise MessageError(f"client {address.client} is asked, but this is client {client.number}")
    return client.answer(request)


def _error_reply(error: Exception, is_virtual: bool) -> ErrorReply:
    """Return a sentence that may leave the site; the traceback stays in the site's own log."""
    logging.getLogger("fedmate.site").error("a message could not be answered", exc_info=error)
    if isinstance(error, storage.BusyError):
        return ErrorReply("it is still at an earlier message")
    if isinstance(error, PublicError) or is_virtual:
        kind = "" if isinstance(error, FedmateError) else type(error).__name__
        text = sentence(str(error)).removesuffix(".") if str(error).strip() else type(error).__name__
        return ErrorReply(": ".join(dict.fromkeys(filter(None, [kind, text]))))
    return ErrorReply(f"it failed, and its own log says why ({type(error).__name__})")


# -------------------- a site's client


class Plan(NamedTuple):
    """Facts that all clients of an experiment share.

    Attributes:
        experiment: with the device of this machine.
        method: with its setup.
        signature: of its networks.
        federation: the clients' samples; stand-ins where data lies with sites.
    """

    experiment: Experiment
    method: Method
    signature: Signature
    federation: Federation


def open_client(run_config: Mapping[str, Any], node_config: Mapping[str, Any], token: str, folder: Path) -> Client:
    """Return a node's client.

    Args:
        run_config: names the experiment.
        node_config: set by the node's owner.
        token: of the run.
        folder: the app's, where experiments lie.

    Raises:
        UserError: the node cannot take part in this experiment.
        SiteDataError: its own data cannot be used.
    """
    plan = _plan(tuple(sorted(run_config.items())), folder)
    number = _number(node_config, len(plan.federation.clients))
    data, test, state = _own(plan, node_config) if plan.federation.at_sites else _share(plan, node_config, number)
    general = plan.experiment.general
    counts = class_counts(data, len(plan.signature.class_names)).tolist()

    def own_model(params: Tree, done: int) -> bytes:
        run = TrainedRun(plan.experiment, plan.method, plan.signature, done)
        return describe(run, params, number, counts).to_safetensors()

    return Client(
        number,
        len(plan.federation.clients),
        plan.method,
        data,
        test,
        make_key(general.seed, general.device),
        ClientState(state, token, number),
        general.precision,
        describe=own_model,
        reports_own=plan.federation.at_sites,
    )


# A process that answers one message after the other reads everything once.
@lru_cache(maxsize=1)
def _plan(run_config: tuple[tuple[str, Any], ...], folder: Path) -> Plan:
    experiment = experiment_of(dict(run_config), folder)
    experiment = experiment.with_general(device=decide_device(experiment.general.device))
    split = split_samples(experiment, NO_INPUTS)
    arrays, dtype = split.arrays, experiment.general.dtype
    signature = Signature(tuple(arrays.train.x.shape[1:]), arrays.class_names, arrays.normalisation, dtype)
    return Plan(experiment, make_method(experiment, signature), signature, make_federation(experiment, split))


def _number(node_config: Mapping[str, Any], clients: int) -> int:
    number = node_config.get("partition-id")
    if type(number) is not int or not 0 <= number < clients:
        raise NodeError(
            f"`partition-id` of the node config is {number!r}, but the experiment's clients are 0 to {clients - 1}; "
            "give each node a number of its own."
        )
    return number


def _own(plan: Plan, node_config: Mapping[str, Any]) -> tuple[ClientData, ClientData, Path]:
    """Read a site's own data."""
    file = _path(node_config, "site")
    if file is None:
        raise NodeError(
            "the data of this experiment lies with sites, but the node config has no `site`; name its file."
        )
    try:
        site = read_site(file)
        return *load_data(site, plan.experiment), site.state
    except Exception as error:
        # Any text about the data may reveal something of it.
        raise SiteDataError("the site cannot use its own data, and its own log says why") from error


def _share(plan: Plan, node_config: Mapping[str, Any], number: int) -> tuple[ClientData, ClientData, Path]:
    """Take a client's share of the experiment's own data set."""
    if "site" in node_config:
        raise NodeError(
            f"the node config names a `site`, but the experiment is on `{plan.experiment.dataset.name}`, of which "
            "clients get a share; choose an experiment on `sites`, or start the node without it."
        )
    state = _path(node_config, "state") or default_state()
    make_private(state)
    return plan.federation.clients[number], plan.federation.test, state


def default_state() -> Path:
    """Return the folder for states where none is named."""
    return expand(VARIABLE, os.environ.get(VARIABLE) or DEFAULT)


def _path(node_config: Mapping[str, Any], key: str) -> Path | None:
    value = node_config.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise UserError(f"`{key}` of the node config is {value!r}; give a path.")
    return expand(key, value)

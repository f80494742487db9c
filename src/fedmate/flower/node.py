"""A node of a Flower app: the client that it is, where its data and its state lie, and how it answers messages.

Its node config has `partition-id`, the number of its client, and `site`, the file that describes the site's own data
(`fedmate.flower.site_data`). Without `site` it takes its share of the experiment's data set, as a virtual client does;
it then keeps its state in `state` of the node config, in $FEDMATE_STATE, or in a folder of the user's.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmate import __version__, storage
from fedmate.core import ClientData, EvaluationData, Tree
from fedmate.data.sources import expand
from fedmate.errors import FedmateError, UserError, nearest
from fedmate.experiment.build import Built, build
from fedmate.experiment.config import ConfigSource, load_file, parse_set
from fedmate.experiment.export import TrainedRun, describe
from fedmate.experiment.inputs import UserInputs
from fedmate.experiment.prepare import Request, compose
from fedmate.experiment.sections import Experiment
from fedmate.flower.client import Client, ClientState, make_private
from fedmate.flower.messages import (
    ErrorReply,
    Introduction,
    PublicError,
    read_request,
    sentence,
    write_reply,
)
from fedmate.flower.site_data import load_data, read_site

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

SOURCE = "`set` of the run config"

WORD = re.compile(r"""(?:[^\s"'\[\]]|"[^"]*"|'[^']*'|\[[^\]]*\])+""")
"""One assignment in `set` of the run config: without blanks, except in quotation marks and brackets."""


# -------------------- messages


def client_app(open_client: Callable[[Context, str], Client], *, is_virtual: bool = False) -> ClientApp:
    """Return the app that every node runs; `is_virtual` on the machine of the server, which may read every error."""
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


def answer(content: RecordDict, open_client: Callable[[str], Client], *, is_virtual: bool = False) -> RecordDict:
    """Return the answer to a request; an error becomes a sentence that may leave the site, without a traceback."""
    try:
        experiment, number, request = read_request(content)
        client = open_client(experiment)
        if client.number != number:
            raise PublicError(f"client {number} is asked, but this is client {client.number}")
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


# -------------------- the client of a node


def request_of(run_config: Mapping[str, Any], folder: Path) -> Request:
    """Return the run that a run config asks for: an experiment in the app's folder, with changes."""
    known = sorted(path.stem for path in folder.glob("*.toml") if path.name != "pyproject.toml")
    name = str(run_config["experiment"]).removesuffix(".toml")
    if name not in known:
        raise UserError(
            f"`experiment` of the run config is `{name}`, which the app does not have; {nearest(name, known)}"
        )
    base = load_file(folder / f"{name}.toml")._replace(source=f"{name}.toml")
    text = str(run_config["set"])
    if WORD.sub("", text).strip():
        raise UserError(f"{SOURCE} is `{text}`, where a quotation mark or bracket stands alone; close it.")
    values = dict(parse_set(WORD.findall(text), "set").values)
    # Zero leaves it to the experiment.
    values |= {key.replace("-", "_"): run_config[key] for key in ("min-clients", "patience") if run_config[key]}
    settings = ConfigSource(SOURCE, {**values, "backend": "flower"})
    return Request(base=base, settings=settings, inputs=UserInputs(is_deployed=True))


def open_client(run_config: Mapping[str, Any], node_config: Mapping[str, Any], token: str, folder: Path) -> Client:
    """Return a node's client in a run, which has a token, of an experiment in the app's folder."""
    built = _built(tuple(sorted(run_config.items())), folder)
    federation, number, clients = built.federation, node_config.get("partition-id"), len(built.federation.clients)
    if type(number) is not int or not 0 <= number < clients:
        raise PublicError(
            f"`partition-id` of the node config is {number!r}, but the experiment's clients are 0 to {clients - 1}; "
            "give each node a number of its own."
        )
    if federation.at_sites:
        data, test, state = _own(built.experiment, node_config)
        tests = EvaluationData(None, test)
    elif "site" in node_config:
        raise PublicError(
            f"the node config names a `site`, but the experiment is on `{built.experiment.dataset.name}`, of which "
            "clients get a share; choose an experiment on `sites`, or start the node without it."
        )
    else:
        data, tests = federation.clients[number], federation.tests(number)
        state = expand(str(node_config["state"])) if "state" in node_config else default_state()
        make_private(state)
    counts = built.method.setup.class_counts(data).tolist()

    def own_model(params: Tree, done: int) -> bytes:
        run = TrainedRun(built.experiment, built.method, built.signature, done)
        return describe(run, params, number, counts).to_safetensors()

    return Client(number, built.backend, ClientState(state, token, number), data, tests, own_model)


# A process that answers one message after the other reads everything once.
@lru_cache(maxsize=1)
def _built(run_config: tuple[tuple[str, Any], ...], folder: Path) -> Built:
    """Return what all clients of an experiment share; the federation has stand-ins where data lies with sites."""
    request = request_of(dict(run_config), folder)
    (experiment,) = compose(request)
    return build(experiment, request.inputs)


def _own(experiment: Experiment, node_config: Mapping[str, Any]) -> tuple[ClientData, ClientData, Path]:
    if "site" not in node_config:
        raise PublicError("the experiment is on data of sites, but the node config has no `site`; name its file.")
    try:
        site = read_site(expand(str(node_config["site"])))
        return *load_data(site, experiment), site.state
    except Exception as error:
        # Any text about the data may reveal something of it.
        raise PublicError("the site cannot use its own data, and its own log says why") from error


def default_state() -> Path:
    """Return the folder for states where none is named."""
    return expand(os.environ.get("FEDMATE_STATE") or "~/.local/state/fedmate")

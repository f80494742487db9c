"""What a node does with a message: it answers, whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fedmate import storage
from fedmate.errors import FedmateError
from fedmate.flower.client import Site
from fedmate.flower.messages import Answer, ErrorReply, PublicError
from fedmate.flower.wire import (
    Introduction,
    WireError,
    check_query,
    read_request,
    sentence,
    write_answer,
    write_introduction,
)

if TYPE_CHECKING:
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp

Opener: TypeAlias = Callable[[str], Site]
"""Returns the site that answers for an experiment, which it is given the token of."""


def client_app(open_site: Callable[[Context, str], Site], *, is_virtual: bool = False) -> ClientApp:
    """Return the app that every node runs.

    Args:
        open_site: returns the site of a node for an experiment; Flower's context tells the node.
        is_virtual: whether it runs on the machine of the server, which may read every error.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    def work(message: Message, context: Context) -> Message:
        content = answer(message.content, lambda token: open_site(context, token), is_virtual=is_virtual)
        return Message(content, reply_to=message)

    def tell(message: Message, context: Context) -> Message:
        return Message(introduce(message.content, context.node_config), reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    app.query()(tell)
    return app


def answer(content: RecordDict, open_site: Opener, *, is_virtual: bool = False) -> RecordDict:
    """Return the answer to a request; an error becomes a sentence, without a traceback."""
    try:
        return write_answer(_answer(content, open_site))
    except Exception as error:
        return write_answer(_error_reply(error, is_virtual))


def introduce(content: RecordDict, node_config: Mapping[str, Any]) -> RecordDict:
    """Return what a node says about itself."""
    try:
        check_query(content)
        return write_introduction(_introduction(node_config))
    except Exception as error:
        return write_introduction(_error_reply(error, is_virtual=False))


def _answer(content: RecordDict, open_site: Opener) -> Answer:
    order = read_request(content)
    site = open_site(order.experiment)
    if site.client != order.client:
        raise WireError(f"client {order.client} is asked, but this is client {site.client}")
    return site.answer(order.request)


def _introduction(node_config: Mapping[str, Any]) -> Introduction:
    from fedmate import __version__

    partition = node_config.get("partition-id")
    if type(partition) is not int or partition < 0:
        raise WireError(f"a node's `partition-id` is {partition!r}, which is no client's number")
    return Introduction(partition, __version__)


def _error_reply(error: Exception, is_virtual: bool) -> ErrorReply:
    """Say what went wrong in a sentence that may leave the site; the whole of it stays in the site's own log."""
    logging.getLogger("fedmate.site").error("a message could not be answered", exc_info=error)
    if isinstance(error, storage.BusyError):
        return ErrorReply("it is still at an earlier message")
    if isinstance(error, PublicError) or is_virtual:
        kind = "" if isinstance(error, FedmateError) else type(error).__name__
        said = sentence(str(error)).removesuffix(".") if str(error).strip() else type(error).__name__
        return ErrorReply(": ".join(dict.fromkeys(filter(None, [kind, said]))))
    return ErrorReply(f"it failed, and its own log says why ({type(error).__name__})")

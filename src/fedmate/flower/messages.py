"""What crosses between a server and its sites, whoever carries it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from fedmate.errors import FedmateError

Leaves: TypeAlias = dict[str, Tensor]
"""A tree as it travels: its leaves by path."""

Metrics: TypeAlias = dict[str, list[float]]
"""Numbers that a site reports: `losses` before and after training, `valid`, and the accuracies of its views by name."""

Kind: TypeAlias = Literal["train", "view"]


class Request(NamedTuple):
    """What a server asks of a client.

    Attributes:
        kind: `train`: take part in a round. `view`: say how good the model is that this download makes.
        round: t, from 0.
        evaluate: whether to evaluate what training leads to.
        download: the parts that cross, by path.
    """

    kind: Kind
    round: int
    evaluate: bool
    download: Leaves


class Answer(NamedTuple):
    """What a client answers.

    Attributes:
        upload: the parts that cross, by path; nothing for a view.
        metrics: what it reports.
    """

    upload: Leaves
    metrics: Metrics


class ErrorReply(NamedTuple):
    """Why there is no answer: a sentence without its end."""

    reason: str


Reply: TypeAlias = Answer | ErrorReply


class PublicError(FedmateError):
    """Why there is no answer, in words that may leave the site: they say nothing of its data, its files or its user."""


class Transport(ABC):
    """Brings requests to clients and answers back."""

    @abstractmethod
    def send(self, requests: Mapping[int, Request], wanted: int) -> dict[int, Reply]:
        """Return what each client answered; one that did not has a error, and none is missing.

        Args:
            requests: by client.
            wanted: how many answers are needed: clients that are away are waited for until so many are there.
        """

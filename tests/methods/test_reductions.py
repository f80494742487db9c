"""Settings that make one method another, bit for bit, on a network with BatchNorm and dropout."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import pytest
from tests.methods.small import CLIENTS, normed, run
from torch.testing import assert_close

from fedmate.core import BufferPolicy, Method, select
from fedmate.methods import METHODS

POLICIES: tuple[BufferPolicy, ...] = get_args(BufferPolicy)


class Reduction(NamedTuple):
    """A method with options that is another method.

    Attributes:
        views: the views that are the same.
        inside: the part of a client's state that is the other method's state, if not all of it.
    """

    ours: str
    options: dict[str, Any]
    theirs: str
    views: tuple[str, ...] = ("pre", "post", "global")
    inside: str = ""


REDUCTIONS = [
    Reduction("ditto", {"proximal_weight": 0.7}, "fedavg", ("global",)),
    Reduction("ditto", {"proximal_weight": 0.0}, "local", ("pre", "post"), "personal_model"),
    Reduction("fedfa", {"anchor_weight": 0.0, "calibration_learning_rate": 0.0}, "fedavg"),
    Reduction("fedper", {"personal_layers": 0}, "fedavg"),
    Reduction("fedper", {"personal_layers": 7}, "local", ("pre", "post")),
    Reduction("fedproto", {"prototype_weight": 0.0}, "local", ("pre", "post")),
    Reduction("fedprox", {"proximal_weight": 0.0}, "fedavg"),
    Reduction("fedrod", {"balanced": False}, "fedavg", ("global",)),
    Reduction("moon", {"contrastive_weight": 0.0}, "fedavg", inside="previous_model"),
]
# Statistics are shared even when no layer is.
CASES = [
    (case, policy)
    for case in REDUCTIONS
    for policy in POLICIES
    if (case[1], policy) != ({"personal_layers": 7}, "shared")
]


def make(name: str, buffers: BufferPolicy, **options: Any) -> Method:
    return METHODS[name](setup=normed(buffers), **options)


@pytest.mark.parametrize(("case", "buffers"), CASES)
def test_it_is_the_other_method(case: Reduction, buffers: BufferPolicy) -> None:
    ours, mine = run(make(case.ours, buffers, **case.options))
    theirs, other = run(make(case.theirs, buffers))
    for client, reference in zip(ours.clients, theirs.clients, strict=True):
        own = client[case.inside] if case.inside else client
        assert_close(select(own, reference), reference, rtol=0, atol=0)
    for a, b in zip(mine, other, strict=True):
        assert_close(select(a.server, b.server), b.server, rtol=0, atol=0)
        assert_close([a.views[view] for view in case.views], [b.views[view] for view in case.views], rtol=0, atol=0)


@pytest.mark.parametrize("buffers", POLICIES)
def test_fedavg_with_one_client_is_local_training(buffers: BufferPolicy) -> None:
    average, ours = run(make("fedavg", buffers), CLIENTS[:1], [(0,)] * 3)
    local, theirs = run(make("local", buffers), CLIENTS[:1], [(0,)] * 3)
    own = {**ours[-1].server, **(average.clients[0] if buffers == "private" else {})}
    assert_close(own, local.clients[0], rtol=0, atol=0)
    for mine, other in zip(ours, theirs, strict=True):
        assert_close([mine.views[view] for view in ("pre", "post")], [other.views[v] for v in ("pre", "post")])
        assert mine.reports[0].loss_after == other.reports[0].loss_after

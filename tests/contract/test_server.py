"""Each aggregator and optimiser keeps what a method promises; `test_crosses.py` runs them with every method."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.contract import test_methods as contract
from tests.contract.conftest import METHOD_NAMES
from tests.installed import installed_example

from fedmate.core import Server
from fedmate.server import AGGREGATORS, SERVER_OPTIMISERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.conftest import Lab, MakeLab

    from fedmate.core import Tree

with installed_example():
    OPTIMISERS, COMBINING = SERVER_OPTIMISERS.names(), AGGREGATORS.names()
ALL = [*itertools.product(METHOD_NAMES, COMBINING, OPTIMISERS)]
SOME = [
    (METHOD_NAMES[5 * i % len(METHOD_NAMES)], COMBINING[i % len(COMBINING)], OPTIMISERS[i % len(OPTIMISERS)])
    for i in range(max(len(COMBINING), len(OPTIMISERS)))
]
"""Each aggregator and optimiser once, with some method; the variable ALL_CROSSES asks for all of them with each."""


@pytest.fixture(params=ALL if os.environ.get("ALL_CROSSES") else SOME, ids="-".join)
def stepped(request: pytest.FixtureRequest, make_lab: MakeLab) -> Lab:
    """A method with an aggregator and an optimiser."""
    method, aggregator, optimiser = request.param
    lab = make_lab(method, "shared")
    server = Server(AGGREGATORS[aggregator](), SERVER_OPTIMISERS[optimiser]())
    return replace(lab, method=replace(lab.method, setup=replace(lab.method.setup, server=server)))


def test_the_contract_of_aggregation_holds(stepped: Lab, spec: Callable[[Tree], Tree]) -> None:
    contract.test_trees_keep_their_structure_from_round_to_round(stepped, spec)
    contract.test_the_order_of_clients_does_not_matter_to_aggregate(stepped)
    contract.test_who_is_not_valid_is_as_good_as_absent(stepped)
    contract.test_without_a_valid_client_the_server_stays(stepped)
    contract.test_nothing_in_a_round_is_read_back_to_the_host(stepped)
    contract.test_nothing_in_a_round_is_made_of_numbers(stepped)

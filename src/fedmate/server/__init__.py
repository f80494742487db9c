"""The server's step: tables of how uploads are combined, and of how the server's model moves."""

from fedmate.core.options import Registry
from fedmate.core.server import Aggregator, ServerOptimiser

__all__ = ["AGGREGATORS", "SERVER_OPTIMISERS"]

AGGREGATORS: Registry[type[Aggregator]] = Registry(
    "aggregators",
    {"mean": "fedmate.core.server:Mean", "median": "fedmate.server.robust:Median"},
)

SERVER_OPTIMISERS: Registry[type[ServerOptimiser]] = Registry(
    "server_optimisers",
    {
        "sgd": "fedmate.core.server:ServerSGD",
        "nesterov": "fedmate.server.optimisers:Nesterov",
        "adagrad": "fedmate.server.optimisers:Adagrad",
        "adam": "fedmate.server.optimisers:Adam",
        "yogi": "fedmate.server.optimisers:Yogi",
    },
)

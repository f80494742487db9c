"""The language methods are written in. It knows tensors, and nothing of files, tables or machines."""

from fedmate.core.data import (
    PER_CLIENT,
    Batch,
    ClientData,
    Federation,
    batches,
    class_means,
    client_data,
    num_samples,
    pad,
    rows_of,
    stack_clients,
)
from fedmate.core.execution import remembered_features, unmapped
from fedmate.core.frozen import classifier_loss, frozen_batches
from fedmate.core.layers import BufferPolicy
from fedmate.core.local import SGD, Objective, fit, gradient, loop, supervised_loss
from fedmate.core.method import (
    BOOKKEEPING,
    LocalResult,
    Method,
    Presets,
    Setup,
    Training,
    Wire,
)
from fedmate.core.metrics import class_accuracies, mean_loss
from fedmate.core.model import MODEL_PARTS, Model
from fedmate.core.objective import ObjectiveOptions, estimate_prior, prior_adjustment
from fedmate.core.options import Limits, option
from fedmate.core.random import fold, make_key, normal, permutation, random_bits, uniform
from fedmate.core.server import TRAINED, Aggregator, Server, ServerOptimiser
from fedmate.core.source import Augmentation, Source
from fedmate.core.task import Instances, Task, adjusted, cross_entropy
from fedmate.core.tree import (
    Tree,
    all_finite,
    flatten,
    leaves,
    num_bytes,
    select,
    stack,
    tree_map,
    unflatten,
    unstack,
    weighted_mean,
    where,
)

__all__ = [
    "BOOKKEEPING",
    "MODEL_PARTS",
    "PER_CLIENT",
    "SGD",
    "TRAINED",
    "Aggregator",
    "Augmentation",
    "Batch",
    "BufferPolicy",
    "ClientData",
    "Federation",
    "Instances",
    "Limits",
    "LocalResult",
    "Method",
    "Model",
    "Objective",
    "ObjectiveOptions",
    "Presets",
    "Server",
    "ServerOptimiser",
    "Setup",
    "Source",
    "Task",
    "Training",
    "Tree",
    "Wire",
    "adjusted",
    "all_finite",
    "batches",
    "class_accuracies",
    "class_means",
    "classifier_loss",
    "client_data",
    "cross_entropy",
    "estimate_prior",
    "fit",
    "flatten",
    "fold",
    "frozen_batches",
    "gradient",
    "leaves",
    "loop",
    "make_key",
    "mean_loss",
    "normal",
    "num_bytes",
    "num_samples",
    "option",
    "pad",
    "permutation",
    "prior_adjustment",
    "random_bits",
    "remembered_features",
    "rows_of",
    "select",
    "stack",
    "stack_clients",
    "supervised_loss",
    "tree_map",
    "unflatten",
    "uniform",
    "unmapped",
    "unstack",
    "weighted_mean",
    "where",
]

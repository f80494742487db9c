"""FedBABU: a round and its fine-tuning by hand, and a classifier that no client trains."""

from __future__ import annotations

from functools import partial

import torch
from tests.methods.small import (
    DATA,
    START,
    as_clients,
    as_tree,
    descend,
    linear_setup,
    mean,
    normed,
    run,
    slopes,
)
from torch.testing import assert_close

from fedmate.core import make_key
from fedmate.methods.fedbabu import FedBABU


def test_a_round_and_the_models_made_of_it_by_hand() -> None:
    """Steps on w alone; then a copy of the average is fine-tuned at another rate, all of it or its v alone."""
    average = mean([descend(START, partial(slopes, x=x, y=y), "w") for x, y in DATA])
    x, y = DATA[1]
    tuned, alone = (descend(average, partial(slopes, x=x, y=y), names, rate=0.2) for names in ("wv", "v"))

    method, data = FedBABU(setup=linear_setup(), tuning_epochs=2, tuning_learning_rate=0.2), as_clients()
    backend, results = run(method, data, [(0, 1)], evaluate=False)
    assert_close(results[0].server, {**as_tree(average), "buffers": {}}, rtol=0, atol=1e-12)
    client, download = backend.clients[1], method.download(results[0].server, torch.tensor(1))
    pre = method.personalise(method.personal_params(client, download), client, download, data[1], make_key(1))
    assert_close(pre, {**as_tree(tuned), "buffers": {}}, rtol=0, atol=1e-12)
    views = method.extra_views(client, download, data[1], make_key(1))
    assert_close(views, {"classifier_tuned": {**as_tree(alone), "buffers": {}}}, rtol=0, atol=1e-12)


def test_the_classifier_is_the_same_bits_all_over_training() -> None:
    """Weight decay and momentum are on, and models are tuned after every round."""
    setup = normed()
    backend, results = run(FedBABU(setup=setup))
    initial = setup.model.init_params()
    for state in (*backend.clients, *(result.server for result in results)):
        assert_close(state["classifier"], initial["classifier"], rtol=0, atol=0)
    assert not torch.equal(results[-1].server["extractor"]["0.weight"], initial["extractor"]["0.weight"])

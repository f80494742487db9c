"""FedRep: two rounds by hand, in two phases each."""

from __future__ import annotations

from functools import partial

from tests.methods.small import DATA, START, as_clients, as_tree, descend, linear_setup, mean, run, slopes
from torch.testing import assert_close

from fedmate.methods.fedrep import FedRep


def test_two_rounds_by_hand() -> None:
    """First three steps on v at its own rate, then two on w with the new v; each phase starts with velocity 0."""
    sent = [START, START]
    for _ in range(2):
        w, trained = mean(sent)["w"], []
        for p, (x, y) in zip(sent, DATA, strict=True):
            slope = partial(slopes, x=x, y=y)
            trained.append(descend(descend({**p, "w": w}, slope, "v", rate=0.4, steps=3), slope, "w"))
        sent = trained
    method = FedRep(setup=linear_setup(), classifier_epochs=3, classifier_learning_rate=0.4)
    backend, results = run(method, as_clients(), [(0, 1)] * 2, evaluate=False)
    assert_close(results[-1].server, {**as_tree({"w": mean(sent)["w"]}), "buffers": {}}, rtol=0, atol=1e-12)
    for client, p in zip(backend.clients, sent, strict=True):
        assert_close(client["classifier"], as_tree(p)["classifier"], rtol=0, atol=1e-12)

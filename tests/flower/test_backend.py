"""The back end `flower` with clients in this process: the reference's numbers, and replies that spoil no round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.flower.loop import TOKEN, Loop, built, one_round, over, start
from torch import Tensor
from torch.testing import assert_close

from fedmate.backends.base import Backend, Round, RoundResult
from fedmate.backends.sequential import Sequential
from fedmate.core import flatten, make_key
from fedmate.core.tree import pack, unpack
from fedmate.experiment.build import Built
from fedmate.flower.messages import Answer, ErrorReply, Reply

PARTICIPANTS = ((0, 1, 3), (1, 2), (0, 2, 3))


def reference(ready: Built) -> Sequential:
    return Sequential(ready.method, ready.federation, make_key(3))


def rounds(backend: Backend, ready: Built, evaluate: bool = False) -> list[RoundResult]:
    server, results = start(ready), list[RoundResult]()
    for t, participants in enumerate(PARTICIPANTS):
        # Evaluation takes most of the time, and the last one shows the result of every round.
        is_evaluated = evaluate and t == len(PARTICIPANTS) - 1
        results.append(backend.run_round(server, Round(t, participants, is_evaluated)))
        server = results[-1].server
    return results


@pytest.mark.parametrize("method", ["fedmate_plus", "scaffold", "fedbabu"])
def test_clients_give_the_numbers_of_the_reference(method: str, tmp_path: Path) -> None:
    """Server, losses, bytes and accuracies, to the last bit."""
    ready = built(method)
    expected = rounds(reference(ready), ready, evaluate=True)
    found = rounds(over(Loop(ready, tmp_path), ready), ready, evaluate=True)
    for one, other in zip(found, expected, strict=True):
        assert_close(flatten(one.server), flatten(other.server), rtol=0, atol=0)
        assert one.reports == other.reports
        assert one.views.keys() == other.views.keys()
        for name, view in other.views.items():
            assert (one.views[name] is None) == (view is None)
            if view is not None:
                assert_close(one.views[name].tests, view.tests, rtol=0, atol=0)  # type: ignore[union-attr]


def test_messages_hold_what_wire_names_and_the_log_has_what_left(tmp_path: Path) -> None:
    ready = built("fedmate")
    transport = Loop(ready, tmp_path)
    results = rounds(over(transport, ready), ready)
    # FedMate's extractor does not cross in every round.
    assert len({ready.method.wire(t) for t in range(3)}) > 1
    for (_, request), answer in zip(transport.requests, transport.answers, strict=True):
        wire = ready.method.wire(request.round)
        assert {path.partition("/")[0] for path in request.download} == set(wire.down)
        assert {path.partition("/")[0] for path in answer.upload} == set(wire.up)
        assert answer.metrics.keys() == {"losses", "valid"}
    # Neither samples nor private state crosses under any name.
    sent_bytes = b"".join(pack(dict(answer.upload), {}) for answer in transport.answers)
    public = frozenset[str]().union(*(ready.method.wire(t).up for t in range(3)))
    private = [image.numpy().tobytes() for data in ready.federation.clients for image in data.x]
    for path in tmp_path.rglob("state.safetensors"):
        leaves = unpack(path.read_bytes())[0].items()
        large = [(name, leaf) for name, leaf in leaves if leaf.numel() > 4 and leaf.any()]
        private += [leaf.numpy().tobytes() for name, leaf in large if name.split("/")[1] not in public]
    assert not [needle for needle in private if needle in sent_bytes]
    rows = (tmp_path / TOKEN[:16] / "1" / "audit.csv").read_text().splitlines()[1:]
    sent = [report.up for result in results for report in result.reports if report.client == 1]
    logged = [(part, int(size)) for _, _, part, size in (row.split(",") for row in rows)]
    # Two losses and whether it counts, of eight bytes each.
    assert [size for part, size in logged if part == "metrics"] == [3 * 8] * len(sent)
    assert sum(size for part, size in logged if part != "metrics") == sum(sum(up.values()) for up in sent)


# -------------------- replies that are refused


def with_leaf(path: str, function: Callable[[Tensor], Tensor]) -> Callable[[Answer], Answer]:
    return lambda answer: answer._replace(upload={**answer.upload, path: function(answer.upload[path])})


def with_metrics(**changes: list[float] | None) -> Callable[[Answer], Answer]:
    def change(answer: Answer) -> Answer:
        metrics = {**answer.metrics, **changes}
        return answer._replace(metrics={name: values for name, values in metrics.items() if values is not None})

    return change


HOSTILE: dict[str, tuple[Callable[[Answer], Reply], str]] = {
    "NaN": (with_leaf("classifier/bias", lambda leaf: leaf * torch.nan), "`classifier/bias` is not finite"),
    "shape": (with_leaf("classifier/bias", lambda leaf: leaf[:3]), "`classifier/bias` is float64 of shape (3,)"),
    "dtype": (with_leaf("classifier/bias", lambda leaf: leaf.float()), "`classifier/bias` is float32"),
    "counts": (with_leaf("class_counts", lambda leaf: leaf - 10**6), "`class_counts` is negative"),
    "extra": (lambda answer: answer._replace(upload={**answer.upload, "more": torch.ones(1)}), "parts (more)"),
    "missing": (lambda answer: answer._replace(upload={}), "expected parts"),
    "silence": (lambda _: ErrorReply("no answer in 60 s"), "no answer in 60 s"),
    "no losses": (with_metrics(losses=None), "it reports no losses"),
    "not valid": (with_metrics(valid=[0.0]), "not finite"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_upload_is_left_out_and_named_and_the_others_count(kind: str, tmp_path: Path) -> None:
    (change, reason), ready = HOSTILE[kind], built("fedmate")
    transport = Loop(ready, tmp_path)
    transport.change = lambda client, answer: change(answer) if client == 1 else answer
    backend = over(transport, ready)
    found, alone = one_round(backend, ready, 0, 1, 3), one_round(reference(ready), ready, 0, 3)
    assert [report.valid for report in found.reports] == [True, False, True]
    assert reason in backend.reasons[1]
    servers = [{**result.server, "diagnostics": {}} for result in (found, alone)]
    assert_close(servers[0], servers[1], rtol=0, atol=1e-12)


def test_too_few_answers_ask_again_and_then_stop(tmp_path: Path) -> None:
    ready, asked = built("fedavg"), list[int]()

    def change(client: int, answer: Answer) -> Reply:
        asked.append(client)
        # Client 0 alone is heard the first time; then all are.
        return answer if client == 0 or len(asked) > 3 else ErrorReply("away")

    transport = Loop(ready, tmp_path)
    transport.change = change
    backend = over(transport, ready, min_clients=2)
    found = one_round(backend, ready, 0, 1, 3)
    assert sorted(asked) == [0, 1, 1, 3, 3]
    # One of the two has answered: a second attempt waits for one more.
    assert transport.wanted == [2, 1]
    # Clients that are asked twice begin from the same state twice.
    expected = one_round(reference(ready), ready, 0, 1, 3)
    assert_close(flatten(found.server), flatten(expected.server), rtol=0, atol=0)

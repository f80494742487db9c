from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from fedmate.bench.case import Case, make_federation, make_method
from fedmate.bench.suites import CLIENTS, COMPARED, SUITES, Choice, make_suite
from fedmate.core import Augmentation, leaves
from fedmate.errors import UserError

SMALL = Case(network="digits_cnn", clients=3, samples=7, batch_size=4, epochs=2)


def test_clients_share_one_source_of_bytes() -> None:
    federation = make_federation(SMALL)
    source = federation.test.source
    assert all(data.source is source for data in federation.clients)
    assert (source.samples.dtype, source.samples.shape[1:]) == (torch.uint8, (1, 8, 8))
    rows = torch.cat([data.rows for data in federation.clients])
    assert sorted(rows.tolist()) == list(range(21))
    assert not {*rows.tolist()} & {*federation.test.rows.tolist()}
    x = torch.cat([data.x for data in federation.clients])
    assert abs(float(x.mean())) < 0.1
    assert float(x.std()) == pytest.approx(1, abs=0.1)


def test_images_are_varied_if_asked() -> None:
    assert make_federation(SMALL).test.source.augmentation == Augmentation()
    varied = make_federation(replace(SMALL, augment=True)).test.source.augmentation
    assert varied == Augmentation(crop=4, flip=True)


def test_everybody_starts_from_the_same_network() -> None:
    torch.manual_seed(5)
    one = make_method(SMALL).setup.model.init_params()
    other = make_method(replace(SMALL, method="fedmate")).setup.model.init_params()
    assert all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


def test_the_work_of_a_round() -> None:
    assert SMALL.training_samples == 3 * 7 * 2
    assert SMALL.steps == 3 * 2 * 2
    on_gpu = replace(SMALL, device="cuda")
    assert replace(on_gpu, runner="jax", precision="tf32").work == on_gpu.work
    assert on_gpu.work != SMALL.work
    assert replace(SMALL, samples=8).work != SMALL.work


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"client": 3}, "`client` in here is no property of a case; did you mean `clients`?"),
        ({"clients": 0}, "`clients` is 0; set it to a finite number at least 1."),
        ({"clients": "many"}, "`clients` in here is the string 'many'; it must be a whole number."),
        ({"network": "digits"}, "`network`: `digits` is not among the models; did you mean `digits_cnn`?"),
        ({"network": "given"}, "`network` is `given`, which comes from Python and cannot be named; choose another."),
        ({"method": "fedmat"}, "`method`: `fedmat` is not among the methods; did you mean `fedmate`?"),
        ({"precision": "tf23"}, "`precision` in here is the string 'tf23'; did you mean `tf32`?"),
        ({"precision": "bf16"}, "`precision` is `bf16`, which is for GPUs; leave it out on a CPU."),
    ],
)
def test_nonsense_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        SMALL.changed(values, "here")
    assert str(caught.value) == sentence


# -------------------- suites


@pytest.mark.parametrize("name", [*SUITES, "all"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_of_a_suite_differ_and_comparable_ones_stand_together(name: str, device: str) -> None:
    cases = make_suite(name, device, Choice())
    assert cases
    assert len({*cases}) == len(cases)
    assert {case.device for case in cases} == {device}
    works = [case.work for case in cases]
    changes = sum(one != other for one, other in itertools.pairwise(works))
    assert changes == len({*works}) - 1


def test_growth_with_clients_is_measured_for_every_back_end() -> None:
    cases = make_suite("clients", "cuda", Choice())
    sizes = {case.clients for case in cases if (case.runner, case.method) == ("vectorised", "fedavg")}
    assert sizes == {*CLIENTS}
    assert max(case.clients for case in cases if case.runner in ("sequential", "plain_loop")) == 100
    on_cpu = make_suite("clients", "cpu", Choice())
    assert max(case.clients for case in on_cpu if case.runner == "plain_loop") == 1000


def test_rivals_meet_all_compared_methods() -> None:
    cases = make_suite("rivals", "cpu", Choice())
    assert {case.method for case in cases if case.runner == "plain_loop"} == {*COMPARED}
    assert {case.runner for case in cases} == {"auto", "plain_loop", "jax", "flower", "pfl"}
    assert {case.runner for case in make_suite("rivals", "cuda", Choice())} == {"auto", "plain_loop", "jax", "pfl"}


def test_choices_replace_what_a_suite_has() -> None:
    choice = Choice(["local"], ["sequential", "vectorised"], ["tf32", "bf16"], {"clients": 2, "network": "mlp"})
    cases = make_suite("quick", "cuda", choice)
    assert len(cases) == 4
    assert {(case.method, case.clients, case.network) for case in cases} == {("local", 2, "mlp")}
    assert {(case.runner, case.precision) for case in cases} == {
        (runner, precision) for runner in ("sequential", "vectorised") for precision in ("tf32", "bf16")
    }


def test_precision_is_that_of_an_experiment() -> None:
    assert {case.precision for case in make_suite("all", "cpu", Choice())} == {"strict"}
    assert {case.precision for case in make_suite("all", "cuda", Choice())} == {"tf32"}
    chosen = make_suite("quick", "cuda", Choice(precisions=["strict", "bf16"]))
    assert {case.precision for case in chosen} == {"strict", "bf16"}

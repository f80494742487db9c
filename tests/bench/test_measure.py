from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedmate.bench import measure as measuring
from fedmate.bench import roofline
from fedmate.bench.case import Case, make_method
from fedmate.bench.measure import FEWEST, WARM_UP, BackendRunner, Runner, Timing, measure, peak_resident
from fedmate.bench.roofline import Roofline, Work, count_work, measure_roofline
from fedmate.core.flops import count_flops
from fedmate.errors import UserError

SMALL = Case(runner="sequential", network="digits_cnn", clients=2, samples=4, batch_size=2, epochs=1)


class Clock:
    """Time that only rounds make pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 2 * self.now


class Slow(Runner):
    """Takes as many seconds as it is told; work is done when waited for."""

    name = "slow"

    def __init__(self, clock: Clock, seconds: list[float]) -> None:
        self.clock, self.seconds = clock, seconds
        self.numbers: list[int] = []
        self.pending = 0.0

    def run_round(self, number: int) -> None:
        self.numbers.append(number)
        self.pending += self.seconds[min(number, len(self.seconds) - 1)]

    def wait(self) -> None:
        self.clock.now += self.pending
        self.pending = 0.0


def run(monkeypatch: pytest.MonkeyPatch, seconds: list[float], repeat: int) -> tuple[Timing, Slow]:
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    runner = Slow(clock, seconds)
    return measure(SMALL, lambda case: runner, repeat), runner


def test_rounds_that_warm_up_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, runner = run(monkeypatch, [5.0, 1.0, 1.0, 0.1, 0.3, 0.2], 3)
    assert runner.numbers == list(range(WARM_UP + 3))
    assert timing.cold_s == 5.0
    assert timing.cold_cpu_s == 10.0
    assert timing.rounds_ms == pytest.approx((100, 300, 200))
    assert timing.cpu_ms == pytest.approx((200, 600, 400))
    assert timing.milliseconds == pytest.approx(200)
    assert timing.spread == pytest.approx(1.0)


def test_long_rounds_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    timing, runner = run(monkeypatch, [70.0], 9)
    assert len(timing.rounds_ms) == FEWEST
    assert runner.numbers == list(range(1 + FEWEST))
    timing, _ = run(monkeypatch, [8.0], 9)
    assert len(timing.rounds_ms) == 4
    timing, _ = run(monkeypatch, [20.0], 1)
    assert len(timing.rounds_ms) == 1


def test_a_back_end_is_measured() -> None:
    timing = measure(SMALL, BackendRunner, 2)
    assert timing.ran_by == "sequential"
    assert len(timing.rounds_ms) == len(timing.cpu_ms) == 2
    assert min(timing.rounds_ms) > 0
    assert timing.peak_bytes is not None
    assert timing.base_bytes is not None
    assert timing.peak_bytes >= timing.base_bytes > 10_000_000
    assert BackendRunner(replace(SMALL, runner="auto")).name == "vectorised"


def test_a_back_end_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedmate.backends.vectorised import Vectorised

    monkeypatch.setattr(Vectorised, "refusal", classmethod(lambda *args: "it does not like it"))
    with pytest.raises(UserError, match="`vectorised` cannot run `digits_cnn`: it does not like it"):
        BackendRunner(replace(SMALL, runner="vectorised"))


def test_memory_is_counted() -> None:
    before = peak_resident()
    held = torch.ones(2**25)
    after = peak_resident()
    assert before is not None
    assert after is not None
    assert after - before > 2**26 or after > 2**28
    assert held.sum() == 2**25


# -------------------- the roofline


def test_the_work_of_the_paper_s_network() -> None:
    """By hand: 5 x 5 on 28 x 28, 5 x 5 on 12 x 12, 3 x 3 on 6 x 6, 576 to 128, 128 to 10."""
    case = Case(network="cifar_cnn", clients=2, samples=60, batch_size=50, epochs=3)
    products = [16 * 28**2 * 75, 32 * 12**2 * 16 * 25, 64 * 6**2 * 32 * 9, 576 * 128, 128 * 10]
    work = count_work(case)
    samples = 2 * 60 * 3
    assert work.operations == samples * 2 * (3 * sum(products) - products[0])
    entering = 16 * 14**2 + 32 * 6**2 + 576 + 128
    steps = 2 * 3 * 2
    assert work.bytes == samples * (20 * entering + 2 * 3072) + 16 * 107_690 * steps


def test_a_residual_network_can_be_counted() -> None:
    work = count_work(Case(network="resnet18", clients=1, samples=1, batch_size=1, epochs=1))
    # 0.56 G products forward for 32 x 32 pixels.
    assert work.operations == pytest.approx(6 * 0.56e9, rel=0.02)


def test_the_count_agrees_with_the_one_that_chooses_back_ends() -> None:
    case = Case(network="cifar100_cnn", clients=1, samples=1, batch_size=1, epochs=1)
    model = make_method(case).setup.model
    first = 2 * 32 * 32**2 * 27
    forward = count_flops(lambda: model.logits(model.init_params(), torch.zeros(1, *case.input_shape)))
    assert count_work(case).operations == 3 * forward - first


def test_the_floor_is_the_slower_of_computing_and_moving() -> None:
    peaks = Roofline({"strict": 1e12, "tf32": 1e13, "one_thread": 1e11}, bytes_per_s=1e10)
    on_gpu = replace(SMALL, device="cuda")
    assert peaks.floor_ms(on_gpu, Work(10**9, 10**6)) == pytest.approx(1.0)
    assert peaks.floor_ms(on_gpu, Work(10**9, 10**8)) == pytest.approx(10.0)
    assert peaks.floor_ms(replace(on_gpu, precision="tf32"), Work(10**9, 10**5)) == pytest.approx(0.1)
    assert peaks.floor_ms(replace(on_gpu, precision="bf16"), Work(10**9, 10**5)) is None
    assert peaks.floor_ms(SMALL, Work(10**9, 10**8)) == pytest.approx(1.0)


def test_peaks_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SECONDS", 0.0)
    monkeypatch.setattr(roofline, "CPU_SIZES", (256, 128, 2**20))
    found = measure_roofline(torch.device("cpu"))
    assert {*found.operations_per_s} == {"strict", "one_thread"}
    assert all(math.isfinite(peak) and peak > 1e8 for peak in found.operations_per_s.values())
    assert found.bytes_per_s > 1e8

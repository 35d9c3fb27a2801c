"""Which systems get Poisson arrivals, how many, and after which warm-up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.gpu.throughput import (
    OUTPUT,
    PoissonArrivals,
    PoissonPlan,
    ThroughputStudy,
    draw_arrivals,
    list_servers,
    run_study,
    select_systems,
)
from enginebay.lab.workload.request_records import Request

NAMES = ["offline", "ours", "vllm serve", "vllm serve-4"]


class _RecordingStudy(ThroughputStudy):
    """Records runs as `load system` instead of running them."""

    def __init__(self) -> None:
        self.systems = dict.fromkeys(NAMES)  # type: ignore[assignment]
        self.runs = []
        self.order: list[str] = []
        self.arrivals: list[PoissonArrivals] = []
        self.prompts: list[tuple[str, str, object]] = []

    def run(
        self, name: str, load: str, requests: Sequence[Request], streams: int, poisson: PoissonArrivals | None = None
    ) -> bool:
        self.runs.append({"system": name, "load": load, "output_tokens_per_s": 20.0 * OUTPUT})
        self.order.append(f"{load} {name}")
        self.prompts.append((load, name, requests[0].prompt))
        if poisson:
            assert len(requests) == len(poisson.times)
            self.arrivals.append(poisson)
        return True


def _run(plan: PoissonPlan, closed: Sequence[str] | None = None) -> _RecordingStudy:
    work = _RecordingStudy()
    run_study(work, closed or NAMES, {4: 2}, plan)
    return work


def test_each_system_is_warmed_up_right_before_its_first_arrivals() -> None:
    work = _run(PoissonPlan(["ours", "vllm serve"], 2, 10.0))
    assert [one for one in work.order[4:] if not one.startswith("closed")] == [
        "warm-up ours", "poisson ours", "warm-up vllm serve", "poisson vllm serve", "poisson vllm serve", "poisson ours",
    ]  # fmt: skip


def test_arrivals_come_at_a_share_of_the_throughput_of_ours_for_the_given_time() -> None:
    work = _run(PoissonPlan(["ours"], 1, 10.0))
    warmup, measured = work.arrivals
    assert warmup.rate == measured.rate == pytest.approx(14.0)
    assert measured.sending_s == pytest.approx(10.0) and warmup.sending_s == pytest.approx(3.0)


def test_warm_up_prompts_are_never_measured() -> None:
    prompts = _run(PoissonPlan(["ours"], 2, 10.0)).prompts
    warmed = {prompt for load, _, prompt in prompts if load == "warm-up"}
    assert len(warmed) == 2 and not warmed & {prompt for load, _, prompt in prompts if load != "warm-up"}


def test_the_slowest_rate_still_sends_a_request() -> None:
    assert len(draw_arrivals(0.1, 3.0, 1).times) == 1


def test_closed_loop_and_arrivals_have_their_own_systems() -> None:
    order = _run(PoissonPlan(["ours", "vllm serve-4"], 1, 10.0), ["ours", "vllm serve"]).order
    assert [one for one in order if not one.startswith("warm-up")] == [
        "closed 4 ours", "closed 4 vllm serve", "poisson ours", "poisson vllm serve-4", "closed 4 vllm serve", "closed 4 ours",
    ]  # fmt: skip


def test_all_or_the_named_systems_are_selected() -> None:
    assert list_servers(NAMES) == ["ours", "vllm serve", "vllm serve-4"]
    assert select_systems(NAMES, None, "--closed-systems") == NAMES
    assert select_systems(NAMES, ["vllm serve"], "--closed-systems") == ["vllm serve"]
    with pytest.raises(SystemExit, match="--closed-systems: unknown system 'vllm serve-8'; choose from offline, ours"):
        select_systems(NAMES, ["vllm serve-8"], "--closed-systems")

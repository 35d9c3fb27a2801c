"""Who gets arrivals by themselves, how many, and warmed by what."""

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


class _Noted(ThroughputStudy):
    """Runs that only are written down, as `load system`."""

    def __init__(self) -> None:
        self.systems = dict.fromkeys(NAMES)  # type: ignore[assignment]
        self.runs = []
        self.order: list[str] = []
        self.arrived: list[PoissonArrivals] = []
        self.prompts: list[tuple[str, str, object]] = []

    def run(
        self, name: str, load: str, sent: Sequence[Request], streams: int, arriving: PoissonArrivals | None = None
    ) -> bool:
        self.runs.append({"system": name, "load": load, "output_tokens_per_s": 20.0 * OUTPUT})
        self.order.append(f"{load} {name}")
        self.prompts.append((load, name, sent[0].prompt))
        if arriving:
            assert len(sent) == len(arriving.times)
            self.arrived.append(arriving)
        return True


def _studied(part: PoissonPlan, closed: Sequence[str] | None = None) -> _Noted:
    work = _Noted()
    run_study(work, closed or NAMES, {4: 2}, part)
    return work


def test_arrivals_warm_each_system_once_right_before_its_first_time() -> None:
    work = _studied(PoissonPlan(["ours", "vllm serve"], 2, 10.0))
    assert [one for one in work.order[4:] if not one.startswith("closed")] == [
        "warm-up ours", "poisson ours", "warm-up vllm serve", "poisson vllm serve", "poisson vllm serve", "poisson ours",
    ]  # fmt: skip


def test_arrivals_come_at_a_share_of_what_ours_gave_for_as_long_as_was_asked() -> None:
    work = _studied(PoissonPlan(["ours"], 1, 10.0))
    warming, measured = work.arrived
    assert warming.rate == measured.rate == pytest.approx(14.0)
    assert measured.sending_s == pytest.approx(10.0) and warming.sending_s == pytest.approx(3.0)


def test_a_warm_up_has_prompts_that_are_measured_nowhere() -> None:
    prompts = _studied(PoissonPlan(["ours"], 2, 10.0)).prompts
    warmed = {prompt for load, _, prompt in prompts if load == "warm-up"}
    assert len(warmed) == 2 and not warmed & {prompt for load, _, prompt in prompts if load != "warm-up"}


def test_the_slowest_rate_still_sends_one() -> None:
    assert len(draw_arrivals(0.1, 3.0, 1).times) == 1


def test_a_closed_loop_is_made_of_those_named_and_arrivals_of_others() -> None:
    order = _studied(PoissonPlan(["ours", "vllm serve-4"], 1, 10.0), ["ours", "vllm serve"]).order
    assert [one for one in order if not one.startswith("warm-up")] == [
        "closed 4 ours", "closed 4 vllm serve", "poisson ours", "poisson vllm serve-4", "closed 4 vllm serve", "closed 4 ours",
    ]  # fmt: skip


def test_all_are_chosen_or_those_named() -> None:
    assert list_servers(NAMES) == ["ours", "vllm serve", "vllm serve-4"]
    assert select_systems(NAMES, None, "--closed-systems") == NAMES
    assert select_systems(NAMES, ["vllm serve"], "--closed-systems") == ["vllm serve"]
    with pytest.raises(SystemExit, match="--closed-systems: vllm serve-8 is none of offline, ours"):
        select_systems(NAMES, ["vllm serve-8"], "--closed-systems")

"""What a load generator reports of a workload, and whether it sustained it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean
from typing import Protocol

ERROR = 0.05  # of each figure


@dataclass(frozen=True, slots=True)
class KnownDelays:
    """The server's configured delays."""

    ttft_s: float
    itl_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class RateWorkload:
    """Requests at a constant rate, or at a constant concurrency.

    The first of them warm up: connections open, and the number of streams settles.
    """

    url: str
    tokens: int
    warmup: int
    measured: int
    rate: float = inf
    concurrency: int | None = None

    @property
    def requests(self) -> int:
        return self.warmup + self.measured


def make_constant_rate(url: str, tokens: int, rate: float, warmup_s: float, measured_s: float) -> RateWorkload:
    """Return a workload with a constant rate for this long."""
    return RateWorkload(url, tokens, ceil(rate * warmup_s), max(2, ceil(rate * measured_s)), rate)


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """One answered request, as a load generator saw it. Times are on any one clock."""

    start_s: float
    end_s: float
    tokens: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class LoadgenReport:
    """A load generator's figures of a workload."""

    answered: int
    tokens: int
    rate: float  # requests/s sent
    ttft_s: float
    tpot_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.rate * self.tokens / self.answered if self.answered else 0.0


class Loadgen(Protocol):
    """A load generator. `run_workload` raises SystemExit if it fails altogether."""

    name: str

    def run_workload(self, workload: RateWorkload) -> list[ObservedRequest]: ...


def drop_warmup(requests: Sequence[ObservedRequest], workload: RateWorkload) -> list[ObservedRequest]:
    return sorted(requests, key=lambda request: request.start_s)[workload.warmup :]


def compute_throughput(requests: Sequence[ObservedRequest], workload: RateWorkload) -> float:
    """Return tokens/s from the first request after the warm-up to the last response."""
    requests = drop_warmup(requests, workload)
    return sum(request.tokens for request in requests) / (
        max(request.end_s for request in requests) - requests[0].start_s
    )


def summarize_requests(requests: Sequence[ObservedRequest], workload: RateWorkload) -> LoadgenReport:
    """Return the figures of all requests after the warm-up."""
    requests = drop_warmup(requests, workload)
    if len(requests) < 2:
        return LoadgenReport(len(requests), 0, 0.0, 0.0, 0.0)
    rate = (len(requests) - 1) / (requests[-1].start_s - requests[0].start_s)
    means = fmean(request.ttft_s for request in requests), fmean(request.tpot_s for request in requests)
    return LoadgenReport(len(requests), sum(request.tokens for request in requests), rate, *means)


def find_faults(report: LoadgenReport, workload: RateWorkload, known: KnownDelays) -> list[str]:
    """Return why a workload was not sustained; empty if it was."""
    faults = []
    if report.answered != workload.measured or report.tokens != workload.measured * known.tokens:
        faults.append(f"{report.answered} responses of {workload.measured}, {report.tokens} tokens")
    for name, figure, expected in (
        ("TTFT", report.ttft_s, known.ttft_s),
        ("TPOT", report.tpot_s, known.itl_s),
        ("rate", report.rate, workload.rate),
    ):
        off = figure / expected - 1
        if abs(off) > ERROR:
            faults.append(f"{name} {off:+.0%}")
    return faults


def find_highest_step(sustains: Callable[[int], bool], start: int) -> int | None:
    """Return the highest sustained step, searched step by step from `start`."""
    step = start
    if sustains(step):
        while sustains(step + 1):
            step += 1
        return step
    while step > 0:
        step -= 1
        if sustains(step):
            return step
    return None

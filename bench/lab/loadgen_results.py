"""One load as a load client saw it, and whether the client was up to it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import fmean
from typing import Protocol

ERROR = 0.05  # of each figure


@dataclass(frozen=True, slots=True)
class KnownDelays:
    """What the server was told to do with every request."""

    ttft_s: float
    itl_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class RateWorkload:
    """Requests at a constant rate, or as fast as so many at once are answered.

    The first of them warm up: connections are opened, and streams become as many as stay.
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
    """A constant rate for so long."""
    return RateWorkload(url, tokens, ceil(rate * warmup_s), max(2, ceil(rate * measured_s)), rate)


@dataclass(frozen=True, slots=True)
class ObservedRequest:
    """One request that was answered, as a load client saw it. Moments are on any one clock."""

    start_s: float
    end_s: float
    tokens: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class LoadgenReport:
    """What a load client says of a load."""

    answered: int  # requests that were answered
    tokens: int
    rate: float  # requests/s that it sent
    ttft_s: float
    tpot_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.rate * self.tokens / self.answered if self.answered else 0.0


class Loadgen(Protocol):
    """A load client. `load` raises SystemExit when it cannot do its work at all."""

    name: str

    def run_workload(self, load: RateWorkload) -> list[ObservedRequest]: ...


def drop_warmup(ones: Sequence[ObservedRequest], load: RateWorkload) -> list[ObservedRequest]:
    return sorted(ones, key=lambda one: one.start_s)[load.warmup :]


def compute_throughput(ones: Sequence[ObservedRequest], load: RateWorkload) -> float:
    """Tokens/s from the first request after the warm-up to the last answer."""
    ones = drop_warmup(ones, load)
    return sum(one.tokens for one in ones) / (max(one.end_s for one in ones) - ones[0].start_s)


def summarize_requests(ones: Sequence[ObservedRequest], load: RateWorkload) -> LoadgenReport:
    """The figures of all requests after the warm-up."""
    ones = drop_warmup(ones, load)
    if len(ones) < 2:
        return LoadgenReport(len(ones), 0, 0.0, 0.0, 0.0)
    rate = (len(ones) - 1) / (ones[-1].start_s - ones[0].start_s)
    means = fmean(one.ttft_s for one in ones), fmean(one.tpot_s for one in ones)
    return LoadgenReport(len(ones), sum(one.tokens for one in ones), rate, *means)


def find_faults(seen: LoadgenReport, load: RateWorkload, known: KnownDelays) -> list[str]:
    """Why a load was not sustained; nothing: it was."""
    found = []
    if seen.answered != load.measured or seen.tokens != load.measured * known.tokens:
        found.append(f"{seen.answered} answers of {load.measured}, {seen.tokens} tokens")
    for name, figure, wanted in (
        ("TTFT", seen.ttft_s, known.ttft_s),
        ("TPOT", seen.tpot_s, known.itl_s),
        ("rate", seen.rate, load.rate),
    ):
        off = figure / wanted - 1
        if abs(off) > ERROR:
            found.append(f"{name} {off:+.0%}")
    return found


def find_highest_step(sustains: Callable[[int], bool], start: int) -> int | None:
    """The highest step that is sustained, looked for step by step from where it is thought to be."""
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

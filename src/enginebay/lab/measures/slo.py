"""Objectives for latencies: which requests are good, and whether enough are. Pure.

    {"ttft_s": 0.8, "tpot_s": 0.05}        limits of each request: goodput counts the requests that keep them all
    {"ttft_p95": 0.8, "e2e_median": 4}     objectives of a run: so many percent of the requests keep the limit

Latencies count from the intended send time, which is when a user began to wait. A request that failed keeps no limit, so
a server cannot meet a percentile by refusing the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from enginebay.errors import ConfigError
from enginebay.lab.measures.latencies import e2e_s, tpot_s, ttft_s
from enginebay.lab.workload.request_records import Record

_KEY = re.compile(r"(ttft|tpot|e2e)_(?:(s)|(median)|p(\d+(?:\.\d+)?))")
_HINT = (
    "limits of each request are ttft_s, tpot_s, e2e_s; of a run ttft_p95, tpot_p99, e2e_median and the like: seconds"
)

_ROUNDING = 1e-9  # of percent


@dataclass(frozen=True, slots=True)
class SloObjective:
    """At least `percent` of all requests keep `limit_s`."""

    name: str  # as the user wrote it
    metric: str
    percent: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good request keeps, and what a good run."""

    limits: Mapping[str, float]  # seconds, by metric
    objectives: tuple[SloObjective, ...]


def slo_from_dict(given: Mapping[str, object]) -> Slo:
    """From config data. Where a metric has objectives but no limit, the loosest of them makes a request good."""
    limits: dict[str, float] = {}
    objectives: list[SloObjective] = []
    for name, value in given.items():
        metric, percent = _parse_key(name)
        limit_s = _parse_seconds(name, value)
        if percent is None:
            limits[metric] = limit_s
        else:
            objectives.append(SloObjective(name, metric, percent, limit_s))
    for metric in {one.metric for one in objectives} - set(limits):
        limits[metric] = max(one.limit_s for one in objectives if one.metric == metric)
    if not limits:
        raise ConfigError("the slo names no limit", _HINT)
    return Slo(limits, tuple(objectives))


def parse_slo(text: str) -> Slo:
    """From a flag: `ttft_p95=0.8,tpot_p95=0.05`."""
    given: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            given[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"the slo {part!r} is not of the form name=seconds", _HINT) from None
    return slo_from_dict(given)


def is_good(record: Record, slo: Slo) -> bool:
    """Whether the request was answered within every limit."""
    return all(_meets_limit(record, metric, limit_s) for metric, limit_s in slo.limits.items())


def measure_attainment(records: Sequence[Record], objective: SloObjective) -> float:
    """The share of requests that keep the objective's limit."""
    return sum(_meets_limit(record, objective.metric, objective.limit_s) for record in records) / len(records)


def find_missed(records: Sequence[Record], slo: Slo) -> dict[str, float]:
    """The objectives that too few requests keep, with the share that did."""
    shares = {one: measure_attainment(records, one) for one in slo.objectives}
    return {one.name: share for one, share in shares.items() if share * 100 < one.percent - _ROUNDING}


def _meets_limit(record: Record, metric: str, limit_s: float) -> bool:
    if record.error is not None:
        return False
    if metric == "tpot":
        each_s = tpot_s(record)
        return each_s is None or each_s <= limit_s  # one token: nothing was waited for after the first
    latency_s = ttft_s(record, intended=True) if metric == "ttft" else e2e_s(record, intended=True)
    return latency_s is not None and latency_s <= limit_s


def _parse_key(name: str) -> tuple[str, float | None]:
    found = _KEY.fullmatch(name) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"the slo knows no {name!r}", _HINT)
    metric, limit, median, percent = found.groups()
    if limit:
        return metric, None
    value = 50.0 if median else float(percent)
    if not 0 < value < 100:
        raise ConfigError(f"{name} of the slo: a percentile lies between 0 and 100", _HINT)
    return metric, value


def _parse_seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} of the slo is {value!r}, not a positive number of seconds", _HINT)
    return float(value)

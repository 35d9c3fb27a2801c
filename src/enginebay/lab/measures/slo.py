"""Latency SLOs: which requests are good, and whether enough are. Pure.

    {"ttft_s": 0.8, "tpot_s": 0.05}        limits per request: goodput counts the requests that meet all of them
    {"ttft_p95": 0.8, "e2e_median": 4}     objectives of a run: this percentage of the requests meets the limit

Latencies count from the intended send time, when a user starts to wait. A failed request meets no limit, so a server
cannot meet a percentile by refusing the rest.
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
    "use ttft_s, tpot_s, e2e_s for each request, or ttft_p95, tpot_p99, e2e_median etc. for the run; values in seconds"
)

_ROUNDING = 1e-9  # percent


@dataclass(frozen=True, slots=True)
class SloObjective:
    """At least `percent` of all requests meet `limit_s`."""

    name: str  # as configured
    metric: str
    percent: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that a good request meets, and objectives that a good run meets."""

    limits: Mapping[str, float]  # seconds, by metric
    objectives: tuple[SloObjective, ...]


def slo_from_dict(data: Mapping[str, object]) -> Slo:
    """Build from config data. A metric with objectives but no limit uses the loosest objective as its limit."""
    limits: dict[str, float] = {}
    objectives: list[SloObjective] = []
    for name, value in data.items():
        metric, percent = _parse_key(name)
        limit_s = _parse_seconds(name, value)
        if percent is None:
            limits[metric] = limit_s
        else:
            objectives.append(SloObjective(name, metric, percent, limit_s))
    for metric in {objective.metric for objective in objectives} - set(limits):
        limits[metric] = max(objective.limit_s for objective in objectives if objective.metric == metric)
    if not limits:
        raise ConfigError("the SLO has no limit", _HINT)
    return Slo(limits, tuple(objectives))


def parse_slo(text: str) -> Slo:
    """Parse a flag: `ttft_p95=0.8,tpot_p95=0.05`."""
    limits: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            limits[name.strip()] = float(value)
        except ValueError:
            raise ConfigError(f"invalid SLO {part!r}: expected name=seconds", _HINT) from None
    return slo_from_dict(limits)


def is_good(record: Record, slo: Slo) -> bool:
    """Return whether the request met every limit."""
    return all(_meets_limit(record, metric, limit_s) for metric, limit_s in slo.limits.items())


def measure_attainment(records: Sequence[Record], objective: SloObjective) -> float:
    """Return the share of requests that meet the objective's limit."""
    return sum(_meets_limit(record, objective.metric, objective.limit_s) for record in records) / len(records)


def find_missed(records: Sequence[Record], slo: Slo) -> dict[str, float]:
    """Return the missed objectives with the share of requests that met them."""
    shares = {objective: measure_attainment(records, objective) for objective in slo.objectives}
    return {objective.name: share for objective, share in shares.items() if share * 100 < objective.percent - _ROUNDING}


def _meets_limit(record: Record, metric: str, limit_s: float) -> bool:
    if record.error is not None:
        return False
    if metric == "tpot":
        per_token_s = tpot_s(record)
        return per_token_s is None or per_token_s <= limit_s  # a single token has no wait after the first
    latency_s = ttft_s(record, intended=True) if metric == "ttft" else e2e_s(record, intended=True)
    return latency_s is not None and latency_s <= limit_s


def _parse_key(name: str) -> tuple[str, float | None]:
    match = _KEY.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(f"unknown SLO {name!r}", _HINT)
    metric, limit, median, percent = match.groups()
    if limit:
        return metric, None
    value = 50.0 if median else float(percent)
    if not 0 < value < 100:
        raise ConfigError(f"SLO {name}: percentile must be between 0 and 100", _HINT)
    return metric, value


def _parse_seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"SLO {name} must be a positive number of seconds, not {value!r}", _HINT)
    return float(value)

"""What `bay top` shows, from two scrapes of a server's metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.cli.figures import duration, size, span
from enginebay.server.exposition import Samples, buckets, quantile, total
from enginebay.server.log_lines import clean

COLUMNS = (
    "model", "engine", "running", "waiting", "req/s", "in tok/s", "out tok/s", "ttft p50", "ttft p95", "itl p50",
    "itl p95", "kv", "memory", "errors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one engine. Rates and latencies are of the last interval; None: nothing happened, or nobody tells."""

    model: str
    engine: str
    running: float | None
    waiting: float | None
    requests_per_s: float
    prompt_tokens_per_s: float
    completion_tokens_per_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    inter_token_p50_s: float | None
    inter_token_p95_s: float | None
    kv_used_ratio: float | None
    memory_bytes: float | None
    errors: float  # since the server started


@dataclass(frozen=True, slots=True)
class Summary:
    """The server as a whole."""

    version: str
    connections: float | None
    memory_bytes: float | None
    uptime_s: float | None
    refused_per_s: float  # by rate limits, full queues and the like


def rows(before: Samples, after: Samples, seconds: float) -> list[Row]:
    """A row per model and engine, by name."""
    return [_row(before, after, seconds, model, engine) for model, engine in sorted(_models(after))]


def summary(before: Samples, after: Samples, seconds: float, now_s: float) -> Summary:
    started = total(after, "process_start_time_seconds")
    refused = sum(_rate(before, after, seconds, f"enginebay_{name}_total", {}) for name in ("rate_limited", "rejected"))
    versions = [dict(labels).get("version", "") for labels in after.get("enginebay_server_info", {})]
    return Summary(
        version=max(versions, default=""),
        connections=total(after, "enginebay_connections"),
        memory_bytes=total(after, "process_resident_memory_bytes"),
        uptime_s=None if started is None else max(0.0, now_s - started),
        refused_per_s=refused,
    )


def _models(samples: Samples) -> set[tuple[str, str]]:
    labels = (dict(own) for children in samples.values() for own in children)
    return {(own["model"], own["engine"]) for own in labels if "model" in own and "engine" in own}


def _row(before: Samples, after: Samples, seconds: float, model: str, engine: str) -> Row:
    own = {"model": model, "engine": engine}

    def rate(name: str) -> float:
        return _rate(before, after, seconds, name, own)

    ttft = _histogram(before, after, "enginebay_time_to_first_token_seconds", own)
    between = _histogram(before, after, "enginebay_inter_token_latency_seconds", own)
    return Row(
        model=model,
        engine=engine,
        running=total(after, "enginebay_requests_running", **own),
        waiting=total(after, "enginebay_requests_waiting", **own),
        requests_per_s=rate("enginebay_requests_total"),
        prompt_tokens_per_s=rate("enginebay_prompt_tokens_total"),
        completion_tokens_per_s=rate("enginebay_completion_tokens_total"),
        ttft_p50_s=quantile(0.5, ttft),
        ttft_p95_s=quantile(0.95, ttft),
        inter_token_p50_s=quantile(0.5, between),
        inter_token_p95_s=quantile(0.95, between),
        kv_used_ratio=total(after, "enginebay_kv_cache_usage_ratio", **own),
        memory_bytes=total(after, "enginebay_worker_memory_bytes", **own),
        errors=total(after, "enginebay_errors_total", **own) or 0.0,
    )


def _rate(before: Samples, after: Samples, seconds: float, name: str, own: Mapping[str, str]) -> float:
    new, old = total(after, name, **own) or 0.0, total(before, name, **own) or 0.0
    return _grown(old, new) / seconds if seconds > 0 else 0.0


def _grown(old: float, new: float) -> float:
    """How much a counter grew; one that fell was started anew."""
    return new - old if new >= old else new


def _histogram(before: Samples, after: Samples, name: str, own: Mapping[str, str]) -> dict[float, float]:
    old, new = buckets(before, name, **own), buckets(after, name, **own)
    anew = any(new[bound] < old.get(bound, 0.0) for bound in new)
    return {bound: count if anew else count - old.get(bound, 0.0) for bound, count in new.items()}


# For people


def cells(row: Row) -> list[str]:
    """In the order of COLUMNS."""
    return [
        clean(row.model),  # a server may call its models anything, and this is a terminal
        clean(row.engine),
        _or_dash(row.running, _count),
        _or_dash(row.waiting, _count),
        _per_second(row.requests_per_s),
        _per_second(row.prompt_tokens_per_s),
        _per_second(row.completion_tokens_per_s),
        *(
            _or_dash(value, duration)
            for value in (row.ttft_p50_s, row.ttft_p95_s, row.inter_token_p50_s, row.inter_token_p95_s)
        ),
        _or_dash(row.kv_used_ratio, lambda share: f"{share:.0%}"),
        _or_dash(row.memory_bytes, size),
        _count(row.errors),
    ]


def headline(about: Summary, found: Sequence[Row]) -> str:
    """The server in one line."""
    parts = [f"enginebay {clean(about.version)}".strip()]
    if about.uptime_s is not None:
        parts.append(f"up {span(about.uptime_s)}")
    if about.connections is not None:
        parts.append(f"{_count(about.connections)} connection{'' if about.connections == 1 else 's'}")
    parts.append(f"{_per_second(sum(row.requests_per_s for row in found))} req/s")
    parts.append(f"{_per_second(sum(row.completion_tokens_per_s for row in found))} tok/s out")
    if about.refused_per_s:
        parts.append(f"{_per_second(about.refused_per_s)} refused/s")
    if about.memory_bytes is not None:
        parts.append(size(about.memory_bytes))
    return " · ".join(parts)


def to_json(about: Summary, found: Sequence[Row]) -> dict[str, Any]:
    """Infinity, which JSON does not have, becomes null: above the highest bucket, nobody knows how far."""
    return {"server": _finite(asdict(about)), "models": [_finite(asdict(row)) for row in found]}


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in data.items()
    }


def _or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def _count(value: float) -> str:
    return f"{value:.0f}"


def _per_second(value: float) -> str:
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"

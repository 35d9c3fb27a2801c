"""Rows of `bay top`, from two scrapes of a server's metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.cli.output.table_layout import Column
from enginebay.server.telemetry.log_format import escape_unprintable
from enginebay.server.telemetry.prometheus_text import Samples, estimate_quantile, sum_buckets, sum_samples
from enginebay.util.number_format import format_age, format_bytes, format_duration
from enginebay.util.text_format import pluralize

_KV = Column("kv", right=True)
TOP_COLUMNS: tuple[Column | str, ...] = (
    "model",
    "engine",
    *(
        Column(name, right=True)
        for name in (
            "running", "waiting", "req/s", "in tok/s", "out tok/s", "ttft p50", "ttft p95", "itl p50", "itl p95", "kv", "memory",
            "errors",
        )
    ),
)  # fmt: skip

_REQUESTS = "enginebay_requests_total"
_PLACEMENTS = "enginebay_gpu_reserved_bytes"
_SCRAPE_LABEL = ("endpoint", "metrics")
_MAX_SHOWN_REPLICAS = 4


@dataclass(frozen=True, slots=True)
class TopRow:
    """One model on one engine. Rates and latencies cover the last interval; None: no samples, or not reported."""

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
    gpus: tuple[int, ...] = ()  # it is placed on
    placement: str | None = None  # why there
    replicas: Mapping[str, float] | None = None  # running requests of those that are ready; None: it may have only one
    replica_cached_ratio: float | None = None  # of the prompt tokens of requests that replicas finished


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """Figures of the whole server."""

    version: str
    connections: float | None
    memory_bytes: float | None
    uptime_s: float | None
    refused_per_s: float  # by rate limits and full queues


def build_rows(before: Samples, after: Samples, seconds: float) -> list[TopRow]:
    """Build one row per model and engine, sorted by name. Scrapes of the metrics do not count as requests."""
    before, after = _drop_scrapes(before), _drop_scrapes(after)
    return [_build_row(before, after, seconds, model, engine) for model, engine in sorted(_list_models(after))]


def build_summary(before: Samples, after: Samples, seconds: float, now_s: float) -> ServerSummary:
    started = sum_samples(after, "process_start_time_seconds")
    refused = sum(
        _compute_rate(before, after, seconds, f"enginebay_{name}_total", {}) for name in ("rate_limited", "rejected")
    )
    versions = [dict(labels).get("version", "") for labels in after.get("enginebay_server_info", {})]
    return ServerSummary(
        version=max(versions, default=""),
        connections=sum_samples(after, "enginebay_connections"),
        memory_bytes=sum_samples(after, "process_resident_memory_bytes"),
        uptime_s=None if started is None else max(0.0, now_s - started),
        refused_per_s=refused,
    )


def _drop_scrapes(samples: Samples) -> Samples:
    requests = samples.get(_REQUESTS, {})
    return {**samples, _REQUESTS: {own: value for own, value in requests.items() if _SCRAPE_LABEL not in own}}


def _list_models(samples: Samples) -> set[tuple[str, str]]:
    labels = (dict(own) for children in samples.values() for own in children)
    return {(own["model"], own["engine"]) for own in labels if "model" in own and "engine" in own}


def _build_row(before: Samples, after: Samples, seconds: float, model: str, engine: str) -> TopRow:
    own = {"model": model, "engine": engine}

    def rate(name: str) -> float:
        return _compute_rate(before, after, seconds, name, own)

    ttft = _subtract_histograms(before, after, "enginebay_time_to_first_token_seconds", own)
    between = _subtract_histograms(before, after, "enginebay_inter_token_latency_seconds", own)
    return TopRow(
        model=model,
        engine=engine,
        running=sum_samples(after, "enginebay_requests_running", **own),
        waiting=sum_samples(after, "enginebay_requests_waiting", **own),
        requests_per_s=rate(_REQUESTS),
        prompt_tokens_per_s=rate("enginebay_prompt_tokens_total"),
        completion_tokens_per_s=rate("enginebay_completion_tokens_total"),
        ttft_p50_s=estimate_quantile(0.5, ttft),
        ttft_p95_s=estimate_quantile(0.95, ttft),
        inter_token_p50_s=estimate_quantile(0.5, between),
        inter_token_p95_s=estimate_quantile(0.95, between),
        kv_used_ratio=sum_samples(after, "enginebay_kv_cache_usage_ratio", **own),
        memory_bytes=sum_samples(after, "enginebay_worker_memory_bytes", **own),
        errors=sum_samples(after, "enginebay_errors_total", **own) or 0.0,
        **_find_placement(after, own),
        replicas=_find_replicas(after, own),
        replica_cached_ratio=_compute_cached_ratio(rate),
    )


def _find_replicas(samples: Samples, own: Mapping[str, str]) -> dict[str, float] | None:
    if sum_samples(samples, "enginebay_replicas_ready", **own) is None:
        return None
    running = ((dict(labels), value) for labels, value in samples.get("enginebay_replica_running", {}).items())
    return {labels["replica"]: value for labels, value in running if own.items() <= labels.items()}


def _compute_cached_ratio(rate: Callable[[str], float]) -> float | None:
    prompts = rate("enginebay_replica_prompt_tokens_total")
    return rate("enginebay_replica_cached_tokens_total") / prompts if prompts else None


def _find_placement(samples: Samples, own: Mapping[str, str]) -> dict[str, Any]:
    labels = [dict(labels) for labels in samples.get(_PLACEMENTS, {})]
    placed = [label for label in labels if own.items() <= label.items()]
    gpus = sorted({int(label["gpu"]) for label in placed if label.get("gpu", "").isdigit()})
    reasons = [label["reason"] for label in placed if label.get("reason")]
    return {"gpus": tuple(gpus), "placement": "; ".join(dict.fromkeys(reasons)) or None}


def _compute_rate(before: Samples, after: Samples, seconds: float, name: str, own: Mapping[str, str]) -> float:
    new, old = sum_samples(after, name, **own) or 0.0, sum_samples(before, name, **own) or 0.0
    return _compute_increase(old, new) / seconds if seconds > 0 else 0.0


def _compute_increase(old: float, new: float) -> float:
    """Return how much a counter grew. One that fell was reset."""
    return new - old if new >= old else new


def _subtract_histograms(before: Samples, after: Samples, name: str, own: Mapping[str, str]) -> dict[float, float]:
    old, new = sum_buckets(before, name, **own), sum_buckets(after, name, **own)
    was_reset = any(new[bound] < old.get(bound, 0.0) for bound in new)
    return {bound: count if was_reset else count - old.get(bound, 0.0) for bound, count in new.items()}


def build_top_table(rows: Sequence[TopRow]) -> tuple[list[Column | str], list[list[str]]]:
    """Build columns and cells, with the GPUs and the replicas of each model if any has some."""
    columns, cells = list(TOP_COLUMNS), list(map(format_cells, rows))
    if any(row.replicas is not None for row in rows):
        cached_at = columns.index(_KV)
        columns.insert(cached_at, Column("cached", right=True))
        columns.insert(2, "replicas")
        for line, row in zip(cells, rows, strict=True):
            line.insert(cached_at, _format_or_dash(row.replica_cached_ratio, _format_share))
            line.insert(2, _format_replicas(row.replicas))
    if any(row.gpus for row in rows):
        columns.insert(2, "gpu")
        for line, row in zip(cells, rows, strict=True):
            line.insert(2, ",".join(map(str, row.gpus)) or "-")
    return columns, cells


def _format_replicas(running: Mapping[str, float] | None) -> str:
    """Format how many are ready, and the running requests of each: "2: 3,4"; of many, the least and the most: "8: 1-5"."""
    if not running:
        return "-" if running is None else "0"
    counts = [int(running[name]) for name in sorted(running, key=lambda name: (len(name), name))]
    shown = ",".join(map(str, counts)) if len(counts) <= _MAX_SHOWN_REPLICAS else f"{min(counts)}-{max(counts)}"
    return f"{len(counts)}: {shown}"


def format_cells(row: TopRow) -> list[str]:
    """Format a row in the order of TOP_COLUMNS."""
    return [
        escape_unprintable(
            row.model
        ),  # a remote server chooses its model names: keep control characters off the terminal
        escape_unprintable(row.engine),
        _format_or_dash(row.running, _format_count),
        _format_or_dash(row.waiting, _format_count),
        _format_rate(row.requests_per_s),
        _format_rate(row.prompt_tokens_per_s),
        _format_rate(row.completion_tokens_per_s),
        *(
            _format_or_dash(value, format_duration)
            for value in (row.ttft_p50_s, row.ttft_p95_s, row.inter_token_p50_s, row.inter_token_p95_s)
        ),
        _format_or_dash(row.kv_used_ratio, _format_share),
        _format_or_dash(row.memory_bytes, format_bytes),
        _format_count(row.errors),
    ]


def format_headline(summary: ServerSummary, rows: Sequence[TopRow]) -> str:
    """Format the server's figures as one line."""
    parts = [f"enginebay {escape_unprintable(summary.version)}".strip()]
    if summary.uptime_s is not None:
        parts.append(f"up {format_age(summary.uptime_s)}")
    if summary.connections is not None:
        parts.append(pluralize(int(summary.connections), "connection"))
    parts.append(f"{_format_rate(sum(row.requests_per_s for row in rows))} req/s")
    parts.append(f"{_format_rate(sum(row.completion_tokens_per_s for row in rows))} tok/s out")
    if summary.refused_per_s:
        parts.append(f"{_format_rate(summary.refused_per_s)} refused/s")
    if summary.memory_bytes is not None:
        parts.append(format_bytes(summary.memory_bytes))
    return " · ".join(parts)


def to_json(summary: ServerSummary, rows: Sequence[TopRow]) -> dict[str, Any]:
    """Convert to JSON. Infinity, a quantile above the highest bucket, becomes null."""
    return {
        "server": _to_finite(asdict(summary)),
        "models": [_to_finite(asdict(row)) for row in rows],
    }


def _to_finite(data: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in data.items()
    }


def _format_or_dash(value: float | None, show: Callable[[float], str]) -> str:
    return "-" if value is None else show(value)


def _format_share(share: float) -> str:
    return f"{share:.0%}"


def _format_count(value: float) -> str:
    return f"{value:.0f}"


def _format_rate(value: float) -> str:
    return f"{value:.1f}" if 0 < value < 100 else f"{value:,.0f}"

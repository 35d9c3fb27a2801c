"""The server's metrics: one `ServerMetrics` per process; snapshots of several processes merge into one.

The multi-process mode of prometheus-client writes every value to a memory-mapped file per process, takes a lock per
update and looks up the label values each time. Here each label set has a bound child: an update is an addition, and
processes exchange plain data only at a scrape, over the supervisor's existing channel.

Not thread-safe: only the event loop's thread may update.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from enginebay import __version__
from enginebay.meters.devices.proc_files import read_resident_bytes


def read_start_time() -> float | None:
    """Return when this process started, in seconds since 1970."""
    try:
        # The second field is the program's name in parentheses, which may contain anything.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError, StopIteration):
        return None


Snapshot = dict[str, Any]  # family name -> its data; survives JSON unchanged
MergeRule = Literal["add", "max"]

MAX_CHILDREN = 1000  # per family: further label values share one child, which bounds the cardinality
OVERFLOW_LABEL = "other"

_MODEL = ("model", "engine")
_REPLICA = (*_MODEL, "replica")
_TTFT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)  # fmt: skip
_QUEUE_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_INTER_TOKEN_S = (0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0)  # fmt: skip
_DURATION_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0)

_SWITCH_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)


class MetricValue:
    """The value of a counter or gauge for one label set. Keep a reference: the lookup costs more than an update."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, n: float = 1) -> None:
        self.value += n

    def dec(self, n: float = 1) -> None:
        self.value -= n

    def set(self, value: float) -> None:
        """Set a gauge, or a counter that is counted elsewhere."""
        self.value = value


class HistogramValue:
    """The bucket counts and sum of a histogram for one label set."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # not cumulative; the last is for values above every bound
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Record a value `count` times, so that the tokens of one flush cost one call."""
        self.counts[bisect_left(self._bounds, seconds)] += count
        self.sum += seconds * count


Child = TypeVar("Child", MetricValue, HistogramValue)


class MetricFamily(Generic[Child]):
    """One metric with its label names."""

    kind: ClassVar[str]

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = (), merge: MergeRule = "add") -> None:
        self.name = name
        self._help = help
        self._labels = labels
        self._merge = merge
        self._children: dict[tuple[str, ...], Child] = {}

    def _new_child(self) -> Child:
        raise NotImplementedError

    def _snapshot_child(self, child: Child) -> Any:
        raise NotImplementedError

    def child(self, *values: str) -> Child:
        """Return the child with these label values. Beyond `MAX_CHILDREN`, new values share the child "other"."""
        child = self._children.get(values)
        if child is not None:
            return child
        if len(values) != len(self._labels):
            raise ValueError(f"{self.name} takes the labels {self._labels}, got {values}")
        if len(self._children) >= MAX_CHILDREN:
            values = (OVERFLOW_LABEL,) * len(values)
        return self._children.setdefault(values, self._new_child())

    def remove_child(self, *values: str) -> None:
        """Stop reporting this child: the engine does not provide the value."""
        self._children.pop(values, None)

    def keep_only(self, known: Collection[tuple[str, ...]]) -> None:
        """Stop reporting all other children: their models were removed."""
        self._children = {values: child for values, child in self._children.items() if values in known}

    def snapshot(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "help": self._help,
            "labels": list(self._labels),
            "merge": self._merge,
            "children": [[list(values), self._snapshot_child(child)] for values, child in self._children.items()],
        }


class CounterFamily(MetricFamily[MetricValue]):
    kind = "counter"

    def _new_child(self) -> MetricValue:
        return MetricValue()

    def _snapshot_child(self, child: MetricValue) -> float:
        return child.value


class GaugeFamily(CounterFamily):
    kind = "gauge"

    def drop_idle_children(self, known: Collection[tuple[str, ...]]) -> None:
        """Stop reporting other children whose value is 0. Get such a child again before updating it."""
        self._children = {values: child for values, child in self._children.items() if values in known or child.value}


class HistogramFamily(MetricFamily[HistogramValue]):
    kind = "histogram"

    def __init__(self, name: str, help: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        super().__init__(name, help, labels)
        self._bounds = bounds

    def _new_child(self) -> HistogramValue:
        return HistogramValue(self._bounds)

    def _snapshot_child(self, child: HistogramValue) -> list[Any]:
        return [list(child.counts), child.sum]

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "bounds": list(self._bounds)}


class ServerMetrics:
    """All metric families. Callers must use model labels only for known models.

    Values that a worker reports merge by maximum, since every server process may query the same worker.
    """

    def __init__(self) -> None:
        self._add_request_counters()
        self._add_latencies_and_loads()
        self._add_worker_metrics()
        self.process_memory = GaugeFamily("process_resident_memory_bytes", "Resident memory of the server's processes.")
        self.process_start = GaugeFamily(
            "process_start_time_seconds", "Start time, in seconds since 1970.", merge="max"
        )
        self._families: tuple[MetricFamily[Any], ...] = tuple(
            family for family in vars(self).values() if isinstance(family, MetricFamily)
        )

        self.connections.child()
        self.server_info.child(__version__).set(1)
        started = read_start_time()
        if started is not None:
            self.process_start.child().set(started)

    def _add_request_counters(self) -> None:
        counter = CounterFamily
        self.requests = counter(
            "enginebay_requests_total", "Finished requests, by HTTP status.", (*_MODEL, "endpoint", "status")
        )
        self.errors = counter("enginebay_errors_total", "Failed requests, by error kind.", (*_MODEL, "kind"))
        self.prompt_tokens = counter(
            "enginebay_prompt_tokens_total", "Prompt tokens, as counted by the engine.", _MODEL
        )
        self.cached_tokens = counter("enginebay_cached_tokens_total", "Prompt tokens served from the KV cache.", _MODEL)
        self.completion_tokens = counter(
            "enginebay_completion_tokens_total", "Generated tokens, counted as they leave.", _MODEL
        )
        self.replica_requests = counter(
            "enginebay_replica_requests_total",
            "Requests sent to each replica of models that may have several, by routing reason: session, prefix, adapter, load.",
            (*_REPLICA, "reason"),
        )
        self.replica_prompt_tokens = counter(
            "enginebay_replica_prompt_tokens_total", "Prompt tokens of finished requests, by replica.", _REPLICA
        )
        self.replica_cached_tokens = counter(
            "enginebay_replica_cached_tokens_total", "Prompt tokens served from the replica's KV cache.", _REPLICA
        )
        self.rate_limited = counter(
            "enginebay_rate_limited_total", "Requests refused by the API key's rate limit.", ("key",)
        )
        self.poison_refused = counter(
            "enginebay_poison_requests_total", "Requests refused because they killed workers.", _MODEL
        )
        self.retries = counter(
            "enginebay_retries_total", "Requests retried on another worker, by error kind.", (*_MODEL, "kind")
        )
        self.requests_resumed = counter(
            "enginebay_requests_resumed_total",
            "Responses resumed on another worker after theirs died.",
            _MODEL,
        )
        self.fallbacks = counter("enginebay_fallbacks_total", "Requests that fell back to this engine.", _MODEL)
        self.rejected = counter(
            "enginebay_rejected_total", "Requests refused by the HTTP layer, by HTTP status.", ("reason",)
        )

    def _add_latencies_and_loads(self) -> None:
        gauge, histogram = GaugeFamily, HistogramFamily
        self.queue_time = histogram(
            "enginebay_queue_time_seconds", "Time from arrival until a worker gets the request.", _MODEL, _QUEUE_S
        )
        self.key_queue_time = histogram(
            "enginebay_key_queue_time_seconds",
            "Time from arrival until a worker gets the request, by API key; without keys, of all clients.", ("key",), _QUEUE_S,
        )  # fmt: skip
        self.time_to_first_token = histogram(
            "enginebay_time_to_first_token_seconds", "Time from arrival to the first token.", _MODEL, _TTFT_S
        )
        self.inter_token_latency = histogram(
            "enginebay_inter_token_latency_seconds", "Time between tokens of one response.", _MODEL, _INTER_TOKEN_S
        )
        self.request_duration = histogram(
            "enginebay_request_duration_seconds", "Time from arrival to the end of the response.", _MODEL, _DURATION_S
        )

        self.requests_running = gauge("enginebay_requests_running", "Requests sent to a worker.", _MODEL)
        self.requests_waiting = gauge("enginebay_requests_waiting", "Requests queued in the server.", _MODEL)
        self.connections = gauge("enginebay_connections", "Open client connections.")
        self.server_info = gauge("enginebay_server_info", "Always 1; the label has the version.", ("version",), "max")

    def _add_worker_metrics(self) -> None:
        counter, gauge, histogram = CounterFamily, GaugeFamily, HistogramFamily
        self.engine_steps = counter("enginebay_engine_steps_total", "Engine steps.", _MODEL, "max")
        self.engine_running = gauge("enginebay_engine_running", "Requests in the engine.", _MODEL, "max")
        self.kv_cache_usage = gauge(
            "enginebay_kv_cache_usage_ratio", "Fraction of the KV cache that running requests use.", _MODEL, "max"
        )
        self.worker_memory = gauge(
            "enginebay_worker_memory_bytes", "Resident memory of the worker's processes.", _MODEL, "max"
        )

        self.switch_time = histogram(
            "enginebay_switch_seconds", "Time from the start of a switch until the model is ready.", (*_MODEL, "came_from"),
            _SWITCH_S,
        )  # fmt: skip
        self.switch_phase = counter(
            "enginebay_switch_phase_seconds_total", "Time spent in each switch phase.", (*_MODEL, "phase")
        )
        self.switch_slo_missed = counter(
            "enginebay_switch_slo_missed_total", "Switches that took longer than switch_slo_s.", _MODEL
        )
        self.worker_deaths = counter(
            "enginebay_worker_deaths_total", "Workers that died, by cause.", (*_MODEL, "cause")
        )
        self.model_awake = gauge("enginebay_model_awake", "1 while the model accepts requests.", _MODEL, "max")

        self.replicas_ready = gauge(
            "enginebay_replicas_ready", "Replicas that accept requests, of models that may have several.", _MODEL, "max"
        )
        self.replica_running = gauge("enginebay_replica_running", "Requests in each replica.", _REPLICA, "max")
        self.replica_imbalance = gauge(
            "enginebay_replica_imbalance_ratio", "Requests in the busiest replica, divided by the mean.", _MODEL, "max"
        )
        self.gpu_reserved = gauge(
            "enginebay_gpu_reserved_bytes", "GPU memory reserved for the model, by GPU and reason of the placement.",
            (*_MODEL, "gpu", "reason"), "max",
        )  # fmt: skip

    def snapshot(self) -> Snapshot:
        """Return all values as plain data, to send to another process."""
        resident = read_resident_bytes()
        if resident:
            self.process_memory.child().set(resident)
        return {family.name: family.snapshot() for family in self._families}


def merge_snapshots(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Merge snapshots of several processes. Values add up, or take the maximum if the family says so."""
    merged: Snapshot = {}
    for snapshot in snapshots:
        for name, family in snapshot.items():
            known = merged.get(name)
            if known is not None and known.get("bounds") != family.get("bounds"):
                raise ValueError(f"{name} has different buckets in another process")
            merged[name] = family if known is None else {**known, "children": _merge_children(known, family)}
    return merged


def add_hit_ratio(snapshot: Snapshot) -> Snapshot:
    """Add the share of all prompt tokens that the KV cache served, by model and engine."""
    cached = {tuple(labels): value for labels, value in snapshot["enginebay_cached_tokens_total"]["children"]}
    prompts = snapshot["enginebay_prompt_tokens_total"]["children"]
    ratios = [[labels, cached.get(tuple(labels), 0) / total] for labels, total in prompts if total]
    name, help_ = "enginebay_cache_hit_ratio", "Fraction of the prompt tokens that the KV cache served."
    family = {"kind": "gauge", "help": help_, "labels": list(_MODEL), "merge": "max", "children": ratios}
    return {**snapshot, name: family}


def keep_counters(snapshot: Snapshot) -> Snapshot:
    """Return what stays of a process that died: its counters and histograms. Values that a worker reports go."""
    return {name: family for name, family in snapshot.items() if family["kind"] != "gauge" and family["merge"] == "add"}


def sum_family(snapshot: Snapshot, name: str) -> float:
    """Return the sum over all labels of a counter or gauge."""
    return sum(float(value) for _, value in snapshot.get(name, {}).get("children", ()))


def _merge_children(left: dict[str, Any], right: dict[str, Any]) -> list[Any]:
    merged = {tuple(values): data for values, data in left["children"]}
    for values, data in right["children"]:
        key = tuple(values)
        merged[key] = _combine_values(left["merge"], merged[key], data) if key in merged else data
    return [[list(values), data] for values, data in merged.items()]


def _combine_values(rule: MergeRule, left: Any, right: Any) -> Any:
    if rule == "max":
        return max(left, right)
    if isinstance(left, list):  # a histogram: counts and sum
        return [[a + b for a, b in zip(left[0], right[0], strict=True)], left[1] + right[1]]
    return left + right

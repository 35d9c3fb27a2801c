"""Records fleet events and worker states in the log and the metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.replica_scaler import find_ready, group_replicas
from enginebay.fleet.routing.model_client import ModelClient
from enginebay.fleet.scheduling.device_placement import name_pool
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import CounterFamily, ServerMetrics
from enginebay.worker.proto import worker_pb2 as pb

_STATE_TIMEOUT_S = 1.0


class FleetObserver:
    """The fleet's event callback. Until the server is ready, it logs only warnings and errors."""

    def __init__(self, log: ServerLog, metrics: ServerMetrics) -> None:
        self._log = log
        self._metrics = metrics
        self.serving = False

    def __call__(self, event: str, /, *, level: str = "info", **fields: Any) -> None:
        if self.serving or level != "info":
            self._log.log_event(
                event, level=level, **{name: value for name, value in fields.items() if value is not None}
            )
        if event == "model ready":
            self._record_switch(fields)
        elif event == "worker died":
            self._metrics.worker_deaths.child(*_metric_labels(fields), fields["cause"]).inc()

    def _record_switch(self, fields: dict[str, Any]) -> None:
        labels = _metric_labels(fields)
        self._metrics.switch_time.child(*labels, fields["came_from"]).observe(fields["seconds"])
        for name, seconds in fields.items():
            if name.endswith("_s"):
                self._metrics.switch_phase.child(*labels, name.removesuffix("_s")).inc(seconds)
        if fields.get("missed"):
            self._metrics.switch_slo_missed.child(*labels).inc()

    def update_gauges(self, replicas: Iterable[Replica]) -> None:
        """Update the gauges before a scrape."""
        replicas = list(replicas)
        self._update_placements(replicas)
        groups = list(group_replicas(replicas).values())
        ready = {_variant_labels(copies[0]): find_ready(copies) is not None for copies in groups}
        self._metrics.model_awake.keep_only(ready)
        for labels, is_ready in ready.items():
            self._metrics.model_awake.child(*labels).set(int(is_ready))
        self._update_replica_gauges([copies for copies in groups if copies[0].variant.max_replicas > 1])

    def _update_replica_gauges(self, groups: Sequence[Sequence[Replica]]) -> None:
        """Report the replicas of the variants that may have several."""
        metrics = self._metrics
        running = {_variant_labels(copies[0]): _count_running(copies) for copies in groups}
        for family in (metrics.replicas_ready, metrics.replica_imbalance):
            family.keep_only(running)
        metrics.replica_running.keep_only({(*labels, name) for labels, counts in running.items() for name in counts})
        for labels, counts in running.items():
            metrics.replicas_ready.child(*labels).set(len(counts))
            total = sum(counts.values())
            metrics.replica_imbalance.child(*labels).set(max(counts.values()) * len(counts) / total if total else 1.0)
            for name, count in counts.items():
                metrics.replica_running.child(*labels, name).set(count)

    def _update_placements(self, replicas: Iterable[Replica]) -> None:
        reserved: Counter[tuple[str, ...]] = Counter()
        for replica in replicas:
            for gpu in replica.gpus:
                if (needed := replica.needed_bytes.get(name_pool(gpu))) is not None:
                    reserved[*_variant_labels(replica), str(gpu), replica.placement_reason] += needed
        self._metrics.gpu_reserved.keep_only(reserved)
        for labels, amount in reserved.items():
            self._metrics.gpu_reserved.child(*labels).set(amount)


def _variant_labels(replica: Replica) -> tuple[str, str]:
    return replica.variant.model, replica.variant.kind


def _count_running(copies: Iterable[Replica]) -> dict[str, int]:
    """Return the running requests of the ready replicas, by name."""
    return {copy.name: copy.running for copy in copies if copy.ready}


def _metric_labels(fields: dict[str, Any]) -> tuple[str, str]:
    """Return the model and engine labels. A fallback shares its model's name and differs by engine."""
    return fields["model"].partition("@")[0], fields["engine"]


async def observe_workers(metrics: ServerMetrics, clients: Iterable[ModelClient]) -> None:
    """Update the metrics of these workers. One that times out keeps its last values; removed workers are dropped."""
    clients = list(clients)
    known = {_client_labels(client) for client in clients}
    for family in (metrics.engine_running, metrics.worker_memory, metrics.engine_steps, metrics.kv_cache_usage):
        family.keep_only(known)
    states: dict[tuple[str, str], list[pb.StateReply]] = {}
    for client, state in zip(clients, await asyncio.gather(*map(_read_state, clients)), strict=True):
        if state is not None:
            states.setdefault(_client_labels(client), []).append(state)
    for labels, replicas in states.items():
        _record_states(metrics, labels, replicas)


async def _read_state(client: ModelClient) -> pb.StateReply | None:
    try:
        async with asyncio.timeout(_STATE_TIMEOUT_S):
            return await client.client.state()
    except (EnginebayError, TimeoutError):
        return None


def _record_states(metrics: ServerMetrics, labels: tuple[str, str], replicas: Sequence[pb.StateReply]) -> None:
    """Record the sum over the replicas of a model; of the KV cache, the mean."""
    metrics.engine_running.child(*labels).set(sum(state.running for state in replicas))
    metrics.worker_memory.child(*labels).set(sum(state.memory_bytes for state in replicas))
    steps = [state.steps for state in replicas if state.HasField("steps")]
    ratios = [state.kv_used_ratio for state in replicas if state.HasField("kv_used_ratio")]
    _set_or_remove(metrics.engine_steps, labels, sum(steps) if steps else None)
    _set_or_remove(metrics.kv_cache_usage, labels, sum(ratios) / len(ratios) if ratios else None)


def _set_or_remove(family: CounterFamily, labels: tuple[str, str], value: float | None) -> None:
    if value is None:
        family.remove_child(*labels)
    else:
        family.child(*labels).set(value)


def _client_labels(client: ModelClient) -> tuple[str, str]:
    return client.handle.model, client.facts.kind

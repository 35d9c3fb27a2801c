"""Records fleet events and worker states in the log and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from enginebay.errors import EnginebayError
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.routing.model_client import ModelClient
from enginebay.fleet.scheduling.device_placement import name_pool
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import CounterFamily, ServerMetrics

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
        ready = {(replica.variant.model, replica.variant.kind): replica.ready for replica in replicas}
        self._metrics.model_awake.keep_only(ready)
        for labels, is_ready in ready.items():
            self._metrics.model_awake.child(*labels).set(int(is_ready))

    def _update_placements(self, replicas: Iterable[Replica]) -> None:
        placed = {
            (replica.variant.model, replica.variant.kind, str(gpu), replica.placement_reason): reserved
            for replica in replicas
            for gpu in replica.gpus
            if (reserved := replica.needed_bytes.get(name_pool(gpu))) is not None
        }
        self._metrics.gpu_reserved.keep_only(placed)
        for labels, reserved in placed.items():
            self._metrics.gpu_reserved.child(*labels).set(reserved)


def _metric_labels(fields: dict[str, Any]) -> tuple[str, str]:
    """Return the model and engine labels. A fallback shares its model's name and differs by engine."""
    return fields["model"].partition("@")[0], fields["engine"]


async def observe_workers(metrics: ServerMetrics, clients: Iterable[ModelClient]) -> None:
    """Update the metrics of these workers. One that times out keeps its last values; removed workers are dropped."""
    clients = list(clients)
    known = {_client_labels(client) for client in clients}
    for family in (metrics.engine_running, metrics.worker_memory, metrics.engine_steps, metrics.kv_cache_usage):
        family.keep_only(known)
    await asyncio.gather(*(_observe_worker(metrics, client) for client in clients))


async def _observe_worker(metrics: ServerMetrics, client: ModelClient) -> None:
    labels = _client_labels(client)
    try:
        async with asyncio.timeout(_STATE_TIMEOUT_S):
            state = await client.client.state()
    except (EnginebayError, TimeoutError):
        return
    metrics.engine_running.child(*labels).set(state.running)
    metrics.worker_memory.child(*labels).set(state.memory_bytes)
    _set_or_remove(metrics.engine_steps, labels, state.steps if state.HasField("steps") else None)
    _set_or_remove(metrics.kv_cache_usage, labels, state.kv_used_ratio if state.HasField("kv_used_ratio") else None)


def _set_or_remove(family: CounterFamily, labels: tuple[str, str], value: float | None) -> None:
    if value is None:
        family.remove_child(*labels)
    else:
        family.child(*labels).set(value)


def _client_labels(client: ModelClient) -> tuple[str, str]:
    return client.handle.model, client.facts.kind

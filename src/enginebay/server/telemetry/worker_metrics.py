"""What the workers say of themselves, put among the server's metrics when somebody asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from enginebay.errors import EnginebayError
from enginebay.fleet.routing.model_client import ModelClient
from enginebay.server.telemetry.server_metrics import CounterFamily, ServerMetrics

_STATE_TIMEOUT_S = 1.0


async def observe_workers(metrics: ServerMetrics, clients: Iterable[ModelClient]) -> None:
    """Workers that do not answer at once keep the values they last had; those that have gone leave none."""
    clients = list(clients)
    known = {_metric_labels(client) for client in clients}
    for family in (metrics.engine_running, metrics.worker_memory, metrics.engine_steps, metrics.kv_cache_usage):
        family.keep_only(known)
    await asyncio.gather(*(_observe_worker(metrics, client) for client in clients))


async def _observe_worker(metrics: ServerMetrics, client: ModelClient) -> None:
    labels = _metric_labels(client)
    try:
        async with asyncio.timeout(_STATE_TIMEOUT_S):
            state = await client.client.state()
    except (EnginebayError, TimeoutError):
        return
    metrics.engine_running.child(*labels).set(state.running)
    metrics.worker_memory.child(*labels).set(state.memory_bytes)
    _set_or_remove(metrics.engine_steps, labels, state.steps if state.HasField("steps") else None)
    _set_or_remove(metrics.kv_cache_usage, labels, state.kv_used_ratio if state.HasField("kv_used_ratio") else None)


def _set_or_remove(family: CounterFamily, labels: tuple[str, str], told: float | None) -> None:
    if told is None:
        family.remove_child(*labels)
    else:
        family.child(*labels).set(told)


def _metric_labels(client: ModelClient) -> tuple[str, str]:
    return client.handle.model, client.facts.kind

"""What the workers say of themselves, put among the server's metrics when somebody asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from enginebay.errors import EnginebayError
from enginebay.fleet.model_client import ModelClient
from enginebay.server.metrics import Counter, Metrics

_PATIENCE_S = 1.0


async def observe_workers(metrics: Metrics, clients: Iterable[ModelClient]) -> None:
    """Workers that do not answer at once keep the values they last had; those that have gone leave none."""
    clients = list(clients)
    known = {_labels(client) for client in clients}
    for family in (metrics.engine_running, metrics.worker_memory, metrics.engine_steps, metrics.kv_cache_usage):
        family.keep(known)
    await asyncio.gather(*(_observe(metrics, client) for client in clients))


async def _observe(metrics: Metrics, client: ModelClient) -> None:
    labels = _labels(client)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            state = await client.client.state()
    except (EnginebayError, TimeoutError):
        return
    metrics.engine_running.child(*labels).set(state.running)
    metrics.worker_memory.child(*labels).set(state.memory_bytes)
    _set(metrics.engine_steps, labels, state.steps if state.HasField("steps") else None)
    _set(metrics.kv_cache_usage, labels, state.kv_used_ratio if state.HasField("kv_used_ratio") else None)


def _set(family: Counter, labels: tuple[str, str], told: float | None) -> None:
    if told is None:
        family.remove(*labels)
    else:
        family.child(*labels).set(told)


def _labels(client: ModelClient) -> tuple[str, str]:
    return client.resident.model, client.facts.kind

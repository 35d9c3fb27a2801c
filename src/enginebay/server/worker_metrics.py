"""What the workers say of themselves, put among the server's metrics when somebody asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from enginebay.errors import EnginebayError
from enginebay.fleet.model_client import ModelClient
from enginebay.server.metrics import Metrics

_PATIENCE_S = 1.0


async def observe_workers(metrics: Metrics, clients: Iterable[ModelClient]) -> None:
    """Workers that do not answer at once keep the values they last had."""
    await asyncio.gather(*(_observe(metrics, client) for client in clients))


async def _observe(metrics: Metrics, client: ModelClient) -> None:
    labels = (client.resident.model, client.facts.kind)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            state = await client.client.state()
    except (EnginebayError, TimeoutError):
        return
    metrics.engine_running.child(*labels).set(state.running)
    metrics.worker_memory.child(*labels).set(state.memory_bytes)
    if state.HasField("steps"):
        metrics.engine_steps.child(*labels).set(state.steps)
    if state.HasField("kv_used_ratio"):
        metrics.kv_cache_usage.child(*labels).set(state.kv_used_ratio)

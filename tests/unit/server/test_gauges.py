"""Gauges of models that have gone: reported no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from enginebay.server.fleet_events import FleetEvents
from enginebay.server.metrics import Metrics
from enginebay.server.worker_metrics import observe_workers
from enginebay.worker.proto import worker_pb2 as pb


def place(model: str, kind: str, ready: bool) -> Any:
    return SimpleNamespace(variant=SimpleNamespace(model=model, kind=kind), ready=ready)


class Worker:
    """Says of itself what it is told to; nothing when that is None."""

    def __init__(self, model: str, state: pb.StateReply | None) -> None:
        self.resident, self.facts = SimpleNamespace(model=model), SimpleNamespace(kind="fake")
        self.client = self
        self.told = state

    async def state(self) -> pb.StateReply:
        if self.told is None:
            raise TimeoutError
        return self.told


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    return {labels[0]: value for labels, value in metrics.snapshot()[f"enginebay_{name}"]["children"]}


def test_a_model_that_was_removed_is_neither_awake_nor_not() -> None:
    metrics = Metrics()
    events = FleetEvents(None, metrics)  # type: ignore[arg-type]
    events.observe([place("a", "fake", True), place("b", "fake", False)])
    assert shown(metrics, "model_awake") == {"a": 1, "b": 0}
    events.observe([place("b", "fake", True)])
    assert shown(metrics, "model_awake") == {"b": 1}
    events.observe([])
    assert shown(metrics, "model_awake") == {}


async def test_a_model_without_a_worker_uses_nothing() -> None:
    metrics = Metrics()
    names = ("worker_memory_bytes", "engine_running", "kv_cache_usage_ratio", "engine_steps_total")
    state = pb.StateReply(running=2, memory_bytes=100, steps=7, kv_used_ratio=0.5)
    workers: list[Any] = [Worker("a", state), Worker("b", state)]
    await observe_workers(metrics, workers)
    assert all(set(shown(metrics, name)) == {"a", "b"} for name in names)
    workers[1].told = None
    await observe_workers(metrics, workers[1:])
    assert [shown(metrics, name) for name in names] == [{"b": 100}, {"b": 2}, {"b": 0.5}, {"b": 7}], "as last told"
    workers[1].told = pb.StateReply(running=1, memory_bytes=50)
    await observe_workers(metrics, workers[1:])
    assert [shown(metrics, name) for name in names] == [{"b": 50}, {"b": 1}, {}, {}], "what it does not tell is unknown"
    await observe_workers(metrics, [])
    assert not any(shown(metrics, name) for name in names)

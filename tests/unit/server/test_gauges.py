"""Gauges of models that have gone: reported no longer. And what is counted of a request that is tried again."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.server import Limits, ServerConfig
from enginebay.errors import Draining, EnginebayError, WorkerDied
from enginebay.fleet.variants import Offering
from enginebay.server.admission import Gate
from enginebay.server.app import App
from enginebay.server.call import Call
from enginebay.server.fleet_events import FleetEvents
from enginebay.server.generating import enter
from enginebay.server.instance import Instance, Setup
from enginebay.server.keys import Keyring
from enginebay.server.metrics import Metrics
from enginebay.server.routes import Route
from enginebay.server.served import ServedModel
from enginebay.server.tracing import Tracer
from enginebay.server.worker_metrics import observe_workers
from enginebay.worker.proto import worker_pb2 as pb
from tests.unit.server.test_retrying import call_of


def place(model: str, kind: str, ready: bool) -> Any:
    return SimpleNamespace(variant=SimpleNamespace(model=model, kind=kind), ready=ready)


def setup(*models: str, kind: str = "fake") -> Setup:
    return Setup(ServerConfig(log_level="error"), tuple(Offering(one, (one,), (kind,)) for one in models), Keyring())


def served(model: str, metrics: Metrics) -> ServedModel:
    client: Any = SimpleNamespace(
        resident=SimpleNamespace(model=model, sampling={}, tool_format="auto"),
        facts=SimpleNamespace(kind="fake", version="1"),
        spec=SimpleNamespace(renders=True),
        prompts=SimpleNamespace(tokenizer=None),
    )
    return ServedModel(client, Limits(), metrics, Gate(2, 2, 1.0))


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


async def test_requests_of_a_model_that_has_gone_are_told_as_long_as_there_are_any() -> None:
    metrics, names = Metrics(), ("requests_running", "requests_waiting")
    with socket.socket() as sock:
        instance = Instance(sock, setup("a", "b"), None, None, None, metrics)  # type: ignore[arg-type]
        gone, kept = served("a", metrics), served("b", metrics)
        kept.running.inc()
        leave = await enter(call_of(), gone)
        await instance.configure(setup("b"))
        instance.snapshot()
        assert [shown(metrics, name) for name in names] == [{"a": 1, "b": 1}, {"b": 0}]
        leave()
        instance.snapshot()
        assert shown(metrics, "requests_running") == {"b": 1}
        leave = await enter(call_of(), gone)  # one that had its session before the model left
        instance.snapshot()
        assert shown(metrics, "requests_running") == {"a": 1, "b": 1}
        leave()
        await instance.close()


async def test_requests_of_a_model_on_another_engine_are_told_there_alone() -> None:
    metrics = Metrics()
    with socket.socket() as sock:
        instance = Instance(sock, setup("a", kind="other"), None, None, None, metrics)  # type: ignore[arg-type]
        served("a", metrics)
        instance.snapshot()
        assert shown(metrics, "requests_running") == shown(metrics, "requests_waiting") == {}
        await instance.close()


@pytest.mark.parametrize(
    ("error", "retries"), [(Draining("it sleeps"), []), (WorkerDied("it is gone"), [[["m", "fake", "worker_died"], 2]])]
)
async def test_a_request_that_is_tried_again_has_waited_once(error: EnginebayError, retries: list[Any]) -> None:
    metrics, failures = Metrics(), [error, error]
    model, call = served("m", metrics), call_of()
    context: Any = SimpleNamespace(metrics=metrics, log=SimpleNamespace(request=lambda _: None))
    app = App(context, Keyring(), Tracer(), keyless=True)

    async def handler(_: Any, call: Call) -> None:
        call.served, call.labels = model, model.labels
        (await enter(call, model))()
        if failures:
            failures.pop()
            raise error

    await app._routed(call, Route("POST", "/", handler, "completions", scope=None))
    app._record(call)
    snapshot = metrics.snapshot()
    assert [sum(data[0]) for _, data in snapshot["enginebay_queue_time_seconds"]["children"]] == [1]
    assert snapshot["enginebay_retries_total"]["children"] == retries

"""Gauges of removed models are dropped, and a retried request is counted once."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from enginebay.config.sections.server_section import ServerConfig, ServerLimits
from enginebay.contract.engine_messages import Usage
from enginebay.errors import Draining, EnginebayError, WorkerDied
from enginebay.fleet.routing.variants import ModelRoute
from enginebay.server.api.app import App
from enginebay.server.api.routes import Route
from enginebay.server.auth.api_keys import Keyring
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.run_generation import enter_queue
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.supervisor.server_instance import ServerInstance, ServerSetup
from enginebay.server.supervisor.supervisor import Supervisor
from enginebay.server.telemetry.fleet_observer import FleetObserver, observe_workers
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.server.telemetry.tracing import Tracer
from enginebay.worker.proto import worker_pb2 as pb
from tests.unit.server.requests.test_retry_policy import make_request_context


def replica(model: str, kind: str, ready: bool) -> Any:
    variant = SimpleNamespace(name=f"{model}@{kind}", model=model, kind=kind, max_replicas=1)
    return SimpleNamespace(
        variant=variant, ready=ready, running=0, number=1, gpus=(), placement_reason="", needed_bytes={}
    )


def setup(*models: str, kind: str = "fake") -> ServerSetup:
    return ServerSetup(
        ServerConfig(log_level="error"), tuple(ModelRoute(model, (model,), (kind,)) for model in models), Keyring()
    )


def make_session(model: str, metrics: ServerMetrics) -> ModelSession:
    client: Any = SimpleNamespace(
        handle=SimpleNamespace(
            model=model, sampling={}, tool_format="auto", reasoning_format="auto", replica="", address=""
        ),
        facts=SimpleNamespace(kind="fake", version="1"),
        spec=SimpleNamespace(renders=True),
        prompt_encoder=SimpleNamespace(tokenizer=None),
    )
    return ModelSession(client, ServerLimits(), metrics, AdmissionQueue(2, 2, 1.0))


class Worker:
    """Reports a given state, or times out if it is None."""

    def __init__(self, model: str, state: pb.StateReply | None) -> None:
        self.handle, self.facts = SimpleNamespace(model=model), SimpleNamespace(kind="fake")
        self.client = self
        self.reply = state

    async def state(self) -> pb.StateReply:
        if self.reply is None:
            raise TimeoutError
        return self.reply


def shown(metrics: ServerMetrics, name: str) -> dict[str, float]:
    return {labels[0]: value for labels, value in metrics.snapshot()[f"enginebay_{name}"]["children"]}


def test_a_removed_model_has_no_awake_gauge() -> None:
    metrics = ServerMetrics()
    observer = FleetObserver(None, metrics)  # type: ignore[arg-type]
    observer.update_gauges([replica("a", "fake", True), replica("b", "fake", False)])
    assert shown(metrics, "model_awake") == {"a": 1, "b": 0}
    observer.update_gauges([replica("b", "fake", True)])
    assert shown(metrics, "model_awake") == {"b": 1}
    observer.update_gauges([])
    assert shown(metrics, "model_awake") == {}


def test_gpu_memory_is_reported_where_a_model_sits_and_dropped_when_it_leaves() -> None:
    metrics = ServerMetrics()
    observer = FleetObserver(None, metrics)  # type: ignore[arg-type]
    placed = replica("a", "fake", True)
    placed.gpus, placed.placement_reason, placed.needed_bytes = (2, 3), "linked GPUs", {"ram": 1, "gpu2": 5, "gpu3": 7}
    observer.update_gauges([placed, replica("b", "fake", True)])
    assert metrics.gpu_reserved.snapshot()["children"] == [
        [["a", "fake", "2", "linked GPUs"], 5], [["a", "fake", "3", "linked GPUs"], 7]
    ]  # fmt: skip
    observer.update_gauges([replica("a", "fake", False)])
    assert metrics.gpu_reserved.snapshot()["children"] == []


async def test_a_model_without_a_worker_has_no_worker_metrics() -> None:
    metrics = ServerMetrics()
    names = ("worker_memory_bytes", "engine_running", "kv_cache_usage_ratio", "engine_steps_total")
    state = pb.StateReply(running=2, memory_bytes=100, steps=7, kv_used_ratio=0.5)
    workers: list[Any] = [Worker("a", state), Worker("b", state)]
    await observe_workers(metrics, workers)
    assert all(set(shown(metrics, name)) == {"a", "b"} for name in names)
    workers[1].reply = None
    await observe_workers(metrics, workers[1:])
    assert [shown(metrics, name) for name in names] == [{"b": 100}, {"b": 2}, {"b": 0.5}, {"b": 7}], "as last reported"
    workers[1].reply = pb.StateReply(running=1, memory_bytes=50)
    await observe_workers(metrics, workers[1:])
    assert [shown(metrics, name) for name in names] == [{"b": 50}, {"b": 1}, {}, {}], (
        "what it does not report is dropped"
    )
    await observe_workers(metrics, [])
    assert not any(shown(metrics, name) for name in names)


async def test_request_gauges_of_a_removed_model_stay_until_they_are_0() -> None:
    metrics, names = ServerMetrics(), ("requests_running", "requests_waiting")
    with socket.socket() as sock:
        instance = ServerInstance(sock, setup("a", "b"), None, None, None, metrics)  # type: ignore[arg-type]
        removed, kept = make_session("a", metrics), make_session("b", metrics)
        kept.running_gauge.inc()
        leave = await enter_queue(make_request_context(), removed)
        await instance.configure(setup("b"))
        instance.snapshot()
        assert [shown(metrics, name) for name in names] == [{"a": 1, "b": 1}, {"b": 0}]
        leave()
        instance.snapshot()
        assert shown(metrics, "requests_running") == {"b": 1}
        leave = await enter_queue(make_request_context(), removed)  # a request that got its session before the removal
        instance.snapshot()
        assert shown(metrics, "requests_running") == {"a": 1, "b": 1}
        leave()
        await instance.close()


async def test_request_gauges_move_with_the_model_to_another_engine() -> None:
    metrics = ServerMetrics()
    with socket.socket() as sock:
        instance = ServerInstance(sock, setup("a", kind="other"), None, None, None, metrics)  # type: ignore[arg-type]
        make_session("a", metrics)
        instance.snapshot()
        assert shown(metrics, "requests_running") == shown(metrics, "requests_waiting") == {}
        await instance.close()


@pytest.mark.parametrize(
    ("error", "retries"), [(Draining("it sleeps"), []), (WorkerDied("it is gone"), [[["m", "fake", "worker_died"], 2]])]
)
async def test_a_retried_request_has_one_queue_time(error: EnginebayError, retries: list[Any]) -> None:
    metrics, failures = ServerMetrics(), [error, error]
    session, call = make_session("m", metrics), make_request_context()
    context: Any = SimpleNamespace(metrics=metrics, routes=(), log=SimpleNamespace(log_request=lambda _: None))
    app = App(context, Keyring(), Tracer(), keyless=True)

    async def handler(_: Any, call: RequestContext) -> None:
        call.session, call.labels = session, session.labels
        (await enter_queue(call, session))()
        if failures:
            failures.pop()
            raise error

    await app._run_with_retries(call, Route("POST", "/", handler, "completions", scope=None))
    app._record_request(call)
    snapshot = metrics.snapshot()
    assert [sum(data[0]) for _, data in snapshot["enginebay_queue_time_seconds"]["children"]] == [1]
    assert snapshot["enginebay_retries_total"]["children"] == retries


async def test_tokens_of_a_retried_request_count_once() -> None:
    """The first attempt generated 5 tokens that were never sent; the second one's usage is what counts."""
    metrics = ServerMetrics()
    session, call = make_session("m", metrics), make_request_context()
    context: Any = SimpleNamespace(metrics=metrics, routes=(), log=SimpleNamespace(log_request=lambda _: None))
    app = App(context, Keyring(), Tracer(), keyless=True)
    attempts = [5, 7]

    async def handler(_: Any, call: RequestContext) -> None:
        call.session, call.labels = session, session.labels
        call.counted_tokens.count_completion(session, attempts[0])
        call.usage = Usage(10, attempts.pop(0), 2)
        if attempts:
            raise WorkerDied("it is gone")

    await app._run_with_retries(call, Route("POST", "/", handler, "completions", scope=None))
    app._record_request(call)
    assert [shown(metrics, f"{name}_tokens_total") for name in ("prompt", "cached", "completion")] == [
        {"m": 10}, {"m": 2}, {"m": 7},
    ]  # fmt: skip


class DeadProcess:
    """A server process that died after its last report."""

    pid = 17
    exit_status: ClassVar[dict[str, str]] = {"signal": "SIGKILL"}

    def __init__(self, metrics: ServerMetrics) -> None:
        self.last_snapshot: Any = metrics.snapshot()
        self.channel = SimpleNamespace(closed=SimpleNamespace(done=lambda: True))


def test_a_process_that_died_keeps_its_counters_and_loses_its_gauges() -> None:
    metrics, lines = ServerMetrics(), list[tuple[str, dict[str, Any]]]()
    metrics.requests.child("m", "fake", "chat", "200").inc(40)
    metrics.time_to_first_token.child("m", "fake").observe(0.1, 40)
    metrics.requests_running.child("m", "fake").set(3)
    metrics.requests_waiting.child("m", "fake").set(2)
    metrics.engine_steps.child("m", "fake").set(9)  # the worker's own: the other processes report it
    supervisor: Any = object.__new__(Supervisor)
    supervisor._metrics, supervisor._dead_counters = ServerMetrics(), {}
    supervisor._log = SimpleNamespace(log_event=lambda name, **fields: lines.append((name, fields)))
    child: Any = DeadProcess(metrics)
    before = supervisor._merge_metrics([child])
    supervisor._record_exit(child)
    for merged in (before, supervisor._merge_metrics([child]), supervisor._merge_metrics([])):
        children = {name: family["children"] for name, family in merged.items()}
        assert children["enginebay_requests_total"] == [[["m", "fake", "chat", "200"], 40]]
        assert [sum(data[0]) for _, data in children["enginebay_time_to_first_token_seconds"]] == [40]
        assert not children["enginebay_requests_running"] and not children["enginebay_engine_steps_total"]
    assert lines == [("server process died", {"level": "error", "pid": 17, "signal": "SIGKILL", "requests": 5})]

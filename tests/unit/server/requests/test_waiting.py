"""What a request that waits in vain gets, and what is recorded of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.errors import Cancelled, Draining, Overloaded
from enginebay.server.api.openai.embeddings import _run_embed
from enginebay.server.requests.retry_policy import classify_fallback_trigger
from enginebay.server.requests.run_generation import enter_queue, enter_tokenizer
from enginebay.server.sessions.admission_queue import AdmissionQueue
from enginebay.server.telemetry.server_metrics import MetricValue
from tests.unit.server.requests.test_retry_policy import make_request_context

MB = 1 << 20


def make_large(queue: AdmissionQueue, size: int) -> Any:
    request_context = make_request_context()
    request_context.tokenizer_queue = queue
    request_context.exchange.body = b" " * size
    return request_context


async def test_a_timeout_in_the_queue_is_recorded_as_queue_time() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=1, timeout_s=0.05)
    queue.try_enter()
    session: Any = SimpleNamespace(queue=queue, waiting_gauge=MetricValue(), running_gauge=MetricValue())
    request_context = make_request_context()
    with pytest.raises(Overloaded):
        await enter_queue(request_context, session)
    assert request_context.queued_s >= 0.05


async def test_a_full_tokenizer_is_not_the_models_queue() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=0, timeout_s=5)
    queue.try_enter()
    with pytest.raises(Overloaded, match="tokenized") as refused:
        async with enter_tokenizer(make_large(queue, MB)):
            pass
    assert classify_fallback_trigger(refused.value) is None
    assert classify_fallback_trigger(Overloaded("x")) == "queue"


async def test_a_large_body_takes_several_places_in_the_tokenizer() -> None:
    queue = AdmissionQueue(max_running=4, max_waiting=5, timeout_s=5)
    async with enter_tokenizer(make_large(queue, 3 * MB)):
        assert queue.running == 4
    async with enter_tokenizer(make_large(queue, MB // 2)):
        assert queue.running == 1
    async with enter_tokenizer(make_large(queue, 30 * MB)):
        assert queue.running == 31, "alone"
    assert queue.running == 0


async def test_nothing_is_tokenized_for_a_client_that_left() -> None:
    queue = AdmissionQueue(max_running=4, max_waiting=5, timeout_s=5)
    request_context = make_large(queue, MB)
    request_context.exchange.closed = True
    with pytest.raises(Cancelled):
        async with enter_tokenizer(request_context):
            await asyncio.sleep(0)
    assert queue.running == 0


async def test_an_embedding_is_not_sent_to_a_worker_that_died() -> None:
    queue = AdmissionQueue(max_running=1, max_waiting=1, timeout_s=5)
    worker = SimpleNamespace(broken=False, disconnected=True)
    session: Any = SimpleNamespace(
        queue=queue,
        waiting_gauge=MetricValue(),
        running_gauge=MetricValue(),
        client=SimpleNamespace(client=worker),
        pool=None,
    )
    with pytest.raises(Draining):
        await _run_embed(make_request_context(), session, [(1,)])
    assert queue.running == 0

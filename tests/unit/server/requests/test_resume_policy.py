"""Which responses continue after the death of their worker, and how often."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import CrashLoop, Draining, EnginebayError, EngineFailed, PoisonRequest, TimedOut, WorkerDied
from enginebay.server.requests import run_generation
from enginebay.server.requests.resume_policy import check_same_model, is_resumable, should_resume
from tests.unit.server.requests.test_retry_policy import make_request_context

ONE = GenerateRequest(token_ids=(1,))


def make_session(continues: bool = True, kind: str = "vllm", source: str = "a") -> Any:
    client = SimpleNamespace(
        spec=SimpleNamespace(continues=continues, kind=kind), handle=SimpleNamespace(source=source)
    )
    return SimpleNamespace(client=client)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([ONE], True),
        ([replace(ONE, sampling=Sampling(best_of=1))], True),
        ([ONE, ONE], False),
        ([replace(ONE, sampling=Sampling(n=2))], False),
        ([replace(ONE, sampling=Sampling(best_of=2))], False),
        ([replace(ONE, sampling=Sampling(num_beams=2))], False),
        ([GenerateRequest(text="hello")], False),
    ],
)
def test_one_sequence_of_known_ids(requests: list[GenerateRequest], expected: bool) -> None:
    assert is_resumable(make_request_context(), make_session(), requests) is expected


def test_the_engine_and_the_configuration_must_allow_it() -> None:
    request_context = make_request_context()
    assert not is_resumable(request_context, make_session(continues=False), [ONE])
    assert request_context.catalog_entry is not None
    request_context.catalog_entry.route = replace(request_context.catalog_entry.route, resume=False)
    assert not is_resumable(request_context, make_session(), [ONE])


def test_not_after_a_second_death() -> None:
    request_context = make_request_context()
    assert should_resume(request_context, WorkerDied("x")) and request_context.worker_deaths == 1
    assert should_resume(request_context, Draining("x")), "no worker ran it"
    assert not should_resume(request_context, WorkerDied("x"))


def test_not_after_a_retry_of_which_the_worker_died_too() -> None:
    request_context = make_request_context()
    request_context.worker_deaths = 1
    assert not should_resume(request_context, WorkerDied("x"))


@pytest.mark.parametrize("error", [CrashLoop("x"), PoisonRequest("x"), EngineFailed("x")])
def test_other_errors_end_it(error: Any) -> None:
    assert not should_resume(make_request_context(), error)


def test_not_more_than_twice_nor_without_a_client() -> None:
    request_context = make_request_context()
    request_context.resumes = 2
    assert not should_resume(request_context, WorkerDied("x"))
    request_context.resumes, request_context.exchange.closed = 0, True
    assert not should_resume(request_context, WorkerDied("x"))


def test_another_model_knows_other_ids() -> None:
    check_same_model(make_session(), make_session())
    for other in (make_session(kind="fake"), make_session(source="b")):
        with pytest.raises(WorkerDied, match="reconfigured"):
            check_same_model(make_session(), other)


async def test_no_worker_continues_a_response_whose_time_is_up() -> None:
    loop, request_context = asyncio.get_running_loop(), make_request_context()
    request_context.server = Mock()
    failed: list[EnginebayError] = []
    writer = Mock(is_paused=True, fail=failed.append, timer=Mock(when=lambda: loop.time() - 1))
    session = Mock(limits=Mock(request_timeout_s=600.0))
    error = await run_generation._continue_response(request_context, session, writer, [], WorkerDied("x"))
    assert isinstance(error, TimedOut) and failed == [error]
    assert request_context.server.mock_calls == [] and writer.resume.mock_calls == []

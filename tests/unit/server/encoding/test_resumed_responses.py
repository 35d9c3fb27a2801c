"""A response that loses its worker: it pauses, and continues on another one or fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import Delta, FinishReason, GenerateRequest
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import EngineFailed, PoisonRequest, WorkerDied
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from tests.unit.server.encoding.test_response_writer import (
    Connection,
    Worker,
    contents,
    make_encoder,
    make_session,
    start_stream,
)

DIED = WorkerDied("gone")
DONE = Done(Usage(1, 4, 1), Timing(0.1, 0.2), Energy(3.0))


class NextWorker(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[GenerateRequest] = []

    def submit(self, request: GenerateRequest, listener: Any) -> int:
        self.requests.append(request)
        return super().submit(request, listener)


def pause_stream(**options: Any) -> tuple[Any, Connection]:
    writer, connection, _ = start_stream(**options)
    writer.is_resumable = True
    writer.on_token("a", 5)
    writer.on_token("", 6)
    writer.on_flush()
    return writer, connection


def resume(writer: Any) -> tuple[NextWorker, Any]:
    worker = NextWorker()
    session = make_session()
    session.client = SimpleNamespace(client=worker)
    writer.resume(session)
    return worker, worker.listeners[1]


async def test_a_paused_response_continues_after_its_ids() -> None:
    writer, connection = pause_stream(usage=True, timing=True, energy=True)
    writer.on_error(DIED)
    assert writer.is_paused and await writer.finished is DIED and not connection.ended
    worker, listener = resume(writer)
    assert worker.requests[0].generated == (5, 6) and worker.requests[0].token_ids == (1,)
    listener.on_token("b", 7)
    listener.on_delta(Delta("c", (8,), 0, (), FinishReason.LENGTH))
    listener.on_done(DONE)
    assert await writer.finished is None and connection.ended
    assert "".join(contents(connection)) == "abc"
    usage = connection.events[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1, 4)
    assert "energy_j" not in usage["enginebay"] and "worker died" in usage["enginebay"]["energy_absent"]
    assert usage["enginebay"]["total_s"] != 0.2, "by the server's clock, over both workers"
    assert writer.counted_tokens.completion == 4


async def test_text_that_came_without_its_end_is_not_sent_twice() -> None:
    """The engine sends the text that it held back, and the worker dies before it sends the end."""
    writer, connection = pause_stream()
    writer.on_delta(Delta("EN", ()))
    writer.on_error(DIED)
    _, listener = resume(writer)
    listener.on_delta(Delta("E", ()))
    listener.on_delta(Delta("Nd", ()))
    listener.on_delta(Delta("", (), 0, (), FinishReason.STOP))
    listener.on_done(DONE)
    assert "".join(contents(connection)) == "aENd"


async def test_an_ended_response_needs_no_other_worker() -> None:
    writer, connection = pause_stream(usage=True)
    writer.on_delta(Delta("", (), 0, (), FinishReason.STOP))
    writer.on_error(DIED)
    assert await writer.finished is None and connection.ended and not writer.is_paused
    assert connection.events[-1]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(("error", "code"), [(PoisonRequest("bad"), "poison_request"), (DIED, "engine_unavailable")])
async def test_a_response_that_cannot_continue_ends_in_an_error_event(error: Any, code: str) -> None:
    writer, connection = pause_stream()
    writer.on_error(DIED)
    writer.fail(error)
    assert connection.ended and connection.events[-1]["error"]["code"] == code
    assert (writer.usage.prompt_tokens, writer.usage.completion_tokens) == (1, 2)


async def test_what_does_not_pause() -> None:
    writer, connection = pause_stream()
    writer.on_error(EngineFailed("no"))
    assert connection.ended and not writer.is_paused
    writer, connection, _ = start_stream()
    writer.is_resumable = True
    writer.on_error(DIED)
    assert await writer.finished is DIED and not writer.is_paused, "nothing was sent: it is retried"
    writer, connection = pause_stream()
    writer.is_resumable = False
    writer.on_error(DIED)
    assert connection.ended and not writer.is_paused


async def test_a_client_that_leaves_in_the_pause() -> None:
    writer, connection = pause_stream()
    writer.on_error(DIED)
    connection.on_close()
    assert await writer.finished is DIED
    worker, _ = resume(writer)
    connection.on_close()
    assert worker.cancelled == [1]


async def test_a_whole_response_continues_too() -> None:
    connection = Connection()
    writer = ChoicesJsonWriter(connection, make_session(), [ChoiceState(0)], make_encoder().encode_body)  # type: ignore[arg-type]
    writer.submit(Worker(), [GenerateRequest(token_ids=(1,))])  # type: ignore[arg-type]
    writer.is_resumable = True
    writer.on_token("a", 5)
    writer.on_error(DIED)
    _, listener = resume(writer)
    listener.on_delta(Delta("b", (6,), 0, (), FinishReason.STOP))
    listener.on_done(DONE)
    assert b'"ab"' in connection.writes[-1]

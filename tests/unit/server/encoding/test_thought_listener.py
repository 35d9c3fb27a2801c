"""A response in two phases: the thought, and the answer that a constraint binds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import Delta, FinishReason, GenerateRequest, Guided, Sampling
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import EngineFailed, InvalidRequest, WorkerDied
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.encoding.thought_listener import ThoughtLimits
from enginebay.text.reasoning import REASONING_FORMATS
from tests.unit.server.encoding.test_response_writer import Connection, Worker, make_encoder, make_session

GUIDED = Guided(json='{"type": "object"}')
PROMPT = tuple(b"Q: ")
DONE = Done(Usage(99, 3, 50), Timing(0.1, 0.2), Energy(1.0))


class RecordingWorker(Worker):
    """Hands out requests; text is one token for each byte."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[GenerateRequest] = []

    def submit(self, request: GenerateRequest, listener: Any) -> int:
        self.requests.append(request)
        return super().submit(request, listener)

    def send(self, text: str, flush: bool = True) -> None:
        """Generate the text with the request that runs, as far as it is not cancelled."""
        number = len(self.listeners)
        for char in text:
            if number not in self.cancelled:
                self.listeners[number].on_token(char, ord(char))
        if flush:
            self.listeners[len(self.listeners)].on_flush()

    def finish(self, reason: FinishReason = FinishReason.STOP) -> None:
        number = len(self.listeners)
        self.listeners[number].on_delta(Delta("", (), 0, (), reason))
        if number not in self.cancelled:
            self.listeners[number].on_done(DONE)


def begin(
    budget: int | None = None, guided: Guided | None = GUIDED, name: str = "think", prompt_end: str = "", stream: bool = True,
    context: int = 1000, **sampling: Any,
) -> tuple[Any, Connection, RecordingWorker]:  # fmt: skip
    answer = GenerateRequest(token_ids=PROMPT, sampling=Sampling(guided=guided, **sampling), energy=True)
    found = REASONING_FORMATS[name]
    connection, worker, session = Connection(), RecordingWorker(), make_session()
    session.restore_markers = lambda text, ids: text
    encoder, choices = (
        make_encoder(usage=True, energy=True, timing=True),
        [ChoiceState(0, found.create_parser(None, prompt_end))],
    )
    writer: Any
    if stream:
        writer = ChoicesSseWriter(connection, session, choices, encoder)  # type: ignore[arg-type]
    else:
        writer = ChoicesJsonWriter(connection, session, choices, encoder.encode_body)  # type: ignore[arg-type]
    writer.thought_limits = ThoughtLimits(
        found, prompt_end, answer, guided is not None, budget, context, lambda text: tuple(text.encode())
    )
    first = GenerateRequest(token_ids=PROMPT, sampling=Sampling(**sampling), energy=True)
    writer.submit(worker, [first])
    return writer, connection, worker


def read(connection: Connection) -> tuple[str, str]:
    deltas = [choice["delta"] for event in connection.events for choice in event["choices"]]
    return "".join(d.get("reasoning_content", "") for d in deltas), "".join(d.get("content") or "" for d in deltas)


def prompt_of(request: GenerateRequest) -> str:
    return bytes(request.token_ids or ()).decode()


async def test_the_constraint_binds_the_answer_and_not_the_thought() -> None:
    writer, connection, worker = begin(max_tokens=100)
    worker.send("<think>\nhm\n</think>XYZ")
    assert worker.cancelled == [1] and len(worker.requests) == 2
    first, second = worker.requests
    assert first.sampling.guided is None and second.sampling.guided is GUIDED
    assert prompt_of(second) == "Q: <think>\nhm\n</think>\n\n"
    used = len("<think>\nhm\n</think>")
    assert second.sampling.max_tokens == 100 - used
    worker.send("{}")
    worker.finish()
    assert await writer.finished is None
    assert read(connection) == ("hm", "{}")
    usage = connection.events[-1]["usage"]
    assert usage["prompt_tokens"] == len(PROMPT) and usage["completion_tokens"] == used + DONE.usage.completion_tokens
    assert usage["completion_tokens_details"] == {"reasoning_tokens": used}
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0} and "energy_absent" in usage["enginebay"]
    assert writer.counted_tokens.prompt == len(PROMPT)


async def test_a_whole_body_has_both_phases() -> None:
    writer, connection, worker = begin(stream=False)
    worker.send("<think>hm</think>")
    worker.send("{}")
    worker.finish()
    assert await writer.finished is None
    assert b'"reasoning_content":"hm"' in connection.writes[-1] and b'"content":"{}"' in connection.writes[-1]


async def test_a_model_that_does_not_think_is_constrained_from_the_start() -> None:
    _, connection, worker = begin()
    worker.send("<th")
    assert len(worker.requests) == 1 and not connection.writes, "nobody knows yet"
    worker.send("e answer")
    assert worker.cancelled == [1] and prompt_of(worker.requests[1]) == "Q: "
    worker.send("{}")
    worker.finish()
    assert read(connection) == ("", "{}")
    assert connection.events[-1]["usage"]["completion_tokens"] == DONE.usage.completion_tokens, (
        "what was dropped is free"
    )


async def test_a_token_that_ends_the_thought_and_begins_the_answer_is_cut() -> None:
    _, connection, worker = begin(prompt_end="<think>")
    worker.listeners[1].on_delta(Delta("hm</think", (7, 8)))
    worker.listeners[1].on_delta(Delta(">Yes", (9,)))
    assert worker.requests[1].token_ids == (*PROMPT, 7, 8, *b">", *b"\n\n")
    worker.send("{}")
    worker.finish()
    assert read(connection) == ("hm", "{}")


async def test_whitespace_after_the_thought_stays() -> None:
    _, _, worker = begin(prompt_end="<think>")
    worker.listeners[1].on_delta(Delta("hm</think", (7, 8)))
    worker.listeners[1].on_delta(Delta(">\n\n", (9,)))
    assert worker.requests[1].token_ids == (*PROMPT, 7, 8, 9)


async def test_the_budget_ends_a_thought() -> None:
    writer, connection, worker = begin(budget=9, guided=None, stop=("END",), max_tokens=50)
    worker.send("<think>abcdef")
    assert worker.cancelled == [1] and prompt_of(worker.requests[1]) == "Q: <think>ab\n</think>\n\n"
    assert worker.requests[1].sampling.stop == ("END",) and worker.requests[1].sampling.max_tokens == 41
    worker.send("So it is.")
    worker.finish()
    assert await writer.finished is None
    assert read(connection) == ("ab", "So it is.")
    assert connection.events[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 9}


async def test_a_thought_within_its_budget_needs_no_second_request() -> None:
    _, connection, worker = begin(budget=50, guided=None)
    worker.send("<think>ab</think>\n\nSo it is.")
    worker.finish()
    assert len(worker.requests) == 1 and not worker.cancelled
    assert read(connection) == ("ab", "So it is.")
    assert connection.events[-1]["usage"]["enginebay"]["energy_j"] == 1.0


@pytest.mark.parametrize("guided", [None, GUIDED])
async def test_the_last_piece_may_come_with_the_end(guided: Guided | None) -> None:
    writer, connection, worker = begin(budget=50, guided=guided)
    worker.send("<think>ab</think")
    worker.listeners[1].on_delta(Delta(">Yes", (1,), 0, (), FinishReason.STOP))
    if guided is None:
        worker.listeners[1].on_done(DONE)
    else:
        worker.send("{}")
        worker.finish()
    assert await writer.finished is None
    assert read(connection) == ("ab", "Yes" if guided is None else "{}")
    assert [event["choices"][0]["finish_reason"] for event in connection.events[:-1]].count("stop") == 1


async def test_without_a_constraint_an_answer_without_a_thought_goes_out() -> None:
    _, connection, worker = begin(budget=50, guided=None)
    worker.send("<b>Yes</b>")
    worker.finish()
    assert len(worker.requests) == 1 and read(connection) == ("", "<b>Yes</b>")


async def test_a_budget_that_ends_before_the_tag() -> None:
    _, connection, worker = begin(budget=3, guided=None)
    worker.send("<think>abc")
    assert prompt_of(worker.requests[1]) == "Q: <think>\n\n</think>\n\n"
    worker.send("Yes.")
    worker.finish()
    assert read(connection) == ("", "Yes.")


@pytest.mark.parametrize("text", ["<think>hm", ""])
async def test_a_constrained_answer_comes_even_if_the_model_ends_its_thought_by_ending(text: str) -> None:
    _, connection, worker = begin()
    worker.send(text, flush=bool(text))
    worker.finish()
    assert worker.cancelled == [1] and len(worker.requests) == 2
    worker.send("{}")
    worker.finish()
    assert read(connection) == ("hm" if text else "", "{}")


async def test_a_thought_that_takes_all_tokens() -> None:
    writer, connection, worker = begin(max_tokens=9)
    worker.send("<think>ab")
    worker.finish(FinishReason.LENGTH)
    assert await writer.finished is None and len(worker.requests) == 1
    assert connection.events[-2]["choices"][0]["finish_reason"] == "length" and read(connection) == ("ab", "")


@pytest.mark.parametrize("limit", [{"max_tokens": 17}, {"context": len(PROMPT) + 18}])
async def test_no_token_is_left_for_the_answer(limit: dict[str, int]) -> None:
    writer, connection, worker = begin(**limit)  # type: ignore[arg-type]
    worker.send("<think>hm</think>x")
    assert await writer.finished is None and len(worker.requests) == 1 and worker.cancelled == [1]
    assert connection.events[-2]["choices"][0]["finish_reason"] == "length"
    assert connection.events[-1]["usage"]["completion_tokens"] == 17


async def test_harmony_channels_are_phases_too() -> None:
    _, connection, worker = begin(name="harmony", prompt_end="<|start|>assistant")
    worker.send("<|channel|>analysis<|message|>hm<|end|>")
    assert prompt_of(worker.requests[1]).endswith("hm<|end|><|start|>assistant<|channel|>final<|message|>")
    worker.send("{}")
    worker.finish()
    assert read(connection) == ("hm", "{}")


async def test_a_harmony_answer_without_a_thought_gets_its_header() -> None:
    _, connection, worker = begin(name="harmony", prompt_end="<|start|>assistant")
    worker.send("<|channel|>final<|message|>")
    assert prompt_of(worker.requests[1]) == "Q: <|channel|>final<|message|>"
    worker.send("{}")
    worker.finish()
    assert read(connection) == ("", "{}")


# Resumed


def resume(writer: Any) -> RecordingWorker:
    worker = RecordingWorker()
    session = make_session()
    session.restore_markers = lambda text, ids: text
    session.client = SimpleNamespace(client=worker)
    writer.resume(session)
    return worker


def lose_worker(writer: Any, worker: RecordingWorker) -> RecordingWorker:
    worker.listeners[len(worker.listeners)].on_error(WorkerDied("gone"))
    assert writer.is_paused
    return resume(writer)


def ids(text: str) -> Sequence[int]:
    return tuple(text.encode())


async def test_a_worker_that_dies_within_the_thought() -> None:
    writer, connection, worker = begin()
    writer.is_resumable = True
    worker.send("<think>ab")
    other = lose_worker(writer, worker)
    assert other.requests[0].generated == ids("<think>ab") and other.requests[0].sampling.guided is None
    other.send("c</think>")
    assert other.cancelled == [1] and prompt_of(other.requests[1]) == "Q: <think>abc</think>\n\n"
    other.send("{}")
    other.finish()
    assert await writer.finished is None and read(connection) == ("abc", "{}")


@pytest.mark.parametrize("begun", ["", "{"])
async def test_a_worker_that_dies_within_the_answer(begun: str) -> None:
    writer, connection, worker = begin()
    writer.is_resumable = True
    worker.send("<think>ab</think>")
    worker.send(begun)
    other = lose_worker(writer, worker)
    [request] = other.requests
    assert prompt_of(request) == "Q: <think>ab</think>\n\n" and request.generated == ids(begun)
    assert request.sampling.guided is GUIDED
    other.send("{}"[len(begun) :])
    other.finish()
    assert await writer.finished is None and read(connection) == ("ab", "{}")
    usage = connection.events[-1]["usage"]
    assert usage["prompt_tokens"] == len(PROMPT)
    assert usage["completion_tokens"] == len("<think>ab</think>") + DONE.usage.completion_tokens


async def test_a_worker_that_dies_between_the_phases() -> None:
    writer, connection, worker = begin()
    writer.is_resumable = True
    worker.send("<think>ab</think")

    def refuse(request: GenerateRequest, listener: Any) -> int:
        raise WorkerDied("gone")

    worker.submit = refuse  # type: ignore[method-assign]
    worker.send(">")
    assert writer.is_paused
    other = resume(writer)
    assert prompt_of(other.requests[0]) == "Q: <think>ab</think>\n\n"
    other.send("{}")
    other.finish()
    assert read(connection) == ("ab", "{}")


async def test_an_error_of_the_answer_is_the_response_s() -> None:
    writer, connection, worker = begin()
    worker.send("<think>ab</think>")
    worker.listeners[2].on_error(InvalidRequest("the schema is too large", param="guided_json"))
    assert connection.events[-1]["error"]["message"].startswith("the schema is too large")
    assert writer.usage.completion_tokens == len("<think>ab</think>")


@pytest.mark.parametrize("step", ["submit_answer", "insert_text"])
async def test_a_failure_between_the_phases_ends_the_response(step: str) -> None:
    writer, connection, worker = begin()
    worker.send("<think>ab</think")

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    setattr(writer, step, fail)
    worker.send(">")
    assert isinstance(await asyncio.wait_for(writer.finished, 5), EngineFailed)
    assert connection.events[-1]["error"]["code"] == "engine_failed"


async def test_a_client_that_leaves_between_the_phases() -> None:
    _, connection, worker = begin()
    worker.send("<think>ab</think>")
    connection.on_close()
    assert worker.cancelled == [1, 2]

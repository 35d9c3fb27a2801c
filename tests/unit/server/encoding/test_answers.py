"""Answers between a worker's session and a client's connection, without either."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract import Delta, FinishReason, GenerateRequest, Sampling, TokenLogprobs
from enginebay.contract.engine_messages import Done, Energy, Timing, Usage
from enginebay.errors import EngineFailed, InvalidRequest
from enginebay.server.api.openai.encoders.chat_encoder import ChatEncoder
from enginebay.server.encoding import response_writer as answer_module
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.text.tool_calls import TOOL_CALL_FORMATS

DONE = Done(Usage(3, 2, 1), Timing(0.1, 0.2))


class Connection:
    """Stands for an exchange: remembers what was written."""

    def __init__(self) -> None:
        self.started = self.closed = self.congested = self.aborted = self.ended = False
        self.received = 0.0
        self.status = 0
        self.writes: list[bytes] = []
        self.on_close: Any = None

    def start(self, status: int, *_: Any) -> None:
        self.started, self.status = True, status

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def end(self, data: bytes = b"") -> None:
        self.writes.append(data)
        self.ended = True

    def respond(self, status: int, body: bytes, **_: Any) -> None:
        self.started = self.ended = True
        self.status = status
        self.writes.append(body)

    def abort(self) -> None:
        self.aborted = True

    @property
    def events(self) -> list[Any]:
        text = b"".join(self.writes).decode()
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


class Session:
    """Stands for the worker's client."""

    def __init__(self) -> None:
        self.listeners: dict[int, Any] = {}
        self.cancelled: list[int] = []

    def submit(self, request: GenerateRequest, listener: Any) -> int:
        number = len(self.listeners) + 1
        self.listeners[number] = listener
        return number

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


def served(buffer: int = 1000) -> Any:
    metrics = ServerMetrics()
    return SimpleNamespace(
        ttft=metrics.time_to_first_token.child("m", "e"),
        inter_token=metrics.inter_token_latency.child("m", "e"),
        limits=SimpleNamespace(stream_buffer_bytes=buffer),
        markers={99: "<tool_call>"},
        marked=lambda text, ids: "<tool_call>" * (99 in ids) + text,
        heard_at=0.0,
        call_id=lambda: "call_1",
    )


def form(
    choices: int = 1, logprobs: bool = False, usage: bool = False, timing: bool = False, energy: bool = False
) -> ChatEncoder:
    return ChatEncoder(
        id="id", created=1, model="m", fingerprint="e", choices=choices, with_logprobs=logprobs, include_usage=usage,
        include_timing=timing, include_energy=energy, token_bytes=lambda token: bytes((token,)),
    )  # fmt: skip


def streamed(
    choices: Sequence[ChoiceState] = (), buffer: int = 1000, **options: bool
) -> tuple[Any, Connection, Session]:
    connection, session = Connection(), Session()
    chosen = choices or [ChoiceState(0)]
    answer = ChoicesSseWriter(connection, served(buffer), chosen, form(len(chosen), **options))  # type: ignore[arg-type]
    answer.submit(session, [GenerateRequest(token_ids=(1,), sampling=Sampling(n=len(chosen)))])  # type: ignore[arg-type]
    return answer, connection, session


def contents(connection: Connection) -> list[str]:
    found = [one["choices"][0]["delta"] for one in connection.events if one["choices"]]
    return [delta["content"] for delta in found if "content" in delta and "role" not in delta]


async def test_a_flush_is_one_write_with_one_event_per_token() -> None:
    answer, connection, _ = streamed()
    for text in ("a", "", 'b"\n', "\x00ü"):
        answer.token(text, 1)
    assert not connection.started
    answer.flushed()
    assert connection.started and len(connection.writes) == 2  # the role, then the tokens
    assert contents(connection) == ["a", "", 'b"\n', "\x00ü"]


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\v", "\f", "\x1c", "\x1d", "\x1e", "\r"], ids=ascii)
async def test_a_line_end_of_unicode_does_not_cut_an_event_in_two(end: str) -> None:
    """Many clients split lines as `str.splitlines` does, and so does `connection.events` here."""
    answer, connection, _ = streamed()
    told = [f"a{end}b", f"中{end}", f"{end}c"]
    answer.token(told[0], 1)
    answer.flushed()
    answer.token(told[1], 1)
    answer.delta(Delta(told[2], (1,), 0, (), FinishReason.STOP))
    answer.done(DONE)
    answer.flushed()
    assert connection.ended and contents(connection) == told


async def test_the_end_is_one_write_too() -> None:
    answer, connection, session = streamed(usage=True)
    answer.token("a", 1)
    answer.flushed()
    answer.token("b", 1)
    answer.delta(Delta("", (), 0, (), FinishReason.LENGTH))
    answer.done(DONE)
    answer.flushed()
    assert connection.ended and len(connection.writes) == 3
    assert connection.events[-1]["usage"]["total_tokens"] == 5
    assert "enginebay" not in connection.events[-1]["usage"]  # which nobody asked for
    assert connection.events[-2]["choices"][0]["finish_reason"] == "length"
    assert answer.over.result() is None and not session.cancelled


async def test_times_are_told_with_the_counts_to_whoever_asks() -> None:
    answer, connection, _ = streamed(usage=True, timing=True)
    connection.received = answer.submitted_at - 0.25
    answer.token("a", 1)
    answer.delta(Delta("", (), 0, (), FinishReason.LENGTH))
    answer.done(DONE)
    told = [event["usage"] for event in connection.events]
    assert told[-1]["enginebay"] == {"queue_s": 0.25, "ttft_s": 0.1, "total_s": 0.2}
    assert told[-1]["total_tokens"] == 5 and set(told[:-1]) == {None}


async def test_of_several_prompts_the_first_token_of_any_and_the_end_of_all() -> None:
    connection, session = Connection(), Session()
    choices = [ChoiceState(index) for index in range(3)]
    answer = ChoicesSseWriter(connection, served(), choices, form(3, usage=True, timing=True))  # type: ignore[arg-type]
    answer.submit(session, [GenerateRequest(token_ids=(1,))] * 3)  # type: ignore[arg-type]
    for listener, timing in zip(
        session.listeners.values(), (Timing(0.3, 0.4), Timing(0.1, 0.9), Timing(0.2, 0.5)), strict=True
    ):
        listener.done(Done(Usage(1, 1, 0), timing))
    told = connection.events[-1]["usage"]["enginebay"]
    assert (told["ttft_s"], told["total_s"]) == (0.1, 0.9)


async def test_joules_are_told_with_the_counts_to_whoever_asks() -> None:
    answer, connection, _ = streamed(usage=True, energy=True)
    answer.token("a", 1)
    answer.delta(Delta("", (), 0, (), FinishReason.LENGTH))
    answer.done(replace(DONE, energy=Energy(1.25, 90.5)))
    assert connection.events[-1]["usage"]["enginebay"] == {"energy_j": 1.25, "energy_idle_w": 90.5}


def test_both_ways_to_tell_joules() -> None:
    whole = json.loads(form(energy=True).encode_body([], Usage(), Energy(absent="no meter")))
    assert whole["usage"]["enginebay"] == {"energy_absent": "no meter"}
    assert "enginebay" not in json.loads(form().encode_body([], Usage(), Energy(1.0, 2.0)))["usage"]
    untold = json.loads(form(energy=True).encode_body([], Usage(), None))["usage"]["enginebay"]
    assert untold == {"energy_absent": "the worker does not tell it"}


@pytest.mark.parametrize(
    ("energies", "told"),
    [
        ((Energy(1.0, 90.0), Energy(2.0, 91.0)), {"energy_j": 3.0, "energy_idle_w": 91.0}),
        ((Energy(1.0, 90.0), Energy(None, 91.0, "shared")), {"energy_absent": "shared", "energy_idle_w": 91.0}),
        ((Energy(absent="shared"), Energy(1.0, 90.0)), {"energy_absent": "shared"}),
    ],
)
async def test_of_several_prompts_the_sum_if_all_are_known(energies: tuple[Energy, Energy], told: object) -> None:
    connection, session = Connection(), Session()
    answer = ChoicesSseWriter(connection, served(), [ChoiceState(0), ChoiceState(1)], form(2, usage=True, energy=True))  # type: ignore[arg-type]
    answer.submit(session, [GenerateRequest(token_ids=(1,), energy=True)] * 2)  # type: ignore[arg-type]
    for listener, energy in zip(session.listeners.values(), energies, strict=True):
        listener.done(replace(DONE, energy=energy))
    assert connection.events[-1]["usage"]["enginebay"] == told


async def test_a_slow_client_gets_everything_later_as_one_write() -> None:
    answer, connection, _ = streamed(buffer=100_000)
    answer.token("a", 1)
    answer.flushed()
    connection.congested = True
    before = len(connection.writes)
    for text in "bcd":
        answer.token(text, 1)
        answer.flushed()
    assert len(connection.writes) == before
    connection.congested = False
    answer.pump()
    assert len(connection.writes) == before + 1 and contents(connection) == list("abcd")


async def test_a_client_that_never_reads_is_cut_off() -> None:
    answer, connection, session = streamed(buffer=1000)
    connection.congested = True
    for _ in range(20):
        answer.token("x", 1)
        answer.flushed()
    assert connection.aborted and session.cancelled == [1]
    error = answer.over.result()
    assert error.kind == "timed_out" and "server.limits.stream_buffer_bytes" in error.message


async def test_a_client_that_leaves_frees_the_engine() -> None:
    answer, connection, session = streamed()
    connection.on_close()
    assert session.cancelled == [1] and answer.over.result().kind == "cancelled"
    answer.token("late", 1)
    answer.flushed()
    answer.done(DONE)
    assert not connection.writes


async def test_an_error_before_the_first_token_is_left_to_whoever_may_try_again() -> None:
    answer, connection, _ = streamed()
    error = EngineFailed("exploded")
    answer.failed(error)
    assert not connection.writes and answer.untouched and answer.over.result() is error


async def test_an_error_after_the_first_token_is_an_event() -> None:
    answer, connection, _ = streamed()
    answer.token("a", 1)
    answer.flushed()
    answer.failed(EngineFailed("/a/path exploded"))
    assert connection.status == 200 and not answer.untouched
    assert "path" not in b"".join(connection.writes).decode()
    assert b'"error"' in connection.writes[-1] and connection.ended


async def test_an_error_with_a_line_end_of_unicode_is_one_event() -> None:
    answer, connection, _ = streamed()
    answer.token("a", 1)
    answer.flushed()
    answer.failed(InvalidRequest("no \u2028 here"))
    assert connection.events[-1]["error"]["message"] == "no \u2028 here"


async def test_choices_and_logprobs() -> None:
    answer, connection, _ = streamed([ChoiceState(0), ChoiceState(1)], logprobs=True)
    answer.delta(Delta("a", (97,), 1, (TokenLogprobs(97, -0.5, ((97, -0.5), (98, float("-inf")))),)))
    answer.flushed()
    event = connection.events[-1]["choices"][0]
    assert event["index"] == 1 and event["delta"] == {"content": "a"}
    [entry] = event["logprobs"]["content"]
    assert entry["token"] == "a" and entry["bytes"] == [97]
    assert entry["top_logprobs"][1]["logprob"] == -9999.0  # JSON has no infinity


async def test_a_hidden_marker_is_put_back_for_the_tool_parser() -> None:
    choice = ChoiceState(0, TOOL_CALL_FORMATS["hermes"].create_parser([]))
    answer, connection, _ = streamed([choice])
    answer.token("", 99)
    for text in ('{"name": "f", "arguments": {"a"', ": 1}}", "</tool_call>"):
        answer.token(text, 1)
    answer.delta(Delta("", (), 0, (), FinishReason.STOP))
    answer.done(DONE)
    calls = [call for event in connection.events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "f" and calls[0]["id"] == "call_1"
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"a": 1}
    assert connection.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_whole_answers_of_several_prompts() -> None:
    connection, session = Connection(), Session()
    choices = [ChoiceState(index) for index in range(4)]
    answer = ChoicesJsonWriter(connection, served(), choices, form(4).encode_body)  # type: ignore[arg-type]
    requests = [GenerateRequest(token_ids=(one,), sampling=Sampling(n=2)) for one in (1, 2)]
    answer.submit(session, requests)  # type: ignore[arg-type]
    for number, listener in session.listeners.items():
        listener.token(f"prompt {number}", 1)
        listener.delta(Delta("other", (2,), 1))
        for choice in (0, 1):
            listener.delta(Delta("", (), choice, (), FinishReason.STOP))
    session.listeners[1].done(DONE)
    assert not connection.ended
    session.listeners[2].done(DONE)
    found = json.loads(connection.writes[0])
    assert [one["message"]["content"] for one in found["choices"]] == ["prompt 1", "other", "prompt 2", "other"]
    assert found["usage"]["completion_tokens"] == 4


async def test_what_an_answer_cost_is_known_even_if_nobody_waits_for_its_end() -> None:
    answer, _, _ = streamed()
    for text in "abc":
        answer.token(text, 1)
    answer.flushed()
    answer.token("d", 1)
    answer.cancel()
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1, 4)


class Clock:
    """Stands for the module `time` where answers are timed."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(answer_module, "time", made)
    return made


def gaps(answer: Any) -> tuple[int, float]:
    """How many there were between tokens, and how long they were on average."""
    found = answer.served.inter_token
    return sum(found.counts), found.sum / max(1, sum(found.counts))


async def test_the_first_flush_has_no_gaps_in_it(clock: Clock) -> None:
    answer, _, _ = streamed()
    clock.now += 5.0
    for text in "abc":
        answer.token(text, 1)
    answer.flushed()
    assert gaps(answer) == (0, 0.0)
    clock.now += 0.2
    for text in "de":
        answer.token(text, 1)
    answer.flushed()
    assert gaps(answer) == (2, pytest.approx(0.1))


async def test_gaps_are_those_of_each_choice(clock: Clock) -> None:
    answer, _, _ = streamed([ChoiceState(0), ChoiceState(1), ChoiceState(2)])
    for step in range(6):
        clock.now += 0.1
        for choice in range(3):
            if choice == 0 or step < 3:
                answer.delta(Delta("a", (1,), choice))
            if step == 2 and choice > 0:
                answer.delta(Delta("", (), choice, (), FinishReason.STOP))
        answer.flushed()
    assert gaps(answer) == (2 * 3 + 3, pytest.approx(0.1))


async def test_gaps_are_those_of_each_prompt(clock: Clock) -> None:
    connection, session = Connection(), Session()
    answer = ChoicesJsonWriter(connection, served(), [ChoiceState(0), ChoiceState(1)], form(2).encode_body)  # type: ignore[arg-type]
    answer.submit(session, [GenerateRequest(token_ids=(1,))] * 2)  # type: ignore[arg-type]
    for _ in range(4):
        clock.now += 0.1
        for listener in session.listeners.values():
            listener.token("a", 1)
        for listener in session.listeners.values():
            listener.flushed()
    assert gaps(answer) == (6, pytest.approx(0.1))


async def test_a_choice_that_has_not_begun_makes_no_gaps_longer(clock: Clock) -> None:
    """As where an engine computes one after the other."""
    answer, _, _ = streamed([ChoiceState(0), ChoiceState(1)])
    for choice in range(2):
        for _ in range(3):
            clock.now += 0.1
            answer.delta(Delta("a", (1,), choice))
            answer.flushed()
        answer.delta(Delta("", (), choice, (), FinishReason.STOP))
        answer.flushed()
    assert gaps(answer) == (5, pytest.approx(0.1))


def left(request: GenerateRequest, deltas: Sequence[Delta], whole: bool) -> Any:
    """An answer whose client went after these."""
    connection, session = Connection(), Session()
    choices = [ChoiceState(0)]
    answer: Any = (
        ChoicesJsonWriter(connection, served(), choices, form().encode_body)  # type: ignore[arg-type]
        if whole
        else ChoicesSseWriter(connection, served(), choices, form())  # type: ignore[arg-type]
    )
    answer.submit(session, [request])
    for delta in deltas:
        answer.delta(delta)
        answer.flushed()
    connection.on_close()
    return answer


@pytest.mark.parametrize("whole", [True, False])
async def test_text_without_tokens_has_a_price(whole: bool) -> None:
    """As it comes from elsewhere."""
    request = GenerateRequest(messages=({"role": "user", "content": "a" * 396},))
    answer = left(request, [Delta("some "), Delta("words "), Delta("x" * 400)], whole)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (100, 102)
    answer = left(request, [Delta("a")] * 7, whole)
    assert answer.usage.completion_tokens == 7
    answer = left(request, [], whole)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (100, 0)


@pytest.mark.parametrize("whole", [True, False])
async def test_tokens_that_are_held_back_have_a_price(whole: bool) -> None:
    """As those of `best_of`, of which nothing is shown before all have ended."""
    request = GenerateRequest(token_ids=(1, 2), sampling=Sampling(best_of=4))
    answer = left(request, [Delta("")] * 12, whole)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 12)
    assert not answer.first_at and not answer.exchange.writes, "nothing was there to be seen"


async def test_a_failure_elsewhere_before_any_text_is_free() -> None:
    connection, session = Connection(), Session()
    answer = ChoicesSseWriter(connection, served(), [ChoiceState(0)], form())  # type: ignore[arg-type]
    answer.submit(session, [GenerateRequest(text="a" * 400)])  # type: ignore[arg-type]
    answer.on_error(EngineFailed("no answer"))
    assert answer.usage == Usage()

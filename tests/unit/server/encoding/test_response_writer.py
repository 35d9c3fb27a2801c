"""Response writers between a fake worker client and a fake connection."""

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
from enginebay.server.encoding import response_writer as writer_module
from enginebay.server.encoding.choice_state import ChoiceState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.telemetry.server_metrics import ServerMetrics
from enginebay.text.tool_calls import TOOL_CALL_FORMATS

TOKEN_COUNTERS = ("prompt_tokens", "cached_tokens", "completion_tokens")
DONE = Done(Usage(3, 2, 1), Timing(0.1, 0.2))


class Connection:
    """A fake exchange that records what was written."""

    def __init__(self) -> None:
        self.started = self.closed = self.congested = self.aborted = self.ended = False
        self.received_at = 0.0
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


class Worker:
    """A fake worker client."""

    def __init__(self) -> None:
        self.listeners: dict[int, Any] = {}
        self.cancelled: list[int] = []

    def submit(self, request: GenerateRequest, listener: Any) -> int:
        number = len(self.listeners) + 1
        self.listeners[number] = listener
        return number

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)


def make_session(buffer: int = 1000) -> Any:
    metrics = ServerMetrics()
    return SimpleNamespace(
        ttft=metrics.time_to_first_token.child("m", "e"),
        inter_token=metrics.inter_token_latency.child("m", "e"),
        **{name: getattr(metrics, name).child("m", "e") for name in TOKEN_COUNTERS},
        limits=SimpleNamespace(stream_buffer_bytes=buffer),
        pool=None,
        markers={99: "<tool_call>"},
        restore_markers=lambda text, ids: "<tool_call>" * (99 in ids) + text,
        next_call_id=lambda: "call_1",
    )


def make_encoder(
    choices: int = 1, logprobs: bool = False, usage: bool = False, timing: bool = False, energy: bool = False
) -> ChatEncoder:
    return ChatEncoder(
        id="id", created=1, model="m", fingerprint="e", choices=choices, with_logprobs=logprobs, include_usage=usage,
        include_timing=timing, include_energy=energy, token_bytes=lambda token: bytes((token,)),
    )  # fmt: skip


def start_stream(
    choices: Sequence[ChoiceState] = (), buffer: int = 1000, **options: bool
) -> tuple[Any, Connection, Worker]:
    connection, worker = Connection(), Worker()
    chosen = choices or [ChoiceState(0)]
    writer = ChoicesSseWriter(connection, make_session(buffer), chosen, make_encoder(len(chosen), **options))  # type: ignore[arg-type]
    writer.submit(worker, [GenerateRequest(token_ids=(1,), sampling=Sampling(n=len(chosen)))])  # type: ignore[arg-type]
    return writer, connection, worker


def contents(connection: Connection) -> list[str]:
    deltas = [event["choices"][0]["delta"] for event in connection.events if event["choices"]]
    return [delta["content"] for delta in deltas if "content" in delta and "role" not in delta]


async def test_a_flush_is_one_write_with_one_event_per_token() -> None:
    writer, connection, _ = start_stream()
    for text in ("a", "", 'b"\n', "\x00ü"):
        writer.on_token(text, 1)
    assert not connection.started
    writer.on_flush()
    assert connection.started and len(connection.writes) == 2  # the role, then the tokens
    assert contents(connection) == ["a", "", 'b"\n', "\x00ü"]


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\v", "\f", "\x1c", "\x1d", "\x1e", "\r"], ids=ascii)
async def test_unicode_line_separators_do_not_split_events(end: str) -> None:
    """Many clients split lines as `str.splitlines` does, and so does `connection.events` here."""
    writer, connection, _ = start_stream()
    texts = [f"a{end}b", f"中{end}", f"{end}c"]
    writer.on_token(texts[0], 1)
    writer.on_flush()
    writer.on_token(texts[1], 1)
    writer.on_delta(Delta(texts[2], (1,), 0, (), FinishReason.STOP))
    writer.on_done(DONE)
    writer.on_flush()
    assert connection.ended and contents(connection) == texts


async def test_the_end_is_one_write_too() -> None:
    writer, connection, worker = start_stream(usage=True)
    writer.on_token("a", 1)
    writer.on_flush()
    writer.on_token("b", 1)
    writer.on_delta(Delta("", (), 0, (), FinishReason.LENGTH))
    writer.on_done(DONE)
    writer.on_flush()
    assert connection.ended and len(connection.writes) == 3
    assert connection.events[-1]["usage"]["total_tokens"] == 5
    assert "enginebay" not in connection.events[-1]["usage"]
    assert connection.events[-2]["choices"][0]["finish_reason"] == "length"
    assert writer.finished.result() is None and not worker.cancelled


async def test_include_timing_adds_times_to_the_usage() -> None:
    writer, connection, _ = start_stream(usage=True, timing=True)
    connection.received_at = writer.submitted_at - 0.25
    writer.on_token("a", 1)
    writer.on_delta(Delta("", (), 0, (), FinishReason.LENGTH))
    writer.on_done(DONE)
    usages = [event["usage"] for event in connection.events]
    assert usages[-1]["enginebay"] == {"queue_s": 0.25, "ttft_s": 0.1, "total_s": 0.2}
    assert usages[-1]["total_tokens"] == 5 and set(usages[:-1]) == {None}


async def test_timing_of_several_prompts_is_the_first_token_of_any_and_the_end_of_all() -> None:
    connection, worker = Connection(), Worker()
    choices = [ChoiceState(index) for index in range(3)]
    writer = ChoicesSseWriter(connection, make_session(), choices, make_encoder(3, usage=True, timing=True))  # type: ignore[arg-type]
    writer.submit(worker, [GenerateRequest(token_ids=(1,))] * 3)  # type: ignore[arg-type]
    for listener, timing in zip(
        worker.listeners.values(), (Timing(0.3, 0.4), Timing(0.1, 0.9), Timing(0.2, 0.5)), strict=True
    ):
        listener.on_done(Done(Usage(1, 1, 0), timing))
    timing = connection.events[-1]["usage"]["enginebay"]
    assert (timing["ttft_s"], timing["total_s"]) == (0.1, 0.9)


async def test_include_energy_adds_joules_to_the_usage() -> None:
    writer, connection, _ = start_stream(usage=True, energy=True)
    writer.on_token("a", 1)
    writer.on_delta(Delta("", (), 0, (), FinishReason.LENGTH))
    writer.on_done(replace(DONE, energy=Energy(1.25, 90.5)))
    assert connection.events[-1]["usage"]["enginebay"] == {"energy_j": 1.25, "energy_idle_w": 90.5}


def test_energy_in_a_json_body() -> None:
    body = json.loads(make_encoder(energy=True).encode_body([], Usage(), Energy(absent="no meter")))
    assert body["usage"]["enginebay"] == {"energy_absent": "no meter"}
    assert "enginebay" not in json.loads(make_encoder().encode_body([], Usage(), Energy(1.0, 2.0)))["usage"]
    unreported = json.loads(make_encoder(energy=True).encode_body([], Usage(), None))["usage"]["enginebay"]
    assert unreported == {"energy_absent": "the worker does not report it"}


@pytest.mark.parametrize(
    ("energies", "expected"),
    [
        ((Energy(1.0, 90.0), Energy(2.0, 91.0)), {"energy_j": 3.0, "energy_idle_w": 91.0}),
        ((Energy(1.0, 90.0), Energy(None, 91.0, "shared")), {"energy_absent": "shared", "energy_idle_w": 91.0}),
        ((Energy(absent="shared"), Energy(1.0, 90.0)), {"energy_absent": "shared"}),
    ],
)
async def test_energy_of_several_prompts_is_summed(energies: tuple[Energy, Energy], expected: object) -> None:
    connection, worker = Connection(), Worker()
    choices, encoder = [ChoiceState(0), ChoiceState(1)], make_encoder(2, usage=True, energy=True)
    writer = ChoicesSseWriter(connection, make_session(), choices, encoder)  # type: ignore[arg-type]
    writer.submit(worker, [GenerateRequest(token_ids=(1,), energy=True)] * 2)  # type: ignore[arg-type]
    for listener, energy in zip(worker.listeners.values(), energies, strict=True):
        listener.on_done(replace(DONE, energy=energy))
    assert connection.events[-1]["usage"]["enginebay"] == expected


async def test_a_slow_client_gets_everything_later_as_one_write() -> None:
    writer, connection, _ = start_stream(buffer=100_000)
    writer.on_token("a", 1)
    writer.on_flush()
    connection.congested = True
    before = len(connection.writes)
    for text in "bcd":
        writer.on_token(text, 1)
        writer.on_flush()
    assert len(connection.writes) == before
    connection.congested = False
    writer.flush()
    assert len(connection.writes) == before + 1 and contents(connection) == list("abcd")


async def test_a_client_that_never_reads_is_cut_off() -> None:
    writer, connection, worker = start_stream(buffer=1000)
    connection.congested = True
    for _ in range(20):
        writer.on_token("x", 1)
        writer.on_flush()
    assert connection.aborted and worker.cancelled == [1]
    error = writer.finished.result()
    assert error.kind == "timed_out" and "server.limits.stream_buffer_bytes" in error.message


async def test_a_disconnect_cancels_the_engine_request() -> None:
    writer, connection, worker = start_stream()
    connection.on_close()
    assert worker.cancelled == [1] and writer.finished.result().kind == "cancelled"
    writer.on_token("late", 1)
    writer.on_flush()
    writer.on_done(DONE)
    assert not connection.writes


async def test_an_error_before_the_first_token_is_left_to_the_caller() -> None:
    writer, connection, _ = start_stream()
    error = EngineFailed("exploded")
    writer.on_error(error)
    assert not connection.writes and writer.no_output_sent and writer.finished.result() is error


async def test_an_error_after_the_first_token_is_an_event() -> None:
    writer, connection, _ = start_stream()
    writer.on_token("a", 1)
    writer.on_flush()
    writer.on_error(EngineFailed("/a/path exploded"))
    assert connection.status == 200 and not writer.no_output_sent
    assert "path" not in b"".join(connection.writes).decode()
    assert b'"error"' in connection.writes[-1] and connection.ended


async def test_an_error_with_a_unicode_line_separator_is_one_event() -> None:
    writer, connection, _ = start_stream()
    writer.on_token("a", 1)
    writer.on_flush()
    writer.on_error(InvalidRequest("no \u2028 here"))
    assert connection.events[-1]["error"]["message"] == "no \u2028 here"


async def test_choices_and_logprobs() -> None:
    writer, connection, _ = start_stream([ChoiceState(0), ChoiceState(1)], logprobs=True)
    writer.on_delta(Delta("a", (97,), 1, (TokenLogprobs(97, -0.5, ((97, -0.5), (98, float("-inf")))),)))
    writer.on_flush()
    event = connection.events[-1]["choices"][0]
    assert event["index"] == 1 and event["delta"] == {"content": "a"}
    [entry] = event["logprobs"]["content"]
    assert entry["token"] == "a" and entry["bytes"] == [97]
    assert entry["top_logprobs"][1]["logprob"] == -9999.0  # JSON has no infinity


async def test_a_hidden_marker_is_put_back_for_the_tool_parser() -> None:
    choice = ChoiceState(0, TOOL_CALL_FORMATS["hermes"].create_parser([]))
    writer, connection, _ = start_stream([choice])
    writer.on_token("", 99)
    for text in ('{"name": "f", "arguments": {"a"', ": 1}}", "</tool_call>"):
        writer.on_token(text, 1)
    writer.on_delta(Delta("", (), 0, (), FinishReason.STOP))
    writer.on_done(DONE)
    calls = [call for event in connection.events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "f" and calls[0]["id"] == "call_1"
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"a": 1}
    assert connection.events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_json_response_of_several_prompts() -> None:
    connection, worker = Connection(), Worker()
    choices = [ChoiceState(index) for index in range(4)]
    writer = ChoicesJsonWriter(connection, make_session(), choices, make_encoder(4).encode_body)  # type: ignore[arg-type]
    requests = [GenerateRequest(token_ids=(one,), sampling=Sampling(n=2)) for one in (1, 2)]
    writer.submit(worker, requests)  # type: ignore[arg-type]
    for number, listener in worker.listeners.items():
        listener.on_token(f"prompt {number}", 1)
        listener.on_delta(Delta("other", (2,), 1))
        for choice in (0, 1):
            listener.on_delta(Delta("", (), choice, (), FinishReason.STOP))
    worker.listeners[1].on_done(DONE)
    assert not connection.ended
    worker.listeners[2].on_done(DONE)
    body = json.loads(connection.writes[0])
    assert [choice["message"]["content"] for choice in body["choices"]] == ["prompt 1", "other", "prompt 2", "other"]
    assert body["usage"]["completion_tokens"] == 4


async def test_usage_is_counted_when_the_client_disconnects() -> None:
    writer, _, _ = start_stream()
    for text in "abc":
        writer.on_token(text, 1)
    writer.on_flush()
    writer.on_token("d", 1)
    writer.cancel()
    assert (writer.usage.prompt_tokens, writer.usage.completion_tokens) == (1, 4)


class Clock:
    """Replaces the module `time` in response_writer."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(writer_module, "time", clock)
    return clock


def gaps(writer: Any) -> tuple[int, float]:
    """Return the count and the mean of the inter-token latencies."""
    histogram = writer.session.inter_token
    return sum(histogram.counts), histogram.sum / max(1, sum(histogram.counts))


async def test_the_first_flush_has_no_gaps(clock: Clock) -> None:
    writer, _, _ = start_stream()
    clock.now += 5.0
    for text in "abc":
        writer.on_token(text, 1)
    writer.on_flush()
    assert gaps(writer) == (0, 0.0)
    clock.now += 0.2
    for text in "de":
        writer.on_token(text, 1)
    writer.on_flush()
    assert gaps(writer) == (2, pytest.approx(0.1))


async def test_gaps_are_those_of_each_choice(clock: Clock) -> None:
    writer, _, _ = start_stream([ChoiceState(0), ChoiceState(1), ChoiceState(2)])
    for step in range(6):
        clock.now += 0.1
        for choice in range(3):
            if choice == 0 or step < 3:
                writer.on_delta(Delta("a", (1,), choice))
            if step == 2 and choice > 0:
                writer.on_delta(Delta("", (), choice, (), FinishReason.STOP))
        writer.on_flush()
    assert gaps(writer) == (2 * 3 + 3, pytest.approx(0.1))


async def test_gaps_are_those_of_each_prompt(clock: Clock) -> None:
    connection, worker = Connection(), Worker()
    choices, encode_body = [ChoiceState(0), ChoiceState(1)], make_encoder(2).encode_body
    writer = ChoicesJsonWriter(connection, make_session(), choices, encode_body)  # type: ignore[arg-type]
    writer.submit(worker, [GenerateRequest(token_ids=(1,))] * 2)  # type: ignore[arg-type]
    for _ in range(4):
        clock.now += 0.1
        for listener in worker.listeners.values():
            listener.on_token("a", 1)
        for listener in worker.listeners.values():
            listener.on_flush()
    assert gaps(writer) == (6, pytest.approx(0.1))


async def test_a_choice_that_has_not_started_does_not_lengthen_gaps(clock: Clock) -> None:
    """As when an engine runs choices one after the other."""
    writer, _, _ = start_stream([ChoiceState(0), ChoiceState(1)])
    for choice in range(2):
        for _ in range(3):
            clock.now += 0.1
            writer.on_delta(Delta("a", (1,), choice))
            writer.on_flush()
        writer.on_delta(Delta("", (), choice, (), FinishReason.STOP))
        writer.on_flush()
    assert gaps(writer) == (5, pytest.approx(0.1))


def run_until_disconnect(request: GenerateRequest, deltas: Sequence[Delta], json_body: bool) -> Any:
    """Return a writer whose client disconnected after these deltas."""
    connection, worker = Connection(), Worker()
    choices = [ChoiceState(0)]
    writer: Any = (
        ChoicesJsonWriter(connection, make_session(), choices, make_encoder().encode_body)  # type: ignore[arg-type]
        if json_body
        else ChoicesSseWriter(connection, make_session(), choices, make_encoder())  # type: ignore[arg-type]
    )
    writer.submit(worker, [request])
    for delta in deltas:
        writer.on_delta(delta)
        writer.on_flush()
    connection.on_close()
    return writer


@pytest.mark.parametrize("json_body", [True, False])
async def test_text_without_token_ids_is_counted(json_body: bool) -> None:
    """As from a remote engine."""
    request = GenerateRequest(messages=({"role": "user", "content": "a" * 396},))
    writer = run_until_disconnect(request, [Delta("some "), Delta("words "), Delta("x" * 400)], json_body)
    assert (writer.usage.prompt_tokens, writer.usage.completion_tokens) == (100, 102)
    writer = run_until_disconnect(request, [Delta("a")] * 7, json_body)
    assert writer.usage.completion_tokens == 7
    writer = run_until_disconnect(request, [], json_body)
    assert (writer.usage.prompt_tokens, writer.usage.completion_tokens) == (100, 0)


@pytest.mark.parametrize("json_body", [True, False])
async def test_tokens_held_back_are_counted(json_body: bool) -> None:
    """As with `best_of`, which shows nothing before all choices end."""
    request = GenerateRequest(token_ids=(1, 2), sampling=Sampling(best_of=4))
    writer = run_until_disconnect(request, [Delta("")] * 12, json_body)
    assert (writer.usage.prompt_tokens, writer.usage.completion_tokens) == (2, 12)
    assert not writer.first_token_at and not writer.exchange.writes, "nothing was shown"


async def test_a_remote_failure_before_any_text_counts_nothing() -> None:
    connection, worker = Connection(), Worker()
    writer = ChoicesSseWriter(connection, make_session(), [ChoiceState(0)], make_encoder())  # type: ignore[arg-type]
    writer.submit(worker, [GenerateRequest(text="a" * 400)])  # type: ignore[arg-type]
    writer.on_error(EngineFailed("no answer"))
    assert writer.usage == Usage()

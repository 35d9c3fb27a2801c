from __future__ import annotations

import io
import json
import re
import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.server.telemetry.log_format import format_json_line, format_request_line, format_text_line
from enginebay.server.telemetry.server_log import RequestRecord, ServerLog, truncate_prompt

NOON = datetime(2026, 1, 2, 12, 0, 1, 234_000).timestamp()


def record(**more: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "request_id": "req_abc", "endpoint": "chat", "status": 200, "duration_s": 2.41, "model": "smollm2",
        "engine": "llamacpp", "prompt_tokens": 31, "completion_tokens": 128, "ttft_s": 0.213,
    }  # fmt: skip
    return RequestRecord(**{**given, **more})


def written(*requests: RequestRecord, **how: Any) -> str:
    stream = io.StringIO()
    log = ServerLog(stream=stream, **how)
    for one in requests:
        log.log_request(one)
    log.close()
    return stream.getvalue()


def test_a_request_reads_as_one_line() -> None:
    line = format_request_line(NOON, record())
    assert line == "12:00:01 info  chat 200 smollm2 llamacpp 31+128 tokens ttft 0.21s 2.4s req_abc"


def test_a_failed_request_says_why() -> None:
    failed = record(status=503, error="worker_died", message="the worker ended", ttft_s=None, prompt_tokens=None)
    line = format_request_line(NOON, failed)
    assert line == (
        '12:00:01 error chat 503 smollm2 llamacpp 2.4s req_abc error=worker_died message="the worker ended"'
    )


def test_waiting_and_reuse_are_shown_when_they_matter() -> None:
    assert "(20 cached) queued 0.50s ttft" in format_request_line(NOON, record(cached_tokens=20, queue_s=0.5))
    assert "queued" not in format_request_line(NOON, record(queue_s=0.01))


def test_json_has_only_known_fields() -> None:
    line = json.loads(written(record(stream=True, finish_reason="stop"), format="json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "info", "event": "request", "request_id": "req_abc", "endpoint": "chat", "status": 200,
        "duration_s": 2.41, "model": "smollm2", "engine": "llamacpp", "prompt_tokens": 31, "completion_tokens": 128,
        "ttft_s": 0.213, "stream": True, "finish_reason": "stop",
    }  # fmt: skip


def test_the_time_is_in_milliseconds_of_utc() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC).timestamp()
    assert json.loads(format_json_line(at, "info", "x", {}))["time"] == "2026-01-02T03:04:05.678Z"


def test_prompts_are_logged_only_if_enabled() -> None:
    for form in ("text", "json"):
        assert "secret" not in written(record(prompt="my secret"), format=form)
        assert "my secret" in written(record(prompt="my secret"), format=form, prompts=True)


def test_a_long_prompt_is_cut_and_says_so() -> None:
    assert truncate_prompt("a" * 10_000) == "a" * 10_000
    assert truncate_prompt("a" * 10_003).endswith("a (3 more characters)")


NASTY = 'x\n12:00:02 info  forged\r\x1b[2J\x00\x7f\x9b\u2028\u202e\ud800 \\n "q" a=b'


@pytest.mark.parametrize("field", ["model", "message", "prompt", "request_id", "client", "error", "finish_reason"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_client_input_cannot_forge_a_line(form: str, field: str) -> None:
    text = written(record(**{field: NASTY}), format=form, prompts=True)
    assert text.endswith("\n") and text[:-1].isprintable()
    text.encode()
    if form == "json":
        assert json.loads(text)[field] == NASTY


@given(st.text(), st.text())
def test_any_text_stays_on_its_line(one: str, other: str) -> None:
    assert format_text_line(NOON, "info", one, {"value": other}).isprintable()
    assert format_json_line(NOON, "info", one, {"value": other}).isprintable()
    assert json.loads(format_json_line(NOON, "info", one, {"value": other}))["value"] == other


def test_escapes_cannot_be_faked() -> None:
    lines = {format_text_line(NOON, "info", "e", {"v": value}) for value in ("a\nb", "a\\nb", "a\\\\nb")}
    assert len(lines) == 3


def test_fields_cannot_replace_reserved_names() -> None:
    found = json.loads(
        format_json_line(NOON, "info", "started", {"time": 1, "event": "forged", "port": 8000, "bad": float("inf")})
    )
    assert found["event"] == "started" and found["time"] != 1 and found["port"] == 8000 and found["bad"] is None


def test_lines_below_the_level_are_not_logged() -> None:
    stream = io.StringIO()
    log = ServerLog(level="warning", stream=stream)
    log.log_event("hidden")
    log.log_request(record())
    log.log_event("shown", level="warning", where="127.0.0.1:8000")
    log.log_request(record(status=500))
    log.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2 and " error chat 500 " in lines[1]
    assert lines[0].endswith(" warning shown where=127.0.0.1:8000")


def test_an_unknown_level_is_refused_at_once() -> None:
    with pytest.raises(ValueError):
        ServerLog(level="loud")


class Stuck(io.StringIO):
    """A pipe whose reader has stopped reading."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def write(self, text: str) -> int:
        self.go_on.wait(60)
        return super().write(text)


def test_a_stuck_reader_loses_lines_but_does_not_block_the_caller() -> None:
    stream = Stuck()
    log = ServerLog(stream=stream, format="json", max_queued=50)
    started = time.perf_counter()
    for number in range(1000):
        log.log_event("tick", number=number)
    assert time.perf_counter() - started < 30
    assert log.dropped >= 900
    stream.go_on.set()
    log.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    reported = [line["dropped"] for line in lines if line["event"] == "log lines dropped"]
    ticks = [line["number"] for line in lines if line["event"] == "tick"]
    assert sum(reported) == log.dropped == 1000 - len(ticks)
    assert ticks == sorted(ticks)


def test_a_closed_stream_is_tolerated() -> None:
    stream = io.StringIO()
    log = ServerLog(stream=stream)
    stream.close()
    log.log_event("lost")
    log.close()
    assert log.dropped == 1


def test_closing_writes_queued_lines_and_may_be_repeated() -> None:
    stream = io.StringIO()
    log = ServerLog(stream=stream)
    for number in range(2000):
        log.log_event("tick", number=number)
    log.close()
    log.close()
    assert len(stream.getvalue().splitlines()) == 2000

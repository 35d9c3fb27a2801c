"""Requests for a model that is not loaded: they wait with progress, or are rejected by their own limit."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIError, InternalServerError

from tests.integration.fleet.fleet_client import (
    BODY,
    CHAT,
    HELLO,
    BackgroundCall,
    FleetClient,
    StreamedAnswer,
    fake_model,
    hold_loading,
    run_fleet,
)
from tests.integration.fleet.server_site import find_worker, wait_until
from tests.integration.server.raw_http import build_request, connect

LOAD_S = 2.0


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetClient]:
    models = {
        "slow": fake_model(load_s=LOAD_S),
        "quick": fake_model(load_s=1.0),
        "broken": fake_model(load_s=1.0, fail_load="error"),
        "small": fake_model(load_s=3.0, context_length=64),
    }
    with run_fleet(models, tmp_path_factory.mktemp("home"), backoff_s=0) as fleet:
        yield fleet


@pytest.fixture
def slow(waiting: FleetClient) -> FleetClient:
    """The slow model is cold, and its load time is known."""
    if not any(one["model"] == "slow" for one in waiting.list_switches()):
        waiting.ask_text("slow")
    waiting.wait_idle()
    waiting.post_admin("unload", {"model": "slow"})
    return waiting


def _longest_s(fleet: FleetClient) -> float:
    """Return the measured load time of the slow model; on a busy machine it exceeds the setting."""
    return max(one["total_s"] for one in fleet.list_switches() if one["model"] == "slow")


def test_a_stream_reports_load_progress(slow: FleetClient) -> None:
    longest_s, stream = _longest_s(slow), StreamedAnswer()
    with hold_loading(slow, "slow"):
        streaming = BackgroundCall(slow.stream_into, stream, "slow")
        wait_until(lambda: len(stream.comments) >= 2, 30, "two words on the load")
        assert not stream.events
    streaming.result()
    assert stream.whole and len(stream.text) == 4
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    *progress, last = stream.comments
    if progress[-1].startswith("slow is awake"):  # it was, and the request not yet there
        progress.pop()
    assert all(text.startswith("slow is loading") for text in progress) and last.startswith("x-enginebay-engine: fake ")
    seconds = [int(text.partition("about ")[2].removesuffix(" s") or 0) for text in progress]
    assert all(0 <= one <= longest_s + 1 for one in seconds) and seconds == sorted(seconds, reverse=True)


@pytest.mark.slow
def test_sdks_read_a_stream_with_comments(slow: FleetClient) -> None:
    with slow.server.openai() as client:
        stream: Any = client.chat.completions.create(
            model="slow", messages=HELLO, max_tokens=4, stream=True, extra_body={"ignore_eos": True}  # type: ignore[arg-type]
        )  # fmt: skip
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert len(text) == 4


def test_plain_requests_just_wait(slow: FleetClient) -> None:
    began = time.monotonic()
    answer = slow.ask("slow")
    assert answer.status_code == 200 and answer.headers["x-enginebay-engine"].startswith("fake ")
    assert time.monotonic() - began >= LOAD_S


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_does_not_wait_gets_retry_after(slow: FleetClient, stream: bool) -> None:
    """At once: the response says that the model is cold."""
    refused = slow.ask("slow", {"prefer": "wait=0"}, stream=stream)
    assert refused.status_code == 503 and LOAD_S <= int(refused.headers["retry-after"]) <= _longest_s(slow) + 1
    assert refused.json()["error"]["code"] == "overloaded"
    assert "slow is cold, about " in refused.json()["error"]["message"]
    wait_until(lambda: slow.read_states()["slow"] == "awake", 30, "the load, or nobody would ever have it")


def test_a_short_wait_is_rejected_in_time(slow: FleetClient) -> None:
    longest_s = _longest_s(slow)
    with hold_loading(slow, "slow"):
        began = time.monotonic()
        refused = slow.ask("slow", {"prefer": "respond-async, wait=1"})
        assert refused.status_code == 503 and time.monotonic() - began >= 1
    assert 1 <= int(refused.headers["retry-after"]) <= longest_s  # a second of it is over
    assert refused.json()["error"]["code"] == "overloaded"
    wait_until(lambda: slow.read_states()["slow"] == "awake", 30, "the load, which goes on")
    assert slow.ask("slow", {"prefer": "wait=0"}).status_code == 200


def test_a_stream_whose_wait_ends_gets_an_error_event(slow: FleetClient) -> None:
    with hold_loading(slow, "slow"):
        stream = slow.stream("slow", {"prefer": "wait=3"})
    assert stream.status == 200 and stream.comments and stream.took_s >= 3
    [event] = stream.events
    assert json.loads(event)["error"]["code"] == "overloaded"
    wait_until(lambda: slow.read_states()["slow"] == "awake", 30, "the load, which goes on")


def test_a_client_that_leaves_no_longer_waits(slow: FleetClient) -> None:
    body = json.dumps({**BODY, "model": "slow"}).encode()
    with hold_loading(slow, "slow"):
        with connect(slow.server.port) as sock, connect(slow.server.port) as other:
            for one in (sock, other):
                one.sendall(build_request("POST", CHAT, body))
            wait_until(lambda: slow.list_admin_models()["slow"]["waiting"] == 2, 30, "both of them waiting")
            assert slow.read_metric("enginebay_requests_waiting", model="slow") == 2
            sock.close()
            wait_until(lambda: slow.list_admin_models()["slow"]["waiting"] == 1, 30, "one of them gone")
        wait_until(lambda: slow.list_admin_models()["slow"]["waiting"] == 0, 30, "both of them gone")
        wait_until(lambda: slow.read_metric("enginebay_requests_waiting", model="slow") == 0, 30, "none in the metrics")
        assert slow.read_states()["slow"] == "loading"
    wait_until(lambda: slow.read_states()["slow"] == "awake", 30, "the load, which goes on")


def test_a_load_that_fails_ends_a_stream_with_an_error_event(waiting: FleetClient) -> None:
    stream = StreamedAnswer()
    with hold_loading(waiting, "broken"):
        streaming = BackgroundCall(waiting.stream_into, stream, "broken")
        wait_until(lambda: stream.comments, 30, "a word on the load")
    streaming.result()
    assert stream.status == 200
    [event] = stream.events
    error = json.loads(event)["error"]
    assert error["code"] == "engine_unavailable" and "could not be loaded" in error["message"]
    assert waiting.read_metric("enginebay_errors_total", model="broken", kind="load_failed") == 1


def test_a_request_error_can_follow_the_comments(waiting: FleetClient) -> None:
    with waiting.server.openai() as client, pytest.raises(APIError) as refused:
        for _ in client.chat.completions.create(
            model="small", stream=True, messages=[{"role": "user", "content": "long " * 100}]
        ):
            pass
    assert refused.value.code == "context_length_exceeded"
    assert waiting.ask("small", messages=[{"role": "user", "content": "long " * 100}]).status_code == 400


def test_many_requests_wait_for_one_load(waiting: FleetClient) -> None:
    """A cold model loads once, and all are answered."""
    before = len(waiting.list_switches())
    asked = [BackgroundCall(waiting.ask_text, "quick") for _ in range(10)]
    assert len({one.result() for one in asked}) >= 1
    assert [one["model"] for one in waiting.list_switches()[before:]] == ["quick"]


def test_the_queue_is_bounded(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"slow": fake_model(load_s=1), "other": fake_model()}
    with run_fleet(models, tmp_path_factory.mktemp("home"), queue=1) as fleet:
        with hold_loading(fleet, "slow"):
            first = BackgroundCall(fleet.ask_text, "slow")
            wait_until(lambda: fleet.list_admin_models()["slow"]["waiting"] == 1, 30, "the first one waiting")
            refused = fleet.ask("slow")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1 and "already wait" in refused.json()["error"]["message"]
            with fleet.server.openai() as client, pytest.raises(InternalServerError):
                client.chat.completions.create(model="slow", messages=HELLO)  # type: ignore[arg-type]
        assert first.result()
        assert fleet.ask_text("slow") and fleet.ask_text("other")


@pytest.mark.slow
def test_several_server_processes_respond_alike(tmp_path_factory: pytest.TempPathFactory) -> None:
    """They query the fleet in another process, and its rejections come from there."""
    models = {"slow": fake_model(load_s=2), "broken": fake_model(fail_load="error")}
    with run_fleet(models, tmp_path_factory.mktemp("home"), {"workers": 2}, queue=2) as fleet:
        streams = [StreamedAnswer(), StreamedAnswer()]
        with hold_loading(fleet, "slow"):
            streaming = [BackgroundCall(fleet.stream_into, stream, "slow") for stream in streams]
            wait_until(lambda: fleet.list_admin_models()["slow"]["waiting"] == 2, 30, "both of them waiting")
            refused = fleet.ask("slow")
            assert refused.status_code == 503 and "already wait" in refused.json()["error"]["message"]
            wait_until(lambda: all(stream.comments for stream in streams), 30, "a word on the load to both")
        for one in streaming:
            one.result()
        assert all(stream.whole and "slow is loading" in stream.comments[0] for stream in streams)
        fleet.wait_idle()
        fleet.post_admin("unload", {"model": "slow"})
        refused = fleet.ask("slow", {"prefer": "wait=0"})
        assert refused.status_code == 503 and 2 <= int(refused.headers["retry-after"]) <= _longest_s(fleet) + 1
        assert fleet.ask("broken").json()["error"]["code"] == "engine_unavailable"


def test_no_wait_is_longer_than_the_configuration_allows(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"slow": fake_model(load_s=1)}
    with run_fleet(models, tmp_path_factory.mktemp("home"), max_wait_s=1) as fleet, hold_loading(fleet, "slow"):
        began = time.monotonic()
        assert fleet.ask("slow", {"prefer": "wait=60"}).status_code == 503
        assert 1 <= time.monotonic() - began < 30
        assert fleet.describe_model("slow")["state"] == "loading"


def test_a_crashed_model_reloads_in_parallel_with_a_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"chat": fake_model(), "slow": fake_model(load_s=1)}
    with run_fleet(models, tmp_path_factory.mktemp("home"), backoff_s=0, max_awake=2) as fleet:
        fleet.ask_text("chat")
        with hold_loading(fleet, "slow"):
            find_worker(fleet.server, "chat").kill()
            assert len(fleet.ask_text("chat")) == 4
            assert fleet.read_states()["slow"] == "loading"
        assert fleet.ask_text("slow")

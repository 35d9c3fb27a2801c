"""Requests for a model that is not loaded: they wait, are told how long, or are refused as they asked to be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import APIError, InternalServerError

from tests.integration.fleet.asking import BODY, CHAT, HELLO, Beside, Fleet, Streamed, fake, fleet_of, loading
from tests.integration.fleet.site import until, worker_of
from tests.integration.server.raw_http import connect, request

LOAD_S = 2.0


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    models = {
        "slow": fake(load_s=LOAD_S),
        "quick": fake(load_s=1.0),
        "broken": fake(load_s=1.0, fail_load="error"),
        "small": fake(load_s=3.0, context_length=64),
    }
    with fleet_of(models, tmp_path_factory.mktemp("home"), backoff_s=0) as fleet:
        yield fleet


@pytest.fixture
def slow(waiting: Fleet) -> Fleet:
    """The slow model is cold, and how long it takes to load is known."""
    if not any(one["model"] == "slow" for one in waiting.switches()):
        waiting.says("slow")
    waiting.until_idle()
    waiting.order("unload", {"model": "slow"})
    return waiting


def _longest_s(fleet: Fleet) -> float:
    """What loading the slow model took; on a busy machine that is more than it says."""
    return max(one["total_s"] for one in fleet.switches() if one["model"] == "slow")


def test_a_stream_is_told_how_the_load_goes_on(slow: Fleet) -> None:
    longest_s, stream = _longest_s(slow), Streamed()
    with loading(slow, "slow"):
        streaming = Beside(slow.stream_into, stream, "slow")
        until(lambda: len(stream.comments) >= 2, 30, "two words on the load")
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


def test_sdks_read_a_stream_with_comments(slow: Fleet) -> None:
    with slow.server.openai() as client:
        stream: Any = client.chat.completions.create(
            model="slow", messages=HELLO, max_tokens=4, stream=True, extra_body={"ignore_eos": True}  # type: ignore[arg-type]
        )  # fmt: skip
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert len(text) == 4


def test_others_just_wait(slow: Fleet) -> None:
    began = time.monotonic()
    answer = slow.ask("slow")
    assert answer.status_code == 200 and answer.headers["x-enginebay-engine"].startswith("fake ")
    assert time.monotonic() - began >= LOAD_S


@pytest.mark.parametrize("stream", [False, True])
def test_who_does_not_wait_is_told_when_to_come_back(slow: Fleet, stream: bool) -> None:
    """At once: it is still cold, as the answer says."""
    refused = slow.ask("slow", {"prefer": "wait=0"}, stream=stream)
    assert refused.status_code == 503 and LOAD_S <= int(refused.headers["retry-after"]) <= _longest_s(slow) + 1
    assert refused.json()["error"]["code"] == "overloaded"
    assert "slow is cold, about " in refused.json()["error"]["message"]
    until(lambda: slow.states()["slow"] == "awake", 30, "the load, or nobody would ever have it")


def test_who_waits_a_little_is_refused_in_time(slow: Fleet) -> None:
    longest_s = _longest_s(slow)
    with loading(slow, "slow"):
        began = time.monotonic()
        refused = slow.ask("slow", {"prefer": "respond-async, wait=1"})
        assert refused.status_code == 503 and time.monotonic() - began >= 1
    assert 1 <= int(refused.headers["retry-after"]) <= longest_s  # a second of it is over
    assert refused.json()["error"]["code"] == "overloaded"
    until(lambda: slow.states()["slow"] == "awake", 30, "the load, which goes on")
    assert slow.ask("slow", {"prefer": "wait=0"}).status_code == 200


def test_a_stream_whose_wait_ends_gets_an_error_event(slow: Fleet) -> None:
    with loading(slow, "slow"):
        stream = slow.stream("slow", {"prefer": "wait=3"})
    assert stream.status == 200 and stream.comments and stream.took_s >= 3
    [event] = stream.events
    assert json.loads(event)["error"]["code"] == "overloaded"
    until(lambda: slow.states()["slow"] == "awake", 30, "the load, which goes on")


def test_a_client_that_leaves_no_longer_waits(slow: Fleet) -> None:
    body = json.dumps({**BODY, "model": "slow"}).encode()
    with loading(slow, "slow"):
        with connect(slow.server.port) as sock, connect(slow.server.port) as other:
            for one in (sock, other):
                one.sendall(request("POST", CHAT, body))
            until(lambda: slow.models()["slow"]["waiting"] == 2, 30, "both of them waiting")
            assert slow.metric("enginebay_requests_waiting", model="slow") == 2
            sock.close()
            until(lambda: slow.models()["slow"]["waiting"] == 1, 30, "one of them gone")
        until(lambda: slow.models()["slow"]["waiting"] == 0, 30, "both of them gone")
        until(lambda: slow.metric("enginebay_requests_waiting", model="slow") == 0, 30, "none in the metrics")
        assert slow.states()["slow"] == "loading"
    until(lambda: slow.states()["slow"] == "awake", 30, "the load, which goes on")


def test_a_load_that_fails_ends_a_stream_with_an_error_event(waiting: Fleet) -> None:
    stream = Streamed()
    with loading(waiting, "broken"):
        streaming = Beside(waiting.stream_into, stream, "broken")
        until(lambda: stream.comments, 30, "a word on the load")
    streaming.result()
    assert stream.status == 200
    [event] = stream.events
    error = json.loads(event)["error"]
    assert error["code"] == "engine_unavailable" and "could not be loaded" in error["message"]
    assert waiting.metric("enginebay_errors_total", model="broken", kind="load_failed") == 1


def test_what_is_wrong_with_a_request_comes_after_the_comments_too(waiting: Fleet) -> None:
    with waiting.server.openai() as client, pytest.raises(APIError) as refused:
        for _ in client.chat.completions.create(
            model="small", stream=True, messages=[{"role": "user", "content": "long " * 100}]
        ):
            pass
    assert refused.value.code == "context_length_exceeded"
    assert waiting.ask("small", messages=[{"role": "user", "content": "long " * 100}]).status_code == 400


def test_a_wait_is_the_requests_own(waiting: Fleet) -> None:
    """Many at once for one cold model: it is loaded once, and all are answered."""
    before = len(waiting.switches())
    asked = [Beside(waiting.says, "quick") for _ in range(10)]
    assert len({one.result() for one in asked}) >= 1
    assert [one["model"] for one in waiting.switches()[before:]] == ["quick"]


def test_only_so_many_may_wait(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"slow": fake(load_s=1), "other": fake()}
    with fleet_of(models, tmp_path_factory.mktemp("home"), queue=1) as fleet:
        with loading(fleet, "slow"):
            first = Beside(fleet.says, "slow")
            until(lambda: fleet.models()["slow"]["waiting"] == 1, 30, "the first one waiting")
            refused = fleet.ask("slow")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1 and "already wait" in refused.json()["error"]["message"]
            with fleet.server.openai() as client, pytest.raises(InternalServerError):
                client.chat.completions.create(model="slow", messages=HELLO)  # type: ignore[arg-type]
        assert first.result()
        assert fleet.says("slow") and fleet.says("other")


def test_several_server_processes_tell_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What they know of the fleet comes from another process, and so do its refusals."""
    models = {"slow": fake(load_s=2), "broken": fake(fail_load="error")}
    with fleet_of(models, tmp_path_factory.mktemp("home"), {"workers": 2}, queue=2) as fleet:
        streams = [Streamed(), Streamed()]
        with loading(fleet, "slow"):
            streaming = [Beside(fleet.stream_into, stream, "slow") for stream in streams]
            until(lambda: fleet.models()["slow"]["waiting"] == 2, 30, "both of them waiting")
            refused = fleet.ask("slow")
            assert refused.status_code == 503 and "already wait" in refused.json()["error"]["message"]
            until(lambda: all(stream.comments for stream in streams), 30, "a word on the load to both")
        for one in streaming:
            one.result()
        assert all(stream.whole and "slow is loading" in stream.comments[0] for stream in streams)
        fleet.until_idle()
        fleet.order("unload", {"model": "slow"})
        refused = fleet.ask("slow", {"prefer": "wait=0"})
        assert refused.status_code == 503 and 2 <= int(refused.headers["retry-after"]) <= _longest_s(fleet) + 1
        assert fleet.ask("broken").json()["error"]["code"] == "engine_unavailable"


def test_no_wait_is_longer_than_the_configuration_allows(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"slow": fake(load_s=1)}
    with fleet_of(models, tmp_path_factory.mktemp("home"), max_wait_s=1) as fleet, loading(fleet, "slow"):
        began = time.monotonic()
        assert fleet.ask("slow", {"prefer": "wait=60"}).status_code == 503
        assert 1 <= time.monotonic() - began < 30
        assert fleet.described("slow")["state"] == "loading"


def test_a_model_that_dies_comes_back_beside_a_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"chat": fake(), "slow": fake(load_s=1)}
    with fleet_of(models, tmp_path_factory.mktemp("home"), backoff_s=0, max_awake=2) as fleet:
        fleet.says("chat")
        with loading(fleet, "slow"):
            worker_of(fleet.server, "chat").kill()
            assert len(fleet.says("chat")) == 4
            assert fleet.states()["slow"] == "loading"
        assert fleet.says("slow")

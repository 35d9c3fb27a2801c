"""Requests for a model that is not loaded: they wait, are told how long, or are refused as they asked to be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from openai import APIError, InternalServerError

from tests.integration.fleet.asking import BODY, CHAT, HELLO, Beside, Fleet, fake, fleet_of
from tests.integration.fleet.site import until, worker_of
from tests.integration.server.raw_http import connect, request

LOAD_S = 5.0


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    models = {
        "slow": fake(load_s=LOAD_S),
        "quick": fake(load_s=1.0),
        "broken": fake(load_s=3.0, fail_load="error"),
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


def test_a_stream_is_told_how_the_load_goes_on(slow: Fleet) -> None:
    stream = slow.stream("slow")
    assert stream.whole and len(stream.text) == 4
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    progress = [(at, text) for at, text in stream.comments if text.startswith("slow is loading")]
    assert progress[0][0] < 3 and len(progress) >= 2
    seconds = [int(text.split("about ")[1].removesuffix(" s")) for _, text in progress]
    assert all(1 <= one <= LOAD_S + 2 for one in seconds) and seconds == sorted(seconds, reverse=True)
    assert stream.comments[-1][1].startswith("x-enginebay-engine: fake ")
    assert LOAD_S <= stream.took_s < LOAD_S + 4


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
    assert LOAD_S <= time.monotonic() - began < LOAD_S + 4


@pytest.mark.parametrize("stream", [False, True])
def test_who_does_not_wait_is_told_when_to_come_back(slow: Fleet, stream: bool) -> None:
    began = time.monotonic()
    refused = slow.ask("slow", {"prefer": "wait=0"}, stream=stream)
    assert refused.status_code == 503 and time.monotonic() - began < 1
    assert LOAD_S <= int(refused.headers["retry-after"]) <= LOAD_S + 3
    assert refused.json()["error"]["code"] == "overloaded" and "slow is cold" in refused.json()["error"]["message"]
    until(lambda: slow.states()["slow"] == "awake", LOAD_S + 3, "the load, or nobody would ever have it")


def test_who_waits_a_little_is_refused_in_time(slow: Fleet) -> None:
    began = time.monotonic()
    refused = slow.ask("slow", {"prefer": "respond-async, wait=1"})
    assert refused.status_code == 503 and 1 <= time.monotonic() - began < 2.5
    left_s = int(refused.headers["retry-after"])
    assert 2 <= left_s <= LOAD_S
    assert refused.json()["error"]["code"] == "overloaded"
    until(lambda: slow.states()["slow"] == "awake", LOAD_S + 3, "the load, which goes on")
    assert slow.ask("slow", {"prefer": "wait=0"}).status_code == 200


def test_a_stream_whose_wait_ends_gets_an_error_event(slow: Fleet) -> None:
    stream = slow.stream("slow", {"prefer": "wait=3"})
    assert stream.status == 200 and stream.comments and 3 <= stream.took_s < 4.5
    [event] = stream.events
    assert json.loads(event)["error"]["code"] == "overloaded"
    until(lambda: slow.states()["slow"] == "awake", LOAD_S + 3, "the load, which goes on")


def test_a_client_that_leaves_no_longer_waits(slow: Fleet) -> None:
    body = json.dumps({**BODY, "model": "slow"}).encode()
    with connect(slow.server.port) as sock, connect(slow.server.port) as other:
        for one in (sock, other):
            one.sendall(request("POST", CHAT, body))
        until(lambda: slow.models()["slow"]["waiting"] == 2, 2, "both of them waiting")
        assert slow.metric("enginebay_requests_waiting", model="slow") == 2
        sock.close()
        until(lambda: slow.models()["slow"]["waiting"] == 1, 2, "one of them gone")
    until(lambda: slow.models()["slow"]["waiting"] == 0, 2, "both of them gone")
    until(lambda: slow.metric("enginebay_requests_waiting", model="slow") == 0, 2, "none in the metrics")
    assert slow.states()["slow"] == "loading"
    until(lambda: slow.states()["slow"] == "awake", LOAD_S + 3, "the load, which goes on")


def test_a_load_that_fails_ends_a_stream_with_an_error_event(waiting: Fleet) -> None:
    stream = waiting.stream("broken")
    assert stream.status == 200 and stream.comments
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
    models = {"slow": fake(load_s=3), "other": fake()}
    with fleet_of(models, tmp_path_factory.mktemp("home"), queue=1) as fleet:
        first = Beside(fleet.says, "slow")
        until(lambda: fleet.models()["slow"]["waiting"] == 1, 2, "the first one waiting")
        began = time.monotonic()
        refused = fleet.ask("slow")
        assert refused.status_code == 503 and time.monotonic() - began < 1
        assert int(refused.headers["retry-after"]) >= 1 and "already wait" in refused.json()["error"]["message"]
        with fleet.server.openai() as client, pytest.raises(InternalServerError):
            client.chat.completions.create(model="slow", messages=HELLO)  # type: ignore[arg-type]
        assert first.result()
        assert fleet.says("slow") and fleet.says("other")


def test_several_server_processes_tell_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What they know of the fleet comes from another process, and so do its refusals."""
    models = {"slow": fake(load_s=3), "broken": fake(fail_load="error")}
    with fleet_of(models, tmp_path_factory.mktemp("home"), {"workers": 2}, queue=2) as fleet:
        streams = [Beside(fleet.stream, "slow") for _ in range(2)]
        until(lambda: fleet.models()["slow"]["waiting"] == 2, 2, "both of them waiting")
        refused = fleet.ask("slow")
        assert refused.status_code == 503 and "already wait" in refused.json()["error"]["message"]
        for one in streams:
            stream = one.result()
            assert stream.whole and any("slow is loading" in text for _, text in stream.comments)
        fleet.until_idle()
        fleet.order("unload", {"model": "slow"})
        refused = fleet.ask("slow", {"prefer": "wait=0"})
        assert refused.status_code == 503 and 3 <= int(refused.headers["retry-after"]) <= 6
        assert fleet.ask("broken").json()["error"]["code"] == "engine_unavailable"


def test_no_wait_is_longer_than_the_configuration_allows(tmp_path_factory: pytest.TempPathFactory) -> None:
    with fleet_of({"slow": fake(load_s=4)}, tmp_path_factory.mktemp("home"), max_wait_s=1) as fleet:
        began = time.monotonic()
        assert fleet.ask("slow", {"prefer": "wait=60"}).status_code == 503
        assert 1 <= time.monotonic() - began < 2.5
        assert httpx.get(f"{fleet.server.url}/v1/models/slow").json()["enginebay"]["state"] == "loading"


def test_a_model_that_dies_comes_back_beside_a_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"chat": fake(), "slow": fake(load_s=8.0)}
    with fleet_of(models, tmp_path_factory.mktemp("home"), backoff_s=0, max_awake=2) as fleet:
        fleet.says("chat")
        loading = Beside(fleet.says, "slow")
        until(lambda: fleet.states()["slow"] == "loading", 5, "the load")
        worker_of(fleet.server, "chat").kill()
        assert len(fleet.says("chat")) == 4
        assert fleet.states()["slow"] == "loading"
        loading.result()

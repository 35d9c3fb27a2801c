"""How long a request took, told by the server itself to whoever asks for it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from tests.integration.server.abused_server import CHAT, COMPLETIONS, HELLO, AbusedServer
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import build_config
from tests.integration.server.raw_http import wait_until

PREFILL_S, STEP_S = 0.1, 0.01
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO},
    COMPLETIONS: {"prompt": "hello"},
}


@pytest.fixture(scope="module")
def slow() -> Iterator[AbusedServer]:
    """A model that computes one request at a time."""
    config = build_config({"step_s": STEP_S, "prefill_s": PREFILL_S}, {"running": 1, "queue": 8})
    with run_server(config=config) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield AbusedServer(server, client)


def usages(server: AbusedServer, path: str, tokens: int, **options: Any) -> list[Any]:
    """The usage of every event of a stream; False where an event says nothing of it."""
    body = {
        **BODIES[path], "model": "toy", "max_tokens": tokens, "ignore_eos": True, "stream": True,
        "stream_options": options,
    }  # fmt: skip
    found = httpx.post(f"{server.server.url}{path}", json=body, timeout=60)
    assert found.status_code == 200, found.text
    lines = [line[6:] for line in found.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line).get("usage", False) for line in lines]


@pytest.mark.parametrize("path", list(BODIES))
def test_the_last_usage_says_how_long_it_took(slow: AbusedServer, path: str) -> None:
    *before, last = usages(slow, path, 10, include_usage=True, include_timing=True)
    times = last["enginebay"]
    assert set(times) == {"queue_s", "ttft_s", "total_s"} and last["completion_tokens"] == 10
    assert times["ttft_s"] >= PREFILL_S and times["total_s"] >= times["ttft_s"] + 9 * STEP_S * 0.9
    assert 0 < times["queue_s"] < 20 and set(before) == {None}


@pytest.mark.parametrize("path", list(BODIES))
def test_it_is_told_to_nobody_else(slow: AbusedServer, path: str) -> None:
    assert "enginebay" not in usages(slow, path, 2, include_usage=True)[-1]
    assert set(usages(slow, path, 2)) == {False}
    assert set(usages(slow, path, 2, include_timing=False)) == {False}
    assert "enginebay" in usages(slow, path, 2, include_timing=True)[-1]  # times come with the counts


def test_waiting_for_another_request_is_in_the_queue_time_alone(slow: AbusedServer) -> None:
    least_s = 0.0
    while not least_s:  # on a machine that stalls, the first may be over before the second comes
        least_s, most_s, times = _behind_another(slow)
    assert least_s <= times["queue_s"] and times["queue_s"] + times["total_s"] <= most_s


def _behind_another(slow: AbusedServer) -> tuple[float, float, dict[str, float]]:
    """How long it was seen to wait, how long it took in all, and what it was told."""
    seen: list[tuple[float, float]] = []
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(usages, slow, CHAT, 60, include_timing=True)
        wait_until(lambda: slow.read_gauge("enginebay_requests_running") == 1 or first.done())
        began = time.monotonic()
        second = threads.submit(usages, slow, CHAT, 2, include_timing=True)
        while not second.done():
            asked = time.monotonic()
            if slow.read_gauge("enginebay_requests_waiting"):
                seen.append((asked, time.monotonic()))
    times = second.result()[-1]["enginebay"]
    return (seen[-1][0] - seen[0][1] if len(seen) > 1 else 0.0), time.monotonic() - began, times


@pytest.mark.parametrize("path", list(BODIES))
def test_of_streams_only(slow: AbusedServer, path: str) -> None:
    slow.assert_refused(
        path, {"model": "toy", **BODIES[path], "stream_options": {"include_timing": True}}, "stream_options"
    )

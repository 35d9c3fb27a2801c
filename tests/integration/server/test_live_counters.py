"""Token counters rise while responses are generated, and add up to the usage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest

from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import BODY, build_config
from tests.integration.server.raw_http import wait_until

TOKENS = 150


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def server(request: pytest.FixtureRequest) -> Iterator[BayProcess]:
    with run_server(config=build_config({"step_s": 0.02}, workers=request.param)) as running:
        yield running


def count(server: BayProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"enginebay_{name}_tokens_total{{"))


@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"stream": True, "n": 2}], ids=["stream", "json", "n=2"])
def test_tokens_count_as_they_leave(server: BayProcess, fields: dict[str, object]) -> None:
    before, prompts = count(server, "completion"), count(server, "prompt")
    body = {**BODY, **fields, "max_tokens": TOKENS}
    if "stream" in fields:
        body["stream_options"] = {"include_usage": True}
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=60)
        wait_until(lambda: count(server, "completion") > before, 30, "the first tokens")
        assert not answer.done(), "counted only at the end"
        text = answer.result().text
    usages = [json.loads(line[6:]).get("usage") for line in text.splitlines() if line.startswith("data: {")]
    usage = usages[-1] if "stream" in fields else json.loads(text)["usage"]
    assert usage["completion_tokens"] == TOKENS * int(fields.get("n", 1))  # type: ignore[call-overload]
    wait_until(lambda: count(server, "completion") - before >= usage["completion_tokens"], 30, "all tokens")
    assert count(server, "completion") - before == usage["completion_tokens"]
    assert count(server, "prompt") - prompts == usage["prompt_tokens"]


def test_a_cancelled_stream_counts_what_it_generated(server: BayProcess) -> None:
    before = count(server, "completion")
    body = {**BODY, "stream": True, "max_tokens": 1000}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if '"content"' in line)
        for _ in range(10):
            next(lines)
    seen: list[float] = []

    def is_settled() -> bool:
        seen.append(count(server, "completion") - before)
        return len(seen) > 3 and len(set(seen[-3:])) == 1

    wait_until(is_settled, 30, "the end")
    assert 9 <= seen[-1] < 1000

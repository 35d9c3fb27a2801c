"""What other people's clients and load tools send unasked, and expect to work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.server.abused_server import CHAT, COMPLETIONS, HELLO, RESPONSES, AbusedServer

PROMPTS: dict[str, dict[str, Any]] = {CHAT: {"messages": HELLO}, COMPLETIONS: {"prompt": "hello"}}


def test_health_is_where_tools_look_for_it(battered: AbusedServer) -> None:
    found = battered.client.get("/health")
    assert found.status_code == 200 and found.json() == battered.client.get("/health/ready").json()


@pytest.mark.parametrize("path", list(PROMPTS))
def test_running_counts_are_asked_for(battered: AbusedServer, path: str) -> None:
    """As guidellm does in every stream."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**PROMPTS[path], "model": "toy", "max_tokens": 4, "ignore_eos": True, "stream": True}
    answer = battered.post(path, {**body, "stream_options": options})
    assert answer.status == 200 and "continuous_usage_stats" in answer.headers["x-enginebay-translated"]
    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_responses_take_the_sampling_of_the_other_endpoints(battered: AbusedServer) -> None:
    asked = {"model": "toy", "input": "hi", "max_output_tokens": 6}
    answer = battered.post(RESPONSES, {**asked, "ignore_eos": True, "min_tokens": 6, "stop_token_ids": [300]})
    assert answer.status == 200 and json.loads(answer.body)["usage"]["output_tokens"] == 6
    battered.assert_refused(RESPONSES, {**asked, "min_tokens": 7}, "min_tokens")


def test_an_item_that_is_only_referred_to(battered: AbusedServer) -> None:
    """As the AI SDK does in a second turn, unless it is told that nothing is stored."""
    turns = [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": "msg_1"}]
    error = battered.assert_refused(RESPONSES, {"model": "toy", "input": turns}, "input")
    assert "store" in error["message"]

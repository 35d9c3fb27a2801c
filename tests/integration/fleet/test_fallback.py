"""Fallback to the next engine of a model's chain: for which reasons, how it is reported, and when it does not happen."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml

from enginebay import models
from tests.integration.fleet.fleet_client import (
    BODY,
    CHAT,
    HELLO,
    FleetClient,
    build_environ,
    fake_model,
    make_home,
    run_fleet,
)
from tests.integration.fleet.server_site import wait_until
from tests.integration.fleet.shared_fleets import SMALL

LONG = [{"role": "user", "content": "hello " * 60}]
REGEX: dict[str, Any] = {"guided_regex": "(yes|no)"}
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}},
}


def _chain(**settings: Any) -> dict[str, Any]:
    """The fake engine, then llamacpp."""
    llamacpp = {name: SMALL["llamacpp"][name] for name in ("source", "llamacpp")}
    return {**llamacpp, **fake_model(**{"fallback": ["llamacpp"], **settings})}


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetClient]:
    """vllm is not installed here."""
    home = make_home(tmp_path_factory.mktemp("home"), "models")
    strange = home / "strange.gguf"
    strange.write_bytes(_of_unknown_architecture())
    found = {
        "able": _chain(context_length=256),
        "broken": _chain(fail_load="error"),
        "dying": _chain(crash_after_tokens=20, step_s=0.01),
        "strict": _chain(context_length=256, fallback_on=["load"]),
        "missing": {**SMALL["llamacpp"], "engine": "vllm", "load": "use", "fallback": ["llamacpp"]},
        "hopeless": fake_model(fallback=["vllm"]) | {"source": "smollm2"},
        "strange": {"source": str(strange), "engine": "llamacpp", "load": "use", "fallback": ["fake"]},
    }
    with run_fleet(found, home, max_awake=4, min_residency_s=0, backoff_s=60) as fleet:
        yield fleet


def _of_unknown_architecture() -> bytes:
    """The default model with another architecture name. Keys of the same length keep all offsets."""
    return models.ensure_model("smollm2").path.read_bytes().replace(b"llama", b"lhama")


def _fell_back(fleet: FleetClient, model: str, why: str, **fields: Any) -> httpx.Response:
    answer = fleet.ask(model, **fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-enginebay-fallback"] == why
    assert answer.headers["x-enginebay-engine"].startswith(why.split()[0])
    line = _logged(fleet, answer.headers["x-request-id"])
    assert line["fallback"] == why and line["engine"] == why.split()[0]
    return answer


def _logged(fleet: FleetClient, request_id: str) -> dict[str, Any]:
    """The log is written in the background."""
    wait_until(lambda: f'"{request_id}"' in fleet.server.read_log(), 30, "the line in the log")
    [line] = [one for one in fleet.read_log(event="request") if one["request_id"] == request_id]
    return line


# What makes a request fall back


def test_an_engine_that_is_not_installed(chains: FleetClient) -> None:
    assert chains.list_admin_models()["missing"]["state"] == "unavailable"
    for _ in range(3):
        began = time.monotonic()
        _fell_back(chains, "missing", "llamacpp instead of vllm: unavailable")
    assert time.monotonic() - began < 30  # a request may wait for 300 s
    assert chains.read_log(event="worker died") == []  # there was none


def test_a_model_that_does_not_load(chains: FleetClient) -> None:
    """Later requests do not wait for the next attempt a minute later."""
    for _ in range(4):
        began = time.monotonic()
        _fell_back(chains, "broken", "llamacpp instead of fake: load")
        assert "fail_load is error" in chains.list_admin_models()["broken"]["last_failure"]
    assert time.monotonic() - began < 30
    assert chains.read_metric("enginebay_fallbacks_total", model="broken", engine="llamacpp") == 4


def test_a_context_that_is_too_short(chains: FleetClient) -> None:
    short = chains.ask("able")
    assert short.headers["x-enginebay-engine"].startswith("fake") and "x-enginebay-fallback" not in short.headers
    _fell_back(chains, "able", "llamacpp instead of fake: context", messages=LONG)


def test_a_parameter_that_an_engine_refuses(chains: FleetClient) -> None:
    answer = _fell_back(chains, "able", "llamacpp instead of fake: capability", ignore_eos=False, max_tokens=8, **REGEX)
    assert answer.json()["choices"][0]["message"]["content"] in ("yes", "no")


def test_an_architecture_that_is_unknown_to_an_engine(chains: FleetClient) -> None:
    _fell_back(chains, "strange", "fake instead of llamacpp: architecture")


def test_a_stream_reports_it_too(chains: FleetClient) -> None:
    stream = chains.stream("able", messages=LONG)
    assert stream.whole and stream.headers["x-enginebay-fallback"] == "llamacpp instead of fake: context"


@pytest.mark.slow
def test_a_queue_that_is_too_long(tmp_path: Path) -> None:
    home = make_home(tmp_path, "models")
    limits = {"limits": {"running": 1, "queue": 0}}
    with run_fleet({"able": {**_chain(step_s=0.05), "load": "start"}}, home, limits) as fleet:
        fleet.post_admin("load", {"model": "able@llamacpp"})
        with fleet.open_stream("able", max_tokens=3000) as events:
            _fell_back(fleet, "able", "llamacpp instead of fake: queue")
            assert next(events) != "[DONE]"
        wait_until(lambda: "x-enginebay-fallback" not in fleet.ask("able").headers, 30, "an end of the queue")


# What whoever does not wait, and an administrator, has of a chain


@pytest.mark.slow
def test_a_request_that_does_not_wait_loads_one_engine(tmp_path: Path) -> None:
    found = {
        "slow": _chain(load_s=3),
        "missing": {**SMALL["llamacpp"], "engine": "vllm", "load": "use", "fallback": ["llamacpp"]},
    }
    with run_fleet(found, make_home(tmp_path, "models"), max_awake=4, min_residency_s=0) as fleet:
        refused = fleet.ask("slow", {"prefer": "wait=0"})
        assert refused.status_code == 503 and "slow is" in refused.json()["error"]["message"]
        wait_until(lambda: fleet.read_states()["slow"] == "awake", 20, "the first engine of the chain")
        assert fleet.read_states()["slow@llamacpp"] == "cold"
        assert fleet.ask("missing", {"prefer": "wait=0"}).status_code == 503
        wait_until(lambda: fleet.read_states()["missing@llamacpp"] == "awake", 20, "the engine that can be had")


def test_admin_commands_reach_the_engine_that_serves_the_model(chains: FleetClient) -> None:
    _fell_back(chains, "missing", "llamacpp instead of vllm: unavailable")
    assert (
        chains.post_admin("logs?model=missing")["lines"]
        == chains.post_admin("logs?model=missing@llamacpp")["lines"]
        != []
    )
    assert chains.post_admin("sleep", {"model": "missing"})["state"] == "asleep"
    assert chains.read_states()["missing@llamacpp"] == "asleep"
    assert chains.post_admin("unload", {"model": "missing"})["state"] == "cold"
    assert chains.read_states()["missing@llamacpp"] == "cold"
    refused = chains.try_post_admin("sleep", {"model": "missing"})
    assert refused.status_code == 400 and "not loaded" in refused.text


# What does not


def test_reasons_that_were_not_declared(chains: FleetClient) -> None:
    refused = chains.ask("strict", messages=LONG)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    refused = chains.ask("strict", **REGEX)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "guided_regex"
    assert "x-enginebay-fallback" not in refused.headers


def test_client_errors_do_not_fall_back(chains: FleetClient) -> None:
    refused = chains.ask("able", temperature=-1)
    assert refused.status_code == 400 and "x-enginebay-fallback" not in refused.headers
    assert chains.ask("nobody").status_code == 404


def test_never_after_the_first_token(chains: FleetClient) -> None:
    stream = chains.stream("dying", max_tokens=100)
    assert stream.status == 200 and "x-enginebay-fallback" not in stream.headers
    said = [chunk["choices"][0]["delta"].get("content") for chunk in stream.chunks[:-1]]
    assert any(said), "it had said something"
    assert json.loads(stream.events[-1])["error"]["code"] == "engine_unavailable"
    assert chains.read_metric("enginebay_fallbacks_total", model="dying") == 0
    assert chains.list_admin_models()["dying@llamacpp"]["state"] == "cold"


def test_if_all_fail_the_first_error_is_returned(chains: FleetClient) -> None:
    refused = chains.ask("hopeless", **REGEX)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "guided_regex"
    assert chains.ask_text("hopeless")


# To another host


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetClient]:
    call = '<tool_call>\n{"name": "weather", "arguments": {"town": "Ulm"}}\n</tool_call>'
    far = fake_model(script="from afar", script_by_prompt={"weather": call}, load="start")
    with (
        run_fleet({"far": far}, tmp_path_factory.mktemp("far")) as other,
        run_fleet(
            {"near": _remote_chain(f"{other.server.url}/v1", may_leave_host=True)},
            tmp_path_factory.mktemp("near"),
            backoff_s=60,  # a retry of its own engine could delay streams enough to start them with comments
        ) as fleet,
    ):
        yield fleet


def _remote_chain(url: str, **settings: Any) -> dict[str, Any]:
    return fake_model(fail_load="error", fallback=["openai"], openai={"url": url, "model": "far"}, **settings)


WHOLE = {"messages": HELLO, "max_tokens": 40}
WHY = "openai instead of fake: load"


def test_a_chat_that_leaves_the_host(remote: FleetClient) -> None:
    answer = _fell_back(remote, "near", WHY, body=WHOLE).json()
    assert answer["choices"][0]["message"]["content"] == "from afar"
    assert answer["model"] == "near" and answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] > 0 and answer["usage"]["completion_tokens"] >= len("from afar")


def test_a_stream_that_leaves_the_host(remote: FleetClient) -> None:
    stream = remote.stream("near", body=WHOLE, stream_options={"include_usage": True})
    assert stream.whole and stream.text == "from afar" and len(stream.deltas) > 3
    assert stream.headers.get("x-enginebay-fallback") == WHY
    assert stream.chunks[-1]["usage"]["completion_tokens"] >= len("from afar")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_a_chat_that_leaves_the_host(remote: FleetClient, stream: bool) -> None:
    fields: Any = {"messages": [{"role": "user", "content": "How is the weather in Ulm?"}], "max_tokens": 200}
    with remote.server.openai() as client:
        if stream:
            with client.chat.completions.stream(model="near", tools=[TOOL], **fields) as events:
                for _ in events:
                    pass
                choice = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(model="near", tools=[TOOL], **fields).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    [called] = choice.message.tool_calls
    assert called.function.name == "weather" and json.loads(called.function.arguments) == {"town": "Ulm"}


def test_nothing_leaves_the_host_without_permission(tmp_path: Path) -> None:
    file = tmp_path / "enginebay.yaml"
    file.write_text(yaml.safe_dump({"models": {"near": _remote_chain("http://127.0.0.1:9/v1")}}))
    refused = subprocess.run(
        [sys.executable, "-m", "enginebay.cli.main", "serve", "--port", "0", "--config", str(file)],
        capture_output=True, text=True, timeout=60, env=build_environ(tmp_path),
    )  # fmt: skip
    assert refused.returncode == 2 and "may_leave_host" in refused.stderr and "Traceback" not in refused.stderr


def test_an_unreachable_remote_fails(tmp_path: Path) -> None:
    """Both engines of the chain fail; the first error is returned."""
    with run_fleet({"near": _remote_chain("http://127.0.0.1:9/v1", may_leave_host=True)}, tmp_path) as fleet:
        refused = httpx.post(f"{fleet.server.url}{CHAT}", json={**BODY, "model": "near"}, timeout=60)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_unavailable"
        assert "127.0.0.1" not in refused.text

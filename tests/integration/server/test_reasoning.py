"""Thoughts through the whole server: recorded ones on the fake engine, in two phases, resumed, and one on a real engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from openai import OpenAI

from tests.integration.fleet.server_site import find_worker
from tests.integration.server.bay_process import BayProcess, run_server
from tests.unit.text.reasoning.test_reasoning_parsers import RECORDINGS, TOOLS

FORMATS = {"think": "hermes", "mistral": "mistral", "harmony": "json", "granite": "json"}  # and the format of calls
each = pytest.mark.parametrize("name", [name for name in RECORDINGS if RECORDINGS[name]["format"] in FORMATS])
THOUGHT = "Let me see, step by step, what this might be."
SCRIPTS = {  # in the order of the fragments, the first that the prompt has decides
    ", step by\n</think>": "Cut short.",
    "</think>\n\n": '{"answer": 42}',
    "[slow]": f"<think>\n{THOUGHT}\n</think>\n\nnot JSON",
    "[think]": f"<think>\n{THOUGHT}\n</think>\n\nThe answer.",
}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


def prompt(name: str) -> str:
    """The fake engine has no template: the end of the message is the end of the prompt."""
    return f"<<{name}>>{RECORDINGS[name]['prompt_end']}"


@pytest.fixture(scope="module")
def server() -> Iterator[BayProcess]:
    fake = {"script_by_prompt": {f"<<{name}>>": recording["output"] for name, recording in RECORDINGS.items()}}
    models: dict[str, Any] = {
        name: {"engine": "fake", "reasoning_format": name, "tool_format": calls, "fake": fake}
        for name, calls in FORMATS.items()
    }
    models["off"] = {"engine": "fake", "fake": fake}
    models["two"] = {"engine": "fake", "reasoning_format": "think", "fake": {"script_by_prompt": SCRIPTS}}
    with run_server(config={"models": models}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: BayProcess) -> OpenAI:
    return server.openai()


def build_body(name: str, **more: Any) -> dict[str, Any]:
    recording = RECORDINGS[name]
    tools = {"tools": TOOLS} if "tool_format" in recording else {}
    return {"model": recording["format"], **tools, **more}


def expect(name: str) -> tuple[str, str, list[tuple[str, str]]]:
    wanted = RECORDINGS[name]["expect"]
    return wanted["reasoning"], wanted["text"], [(call["name"], call["arguments"]) for call in wanted["calls"]]


@each
def test_chat(client: OpenAI, name: str) -> None:
    body = build_body(name, messages=[{"role": "user", "content": prompt(name)}])
    answer = client.chat.completions.create(**body)
    message = answer.choices[0].message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    reasoning = getattr(message, "reasoning_content", "")
    assert (reasoning, message.content or "", calls) == expect(name) and getattr(message, "reasoning", "") == reasoning
    assert answer.usage and answer.usage.completion_tokens == len(RECORDINGS[name]["output"].encode())
    tokens = answer.usage.completion_tokens_details.reasoning_tokens  # type: ignore[union-attr]
    assert len(reasoning.encode()) <= (tokens or 0) <= answer.usage.completion_tokens


@each
def test_chat_streamed(client: OpenAI, name: str) -> None:
    body = build_body(name, messages=[{"role": "user", "content": prompt(name)}])
    reasoning, text = "", ""
    calls: list[tuple[str, str]] = []
    for chunk in client.chat.completions.create(**body, stream=True):
        delta = chunk.choices[0].delta
        assert getattr(delta, "reasoning", "") == getattr(delta, "reasoning_content", "")
        assert not (getattr(delta, "reasoning", "") and text), "the thought is before the answer"
        reasoning += getattr(delta, "reasoning", "")
        text += delta.content or ""
        for call in delta.tool_calls or ():
            if call.index == len(calls):
                calls.append((call.function.name, ""))  # type: ignore[union-attr, arg-type]
            calls[call.index] = (calls[call.index][0], calls[call.index][1] + (call.function.arguments or ""))  # type: ignore[union-attr]
    assert (reasoning, text, calls) == expect(name)


def read_output(response: Any) -> tuple[str, str, list[tuple[str, str]]]:
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.content]
    calls = [(item.name, item.arguments) for item in response.output if item.type == "function_call"]
    return "".join(thoughts), response.output_text, calls


@each
def test_responses(client: OpenAI, name: str) -> None:
    body = build_body(name, input=prompt(name))
    body["tools"] = [{"type": "function", **tool["function"]} for tool in body.get("tools", ())]  # type: ignore[dict-item]
    response = client.responses.create(**body)
    assert read_output(response) == expect(name)
    with client.responses.stream(**body) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.reasoning_text.delta")
        final = stream.get_final_response()
    assert read_output(final) == expect(name) and deltas == expect(name)[0]
    assert final.usage == response.usage
    assert response.usage and response.usage.output_tokens_details.reasoning_tokens >= len(deltas.encode())


def test_a_model_without_a_format_keeps_its_text(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="off", messages=[{"role": "user", "content": prompt("qwen3")}])
    assert answer.choices[0].message.content == RECORDINGS["qwen3"]["output"]
    assert answer.usage and answer.usage.completion_tokens_details is None


def test_the_format_is_shown(server: BayProcess) -> None:
    for model, name in (("think", "think"), ("off", "none")):
        shown = httpx.get(f"{server.url}/v1/models/{model}").json()["enginebay"]["reasoning_format"]
        assert shown == name


# Two phases


def ask(server: BayProcess, content: str, model: str = "two", **fields: Any) -> Any:
    body = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_binds_the_answer(client: OpenAI, stream: bool) -> None:
    body: Any = {
        "model": "two",
        "messages": [{"role": "user", "content": "[think]"}],
        "response_format": FORMAT,
    }
    if stream:
        with client.chat.completions.stream(**body) as chunks:
            answer = chunks.until_done().get_final_completion()
    else:
        answer = client.chat.completions.create(**body)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, '{"answer": 42}')
    if not stream:
        used = len(f"<think>\n{THOUGHT}\n</think>") + len('{"answer": 42}')
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len("[think]"), used)


def test_a_schema_binds_the_answer_of_a_response(client: OpenAI) -> None:
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    response = client.responses.create(model="two", input="[think]", text=text)
    assert read_output(response) == (THOUGHT, '{"answer": 42}', [])


def test_a_model_that_does_not_think_is_constrained(server: BayProcess) -> None:
    choice = ask(server, "anything", "think", response_format=FORMAT).json()["choices"][0]
    assert isinstance(json.loads(choice["message"]["content"])["answer"], int)
    assert "reasoning" not in choice["message"]


def test_a_required_call_comes_after_the_thought(server: BayProcess) -> None:
    message = ask(server, "anything", "think", tools=TOOLS, tool_choice="required").json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] in ("get_weather", "get_time")


def test_several_constrained_choices_have_no_thought(server: BayProcess) -> None:
    response = ask(server, "[think]<think>", response_format=FORMAT, n=2)
    assert [choice["message"]["content"] for choice in response.json()["choices"]] == ['{"answer": 42}'] * 2
    assert "no thought" in response.headers["x-enginebay-translated"]


def test_the_budget_cuts_the_thought(server: BayProcess) -> None:
    cut = "<think>\nLet me see, step by"
    body = ask(server, "[think]", max_reasoning_tokens=len(cut)).json()
    message = body["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Let me see, step by", "Cut short.")
    assert body["usage"]["completion_tokens"] == len(cut) + len("Cut short.")
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(cut)
    whole = ask(server, "[think]", max_reasoning_tokens=500).json()["choices"][0]["message"]
    assert (whole["reasoning"], whole["content"]) == (THOUGHT, "The answer.")


@pytest.mark.parametrize("content", ["[think]", "[think]<think>"])
def test_no_thought_at_all(server: BayProcess, content: str) -> None:
    message = ask(server, content, max_reasoning_tokens=0).json()["choices"][0]["message"]
    assert message["content"] == '{"answer": 42}' and "reasoning" not in message


def test_switches_and_thoughts_that_the_model_has_no_place_for_are_named(server: BayProcess) -> None:
    messages = [{"role": "assistant", "content": "x", "reasoning": "hm"}, {"role": "user", "content": "[think]"}]
    ignored = ask(server, "", messages=messages, reasoning_effort="low").headers["x-enginebay-ignored"]
    assert "reasoning_effort: " in ignored and "reasoning_content: " in ignored


def test_a_remote_thought_passes_through(server: BayProcess) -> None:
    remote = {"engine": "openai", "may_leave_host": True, "openai": {"url": f"{server.url}/v1", "model": "think"}}
    with run_server(config={"models": {"far": remote}}) as near:
        for name in ("qwen3", "qwen3-tool", "qwen3-off"):
            tools = {"tools": TOOLS} if RECORDINGS[name]["expect"]["calls"] else {}
            answer = ask(near, prompt(name), "far", reasoning_effort="low", **tools).json()
            message = answer["choices"][0]["message"]
            calls = [
                (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
            ]
            assert (message.get("reasoning", ""), message["content"] or "", calls) == expect(name)
            assert bool(answer["usage"]["completion_tokens_details"]["reasoning_tokens"]) == bool(expect(name)[0])


@pytest.mark.slow
async def test_a_killed_worker_changes_neither_phase() -> None:
    """The worker dies within the thought, or within the answer, of responses in two phases."""
    model = {"engine": "fake", "reasoning_format": "think", "fake": {"script_by_prompt": SCRIPTS, "step_s": 0.004}}
    config: dict[str, object] = {
        "models": {"two": model},
        "fleet": {"restarts": 1000, "backoff_s": 0.05, "backoff_max_s": 0.1},
    }
    dice = random.Random(26)
    with run_server(config=config) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            for number in range(8):
                body = {
                    "model": "two", "messages": [{"role": "user", "content": f"[slow] {number}"}], "stream": True,
                    "response_format": FORMAT, "stream_options": {"include_usage": True},
                }  # fmt: skip
                reasoning, text, usage = await _read_and_kill(server, client, body, dice.uniform(0, 0.25))
                assert (reasoning, text) == (THOUGHT, '{"answer": 42}'), f"round {number}"
                assert usage["completion_tokens"] == len(f"<think>\n{THOUGHT}\n</think>") + len('{"answer": 42}')
                assert usage["prompt_tokens"] == len(f"[slow] {number}")
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        [resumed] = [line for line in lines if line.startswith("enginebay_requests_resumed_total{")]
        assert float(resumed.rpartition(" ")[2]) >= 4


async def _read_and_kill(
    server: BayProcess, client: httpx.AsyncClient, body: dict[str, Any], pause_s: float
) -> tuple[str, str, Any]:
    reasoning, text, usage, killing = "", "", None, None
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            usage = chunk["usage"] or usage
            for choice in chunk["choices"]:
                reasoning += choice["delta"].get("reasoning", "")
                text += choice["delta"].get("content") or ""
            if reasoning and killing is None:
                killing = asyncio.get_running_loop().call_later(pause_s, lambda: find_worker(server, "two").kill())
    if killing is not None and not killing.cancelled() and killing.when() > asyncio.get_running_loop().time():
        killing.cancel()
    return reasoning, text, usage


# A real engine


@pytest.mark.parametrize("engine", ["llamacpp"])
def test_a_real_thought_is_cut_and_the_answer_fits_the_schema(engine: str) -> None:
    """The last message opens a thought, which the model continues until its budget is spent."""
    model = {"source": "smollm2", "engine": engine, "reasoning_format": "think", engine: {"context_length": 512}}
    messages = [
        {"role": "user", "content": "What is 6 times 7?"},
        {"role": "assistant", "content": "<think>\nOkay, let me think about it."},
    ]
    body = {
        "messages": messages, "continue_final_message": True, "max_reasoning_tokens": 6, "response_format": FORMAT,
        "max_tokens": 60, "temperature": 0,
    }  # fmt: skip
    with run_server(config={"models": {"m": model}}) as server:
        answer = ask(server, "", "m", **body).json()
        choice, details = answer["choices"][0], answer["usage"]["completion_tokens_details"]
        assert choice["message"]["reasoning_content"] and details["reasoning_tokens"] == 6
        assert isinstance(json.loads(choice["message"]["content"])["answer"], int), "the schema binds the answer only"
        free = ask(server, "", "m", **{**body, "response_format": None}).json()
        assert free["choices"][0]["message"]["reasoning_content"] == choice["message"]["reasoning_content"]
        assert free["choices"][0]["message"]["content"]

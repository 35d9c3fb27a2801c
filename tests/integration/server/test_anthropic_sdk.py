"""The Anthropic Python SDK against the server, on the fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2 as httpx
import pytest
from anthropic import Anthropic

from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.claude_code_request import HEADERS, SYSTEM_CHARS, build_claude_code_request
from tests.integration.server.conftest import ServedEngine

HELLO = "Grüß Gott, 世界 🌍!"
CALL = 'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Århus"}}\n</tool_call>'
SCRIPTS = {
    "18 degrees": "It is 18 degrees in Århus.",
    "The weather?": CALL,
    "Say hello.": HELLO,
    "Count.": "one two three four",
    "Read it.": '<tool_call>\n{"name": "Read", "arguments": {"file_path": "/a"}}\n</tool_call>',
}
THOUGHT = "They greet me."
CONTEXT = 120_000
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def server() -> Iterator[BayProcess]:
    settings = {"script_by_prompt": SCRIPTS, "context_length": CONTEXT}
    failing = {"engine": "fake", "fake": {"script": HELLO, "fail_after_tokens": 5}}
    text = {"engine": "fake", "tool_format": "hermes", "fake": settings}
    thinker = {
        "engine": "fake",
        "reasoning_format": "think",
        "fake": {"script": f"<think>{THOUGHT}</think>\n\n{HELLO}"},
    }
    models: dict[str, Any] = {
        "text": text,
        "thinker": thinker,
        "toy": {"engine": "fake", "fake": {"context_length": 256}},
        "failing": failing,
    }
    with run_server(config={"models": models, "server": {"limits": {"body_bytes": 1 << 20}}}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: BayProcess) -> Anthropic:
    return Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60)


def say(content: str) -> Any:
    return [{"role": "user", "content": content}]


def ask(content: str, **fields: Any) -> dict[str, Any]:
    return {"model": "text", "max_tokens": 256, "messages": say(content), **fields}


def post(server: BayProcess, body: Any, path: str = "/v1/messages") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{server.url}{path}", content=content, headers={"content-type": "application/json"}, timeout=60)


def check_error(answer: httpx.Response, status: int, kind: str) -> str:
    found = answer.json()
    assert (answer.status_code, found["type"], found["error"]["type"]) == (status, "error", kind), answer.text
    return str(found["error"]["message"])


def test_create(client: Anthropic) -> None:
    message = client.messages.create(**ask("Say hello.", system="Be kind."))
    [block] = message.content
    assert block.type == "text" and block.text == HELLO
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert message.usage.output_tokens == len(HELLO.encode()) and message.id.startswith("msg_")
    assert message.usage.input_tokens == len("Be kind.\nSay hello.")
    assert message._request_id and message.id == f"msg_{message._request_id}"


def test_stream(client: Anthropic) -> None:
    with client.messages.stream(**ask("Say hello.")) as stream:
        pieces = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(pieces) == HELLO and len(pieces) == len(HELLO)
    whole = client.messages.create(**ask("Say hello."))
    assert (message.stop_reason, message.usage) == (whole.stop_reason, whole.usage)


@pytest.mark.parametrize("streams", [False, True])
def test_tools_over_two_turns(client: Anthropic, streams: bool) -> None:
    asked = ask("The weather?", tools=[WEATHER], tool_choice={"type": "auto"})

    def send() -> Any:
        if not streams:
            return client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()

    message = send()
    text, call = message.content
    assert text.text.strip() == "I look." and message.stop_reason == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"city": "Århus"}) and call.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "18 degrees"}]}
    asked["messages"] = [*asked["messages"], message.to_param(), {"role": "user", "content": [result]}]
    second = send()
    assert second.content[0].text == SCRIPTS["18 degrees"] and second.stop_reason == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_that_is_required(client: Anthropic, choice: Any) -> None:
    message = client.messages.create(
        model="toy", max_tokens=200, messages=say("x"), tools=[WEATHER], tool_choice=choice
    )
    [call] = message.content
    assert call.type == "tool_use" and call.name == "get_weather" and set(call.input) == {"city"}
    assert message.stop_reason == "tool_use"


def test_a_json_schema(client: Anthropic) -> None:
    schema = WEATHER["input_schema"]
    config: Any = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    message = client.messages.create(model="toy", max_tokens=200, messages=say("x"), output_config=config)
    assert message.content[0].type == "text" and set(json.loads(message.content[0].text)) == {"city"}


def test_thinking(client: Anthropic) -> None:
    asked: dict[str, Any] = ask("x", model="thinker", thinking={"type": "adaptive"})
    with client.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    thinking, answer = message.content
    assert thinking.type == "thinking" and thinking.thinking == THOUGHT and thinking.signature
    assert answer.type == "text" and answer.text.strip() == HELLO
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens > message.usage.output_tokens_details.thinking_tokens >= len(THOUGHT)
    whole = client.messages.create(**asked)
    assert [block.type for block in whole.content] == ["thinking", "text"] and whole.usage == message.usage
    asked["messages"] = [*asked["messages"], message.to_param(), *say("Again.")]
    hidden = client.messages.create(**{**asked, "thinking": {"type": "adaptive", "display": "omitted"}})
    assert hidden.content[0].type == "thinking" and not hidden.content[0].thinking and hidden.content[0].signature


@pytest.mark.parametrize("streams", [False, True])
def test_stop_sequences(client: Anthropic, streams: bool) -> None:
    asked = ask("Count.", stop_sequences=[" five", " three"])
    if streams:
        with client.messages.stream(**asked) as stream:
            message: Any = stream.get_final_message()
    else:
        message = client.messages.create(**asked)
    assert message.content[0].text == "one two"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " three")


def test_max_tokens(client: Anthropic) -> None:
    message = client.messages.create(**ask("Count.", max_tokens=7))
    assert (
        message.content[0].type == "text"
        and message.content[0].text == "one two"
        and message.stop_reason == "max_tokens"
    )
    raw = client.messages.with_raw_response.create(**ask("Count.", max_tokens=10**6))
    assert "max_tokens: " in raw.headers["x-enginebay-translated"]


def test_count_tokens(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model="text", messages=say("Say hello."), system="Be kind.", tools=[WEATHER])
    message = client.messages.create(**ask("Say hello.", system="Be kind.", tools=[WEATHER]))
    assert counted.input_tokens == message.usage.input_tokens > 0
    beyond = client.messages.count_tokens(model="toy", messages=say("x" * 1000))
    assert beyond.input_tokens == 1000, "also a prompt beyond the context is counted"


def test_models(client: Anthropic) -> None:
    assert [model.id for model in client.models.list(limit=2)] == ["failing", "text", "thinker", "toy"]
    model = client.models.retrieve("text")
    assert (model.id, model.type, model.max_input_tokens) == ("text", "model", CONTEXT)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude")


def test_a_model_that_the_server_does_not_have(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as raised:
        client.messages.create(model="claude-opus-4-5", max_tokens=5, messages=say("x"))
    assert raised.value.type == "not_found_error" and "failing, text" in str(raised.value)
    assert raised.value.request_id and raised.value.body["request_id"] == raised.value.request_id  # type: ignore[index]


def test_errors(client: Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.messages.create(**ask("x", extra_body={"temperature": 9}))
    assert raised.value.type == "invalid_request_error" and "temperature" in str(raised.value)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 400 tokens > 256 maximum"):
        client.messages.create(model="toy", max_tokens=5, messages=say("x" * 400))
    with (
        pytest.raises(anthropic.APIStatusError) as failed,
        client.messages.stream(**ask("x", model="failing")) as stream,
    ):
        stream.get_final_message()
    assert failed.value.type == "api_error"


def test_a_failed_response_is_a_500(server: BayProcess) -> None:
    check_error(post(server, ask("x", model="failing")), 500, "api_error")


def test_every_engine(served: ServedEngine) -> None:
    client = Anthropic(base_url=served.server.url, api_key="none", max_retries=0, timeout=120)
    prefilled: Any = [
        *say("What is the capital of France?"),
        {"role": "assistant", "content": "The capital of France is"},
    ]
    asked: dict[str, Any] = {"model": "text", "messages": prefilled, "max_tokens": 8, "extra_body": {"temperature": 0}}
    with client.messages.stream(**asked) as stream:
        message = stream.get_final_message()
    counted = client.messages.count_tokens(model="text", messages=prefilled)
    read = message.usage.cache_read_input_tokens or 0
    assert message.usage.input_tokens + read == counted.input_tokens
    assert message.stop_reason in ("max_tokens", "end_turn") and 1 <= message.usage.output_tokens <= 8
    if served.engine != "fake":
        assert message.content[0].type == "text" and "Paris" in message.content[0].text


# Claude Code


def test_the_shape_of_a_claude_code_request(server: BayProcess) -> None:
    bodies = [build_claude_code_request("text", "Read it.", nonce) for nonce in ("36ee5", "0aaa9")]
    assert len(json.dumps(bodies[0])) > SYSTEM_CHARS * 2 and len(bodies[0]["tools"]) > 20
    url = f"{server.url}/v1/messages?beta=true"
    answers = [httpx.post(url, json=body, headers=HEADERS, timeout=60) for body in bodies]
    usages = []
    for answer in answers:
        assert answer.status_code == 200, answer.text
        ignored = answer.headers["x-enginebay-ignored"]
        for name in (
            "x-anthropic-billing-header",
            "context_management",
            "cache_control",
            "anthropic-beta",
            "eager_input",
        ):
            assert name in ignored
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        [start] = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        assert (start["type"], start["name"]) == ("tool_use", "Read")
        usages.append(events[-2]["usage"])
    assert usages[0] == usages[1]


def test_its_token_count(server: BayProcess) -> None:
    body = build_claude_code_request("text", "Read it.")
    for name in ("max_tokens", "stream", "temperature", "metadata"):
        del body[name]
    answer = httpx.post(f"{server.url}/v1/messages/count_tokens?beta=true", json=body, headers=HEADERS, timeout=60)
    assert answer.status_code == 200 and answer.json()["input_tokens"] > SYSTEM_CHARS
    assert "x-anthropic-billing-header" in answer.headers["x-enginebay-ignored"]


# Wrong input

DEEP = b'{"model":"text","max_tokens":1,"messages":[{"role":"user","content":%b%b}]}'


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"nonsense", b'{"model":3}', DEEP % (b"[" * 20_000, b"]" * 20_000),
        {"messages": say("x"), "max_tokens": 5}, ask("x", tools=[{"name": "f", "input_schema": "x"}]),
        ask("x", tools=[{**WEATHER, "name": f"f{number}"} for number in range(200)]),
        ask("x", tools=[WEATHER, WEATHER]), ask("x", messages=[{"role": "user", "content": {"type": "text"}}]),
        ask("x", tool_choice={"type": "any"}), ask("x", thinking={"type": "enabled", "budget_tokens": "many"}),
        ask("x", messages=[{"role": "user", "content": [{"type": "image"}]}]),
        ask("x", tools=[{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"$ref": "https://x"}}}}],
            tool_choice={"type": "any"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_wrong_bodies_get_400(server: BayProcess, path: str, body: Any) -> None:
    check_error(post(server, body, path), 400, "invalid_request_error")


def test_limits(server: BayProcess) -> None:
    assert "server.limits.stop" in check_error(
        post(server, ask("x", stop_sequences=["x"] * 100)), 400, "invalid_request_error"
    )


def test_other_refusals_have_the_same_form(server: BayProcess) -> None:
    assert "body_bytes" in check_error(post(server, ask("x" * (2 << 20))), 413, "request_too_large")
    check_error(httpx.get(f"{server.url}/v1/messages", timeout=60), 405, "invalid_request_error")
    check_error(post(server, {}, "/v1/messages/batches"), 404, "not_found_error")
    listed = httpx.get(f"{server.url}/v1/models?limit=0", headers={"anthropic-version": "2023-06-01"}, timeout=60)
    check_error(listed, 400, "invalid_request_error")

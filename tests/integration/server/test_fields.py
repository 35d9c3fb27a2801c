"""Fields that are translated, ignored or refused, over HTTP on the fake engine."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import pytest

from tests.integration.server.abused_server import CHAT, COMPLETIONS, EMBEDDINGS, HELLO, RESPONSES, AbusedServer
from tests.integration.server.bay_process import run_server
from tests.integration.server.fake_requests import build_config

LENGTHS = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens"}
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "toy", "messages": HELLO},
    COMPLETIONS: {"model": "toy", "prompt": "hi"},
    RESPONSES: {"model": "toy", "input": "hi"},
}


def ask(server: AbusedServer, path: str, **fields: Any) -> tuple[dict[str, str], Any]:
    """The headers and the body of an answer."""
    answer = server.post(path, {**BASES[path], LENGTHS[path]: 4, **fields})
    assert answer.status == 200, answer.body
    text = answer.body.decode()
    return answer.headers, text if text.startswith(("event", "data", ":")) else json.loads(text)


def test_what_a_coding_agent_sends(battered: AbusedServer) -> None:
    tools = [{"type": "function", "name": "shell"}, {"type": "web_search", "external_web_access": False}]
    headers, body = ask(
        battered, RESPONSES, tools=tools, tool_choice="auto", parallel_tool_calls=False, store=False, service_tier="flex",
        reasoning={"effort": "medium", "summary": "auto"}, include=["reasoning.encrypted_content"], prompt_cache_key="k",
        client_metadata={"installation": "x"}, text={"verbosity": "low"}, some_new_field={"a": 1},
    )  # fmt: skip
    ignored = headers["x-enginebay-ignored"]
    for name in ("tools: web_search", "service_tier", "reasoning.effort", "reasoning.summary", "client_metadata",
                 "text.verbosity", "some_new_field: unknown"):  # fmt: skip
        assert name in ignored
    assert "store" not in ignored and "prompt_cache_key" not in ignored and "include" not in ignored
    assert [tool["name"] for tool in body["tools"]] == ["shell"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_hints_and_names_of_other_servers(battered: AbusedServer, path: str, stream: bool) -> None:
    headers, _ = ask(
        battered, path, stream=stream, store=True, user="me", keep_alive="5m", cache_prompt=False, mirostat=2,
        repeat_penalty=1.1, skip_special_tokens=False,
    )  # fmt: skip
    for name in ("store", "user", "keep_alive", "cache_prompt", "mirostat: unknown"):
        assert name in headers["x-enginebay-ignored"]
    for name in ("repeat_penalty", "skip_special_tokens"):
        assert name in headers["x-enginebay-translated"]


def test_an_ordinary_answer_has_neither_header(battered: AbusedServer) -> None:
    for path in BASES:
        headers, _ = ask(battered, path)
        assert "x-enginebay-ignored" not in headers and "x-enginebay-translated" not in headers


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_token_ids_are_returned_on_request(battered: AbusedServer, path: str, n: int) -> None:
    """As vLLM's server does. The fake engine's tokens are bytes."""
    _, body = ask(battered, path, n=n, return_token_ids=True)
    prompt_ids = [body["prompt_token_ids"]] if path == CHAT else [one["prompt_token_ids"] for one in body["choices"]]
    assert len(prompt_ids[0]) == body["usage"]["prompt_tokens"]
    assert bytes(prompt_ids[0]).decode() == (HELLO[0]["content"] if path == CHAT else "hi")
    texts = [one["message"]["content"] if path == CHAT else one["text"] for one in body["choices"]]
    assert [bytes(one["token_ids"]).decode("utf-8", "replace") for one in body["choices"]] == texts
    _, stream = ask(battered, path, n=n, return_token_ids=True, stream=True)
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    parts = [one for event in events for one in event["choices"]]
    for index in range(n):
        own = [one for one in parts if one["index"] == index]
        assert sum(len(one.get("token_ids", ())) for one in own) == 4
        text = "".join(one["delta"].get("content", "") if path == CHAT else one["text"] for one in own)
        assert bytes(token for one in own for token in one.get("token_ids", ())).decode("utf-8", "replace") == text
    first = events[0] if path == CHAT else events[0]["choices"][0]
    assert first["prompt_token_ids"] == prompt_ids[0]
    headers, body = ask(battered, path)
    assert "token_ids" not in json.dumps(body) and "x-enginebay-ignored" not in headers


@pytest.mark.parametrize(("path", "effort"), [(CHAT, "reasoning_effort"), (RESPONSES, "reasoning.effort")])
def test_thinking_is_not_an_error(battered: AbusedServer, path: str, effort: str) -> None:
    field: dict[str, Any] = {"reasoning": {"effort": "high"}} if path == RESPONSES else {effort: "high"}
    headers, _ = ask(battered, path, **field, thinking={"type": "disabled", "budget_tokens": 9})
    for name in (effort, "thinking"):
        assert f"{name}: the model's chat template has no such switch" in headers["x-enginebay-ignored"]
    assert "thinking.budget_tokens: the model has no reasoning format" in headers["x-enginebay-ignored"]
    headers, _ = ask(battered, path, thinking={"type": "disabled", "some_new_field": 1})
    assert "thinking.some_new_field: unknown" in headers["x-enginebay-ignored"]
    wrong = {**BASES[path], "thinking": {"type": "enabled", "budget_token": 9}}
    assert "budget_tokens?" in battered.assert_refused(path, wrong, "thinking")["message"]


@pytest.mark.parametrize("path", [*BASES, EMBEDDINGS, "/tokenize", "/detokenize"])
def test_a_misspelling_is_an_error_and_another_name_is_not(battered: AbusedServer, path: str) -> None:
    others: dict[str, dict[str, Any]] = {
        EMBEDDINGS: {"model": "toy", "input": "hi"}, "/tokenize": {"model": "toy", "prompt": "hi"},
        "/detokenize": {"model": "toy", "tokens": [1]},
    }  # fmt: skip
    base = {**BASES[path], LENGTHS[path]: 4} if path in BASES else others[path]
    error = battered.assert_refused(path, {**base, "modell": "x"}, "modell")
    assert "Did you mean model?" in error["message"]
    answer = battered.post(path, {**base, "some_new_field": 1})
    assert answer.status == 200 and answer.headers["x-enginebay-ignored"] == "some_new_field: unknown"


def test_the_configuration_can_refuse_unknown_fields_at_any_depth() -> None:
    unknown = {"type": "json_object", "some_new_field": 1}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"response_format": unknown},
        COMPLETIONS: {"response_format": unknown},
        "/v1/messages": {"messages": [{**HELLO[0], "some_new_field": 1}]},
    }
    base = {"model": "toy", "messages": HELLO, "max_tokens": 4}
    with run_server(config=build_config(unknown_fields="refuse")) as server:
        for path, fields in bodies.items():
            plain = {"model": "toy", "prompt": "hi", "max_tokens": 4} if path == COMPLETIONS else base
            assert httpx.post(f"{server.url}{path}", json=plain, timeout=60).status_code == 200
            refused = httpx.post(f"{server.url}{path}", json={**plain, **fields}, timeout=60)
            assert refused.status_code == 400 and "some_new_field" in refused.json()["error"]["message"]


def test_an_admin_command_is_strict(battered: AbusedServer) -> None:
    answer = battered.post("/admin/load", {"model": "toy", "some_new_field": 1}, battered.server.admin_headers)
    assert answer.status == 400 and json.loads(answer.body)["error"]["param"] == "some_new_field"


@pytest.mark.parametrize("length", [-1, 10**9])
@pytest.mark.parametrize("path", list(BASES))
def test_a_length_beyond_the_context_is_cut(battered: AbusedServer, path: str, length: int) -> None:
    name = LENGTHS[path]
    headers, body = ask(
        battered, path, **{name: length, "stop": list("abcdefghijklmnop")}
    )  # it need not go on to the end
    context = battered.client.get("/v1/models/toy").json()["enginebay"]["context_length"]
    prompt = body["usage"].get("prompt_tokens", body["usage"].get("input_tokens"))
    expected = f"{name}: {context - prompt}: the context has {context} tokens and the prompt {prompt}"
    assert headers["x-enginebay-translated"] == expected


@pytest.mark.parametrize("path", list(BASES))
def test_a_prompt_that_does_not_fit(battered: AbusedServer, path: str) -> None:
    text = "x " * 5000
    field = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input"}[path]
    value = [{"role": "user", "content": text}] if path == CHAT else text
    error = battered.assert_refused(path, {**BASES[path], field: value}, field)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is ")
    assert f"However, your {field} resulted in " in error["message"]


def test_a_byte_order_mark_and_a_slash(battered: AbusedServer) -> None:
    body = b"\xef\xbb\xbf" + json.dumps({**BASES[CHAT], "max_tokens": 4}).encode()
    assert battered.post(f"{CHAT}/", body).status == 200
    for path in ("/v1/models/", "/v1/models/toy/", "/health/"):
        assert battered.client.get(path).status_code == 200
    assert battered.client.get("/v1/models/toy//").status_code == 404


def test_the_server_is_as_before(battered: AbusedServer) -> None:
    battered.assert_as_before()

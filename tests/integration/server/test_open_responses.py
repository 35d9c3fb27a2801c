"""The cases of the Open Responses suite over HTTP, on the fake engine. Its cases over WebSocket are with that transport."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import build_config

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "San Francisco"}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "a \\"b\\"\\nc"}}\n</tool_call>'
LOOKUP = '<tool_call>\n{"name": "crm__find", "arguments": {"id": 1}}\n</tool_call>'
WEATHER = {
    "type": "function", "name": "get_weather", "description": "The weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}  # fmt: skip
NUMBER, TEXT, WHOLE, OBJECT, LIST = (int, float), str, int, dict, list
NONE = type(None)
# What the specification requires of a response, with the types it allows.
FIELDS: dict[str, Any] = {
    "id": TEXT, "object": TEXT, "created_at": WHOLE, "completed_at": (WHOLE, NONE), "status": TEXT,
    "incomplete_details": (OBJECT, NONE), "model": TEXT, "previous_response_id": (TEXT, NONE), "instructions": (TEXT, NONE),
    "output": LIST, "error": (OBJECT, NONE), "tools": LIST, "tool_choice": (TEXT, OBJECT), "truncation": TEXT,
    "parallel_tool_calls": bool, "text": OBJECT, "top_p": NUMBER, "presence_penalty": NUMBER, "frequency_penalty": NUMBER,
    "top_logprobs": WHOLE, "temperature": NUMBER, "reasoning": (OBJECT, NONE), "usage": (OBJECT, NONE),
    "max_output_tokens": (WHOLE, NONE), "max_tool_calls": (WHOLE, NONE), "store": bool, "background": bool,
    "service_tier": TEXT, "metadata": OBJECT, "safety_identifier": (TEXT, NONE), "prompt_cache_key": (TEXT, NONE),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BayProcess]:
    scripts = {"weather like": CALL, "Patch it": PATCH, "Look it up": LOOKUP}
    config = build_config({"script": "one two three", "script_by_prompt": scripts})
    config["models"]["toy"]["tool_format"] = "hermes"
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path_factory.mktemp("home"))}) as running:
        yield running


def post(server: BayProcess, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1{path}", json=body, timeout=60, verify=False)


def create(server: BayProcess, input_: Any, **fields: Any) -> dict[str, Any]:
    answer = post(server, "/responses", model="toy", input=input_, **fields)
    assert answer.status_code == 200, answer.text
    check_fields(answer.json())
    return answer.json()  # type: ignore[no-any-return]


def stream(server: BayProcess, input_: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = post(server, "/responses", model="toy", input=input_, stream=True, **fields)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        if "response" in event:
            check_fields(event["response"])
    return events


def check_fields(response: dict[str, Any]) -> None:
    for name, types in FIELDS.items():
        assert isinstance(response[name], types), name
    assert response["object"] == "response"
    for tool in response["tools"]:
        assert tool["type"] != "function" or {"name", "description", "parameters", "strict"} <= set(tool)


def say(role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


@pytest.mark.parametrize(
    "items",
    [
        [say("user", "Say hello in exactly 3 words.")],
        [say("system", "You are a pirate."), say("user", "Say hello.")],
        [say("user", "My name is Alice."), say("assistant", "Hello Alice!"), say("user", "What is my name?")],
        [
            say("assistant", "I should answer.", phase="commentary"),
            say("assistant", "The number is four.", phase="final_answer"),
            say("user", "Repeat only the number."),
        ],
    ],
    ids=["basic-response", "system-prompt", "multi-turn", "assistant-phase"],
)
def test_text(server: BayProcess, items: list[dict[str, Any]]) -> None:
    found = create(server, items)
    assert found["status"] == "completed" and found["completed_at"] >= found["created_at"]
    [message] = found["output"]
    assert (message["type"], message["status"], message["role"]) == ("message", "completed", "assistant")
    [part] = message["content"]
    assert part == {"type": "output_text", "text": "one two three", "annotations": [], "logprobs": []}


def test_streaming_response(server: BayProcess) -> None:
    events = stream(server, [say("user", "Count from 1 to 5.")])
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.completed"
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "one two three" == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_tool_calling(server: BayProcess) -> None:
    found = create(server, [say("user", "What's the weather like in San Francisco?")], tools=[WEATHER])
    [call] = found["output"]
    assert call["type"] == "function_call" and json.loads(call["arguments"]) == {"location": "San Francisco"}
    assert found["tools"] == [{**WEATHER, "strict": None}]
    events = stream(server, "What's the weather like in San Francisco?", tools=[WEATHER])
    kinds = [event["type"] for event in events]
    for kind in (
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ):
        assert f"response.{kind}" in kinds


def test_image_input(server: BayProcess) -> None:
    """This engine takes no images, and says so; one that renders the chat itself gets them."""
    parts = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": "data:image/png;base64,x"}]
    answer = post(server, "/responses", model="toy", input=[{"role": "user", "content": parts}])
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "input" and "image_url" in error["message"]


def test_compact_response(server: BayProcess) -> None:
    items = [say("user", "We launch on Tuesday."), say("assistant", "Understood.")]
    found = post(server, "/responses/compact", model="toy", input=items, prompt_cache_key="k").json()
    assert found["object"] == "response.compaction" and isinstance(found["created_at"], int)
    message, compaction = found["output"]
    assert message["role"] == "user" and compaction["type"] == "compaction" and compaction["encrypted_content"]
    assert found["usage"]["total_tokens"] == found["usage"]["input_tokens"] + found["usage"]["output_tokens"]
    assert create(server, [*found["output"], say("user", "When?")], store=False)["status"] == "completed"


def test_compact_missing_model(server: BayProcess) -> None:
    answer = post(server, "/responses/compact", input=[say("user", "Compact this conversation.")])
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"


def test_output_phases_are_accepted_back(server: BayProcess) -> None:
    """response-output-phase-schema: what another server labelled is input here, and is stored with its label."""
    part = {"type": "output_text", "text": "The answer is four.", "annotations": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "phase": "final_answer"}
    made = create(server, [{**item, "content": [part]}, say("user", "Repeat it.")])
    listed = httpx.get(f"{server.url}/v1/responses/{made['id']}/input_items?order=asc", timeout=60).json()
    first = listed["data"][0]
    assert first == {**item, "id": first["id"], "content": [part]} and len(first["id"]) == 52, (
        "with an id of this server"
    )


def test_the_two_turns_of_a_custom_tool(server: BayProcess) -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tools = [{"type": "custom", "name": "patch", "description": "Edits files.", "format": grammar}]
    events = stream(server, "Patch it", tools=tools)
    delta, done = (
        next(event for event in events if event["type"] == f"response.custom_tool_call_input.{end}")
        for end in ("delta", "done")
    )
    assert delta["delta"] == done["input"] == 'a "b"\nc'
    [call] = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", 'a "b"\nc')
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    following = create(
        server, [output, say("user", "And?")], previous_response_id=events[-1]["response"]["id"], tools=tools
    )
    assert following["status"] == "completed" and following["tools"] == tools


def test_a_tool_in_a_namespace_keeps_it(server: BayProcess) -> None:
    inner = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": False}
    tools = [{"type": "namespace", "name": "crm", "description": "Customers", "tools": [inner]}]
    [call] = create(server, "Look it up", tools=tools)["output"]
    assert (call["namespace"], call["name"], json.loads(call["arguments"])) == ("crm", "find", {"id": 1})


def test_a_regex_binds_a_required_custom_tool(tmp_path: Path) -> None:
    regex = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}-[0-9]{2}"}
    tools = [{"type": "custom", "name": "code", "format": regex}]
    with run_server(config=build_config({}), environ={"ENGINEBAY_HOME": str(tmp_path)}) as server:
        body = {"model": "toy", "input": "x", "tools": tools, "tool_choice": {"type": "custom", "name": "code"}}
        answer = post(server, "/responses", **body)
        assert answer.status_code == 200, answer.text
        [call] = answer.json()["output"]
        assert call["type"] == "custom_tool_call"
        assert "regex is enforced" in answer.headers["x-enginebay-translated"]

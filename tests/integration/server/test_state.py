"""Stored responses and conversations on `bay serve` with the fake engine, through the OpenAI SDK."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from enginebay.server.api.openai.responses_api.stored_items import decode_summary
from tests.integration.server.bay_process import BayProcess, run_server
from tests.integration.server.fake_requests import build_config

TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
SCRIPTS = {  # the first fragment that the prompt has decides
    "!long": "x" * 5000,
    "</think>\n\n": "The summary.",
    "[think]": "<think>\nLet me see.\n</think>\n\nThe answer.",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[BayProcess]:
    """Two server processes: a request may land on either."""
    config = build_config({"step_s": 0.002}, workers=2)
    config["models"]["slow"] = {"engine": "fake", "fake": {"step_s": 0.05}}
    config["models"]["thinker"] = {"engine": "fake", "reasoning_format": "think", "fake": {"script_by_prompt": SCRIPTS}}
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(home)}) as running:
        yield running


@pytest.fixture
def client(server: BayProcess) -> OpenAI:
    return server.openai()


def create(client: OpenAI, input_: Any = "hi", **fields: Any) -> Any:
    return client.responses.create(
        **{"model": "toy", "input": input_, "max_output_tokens": 4, "temperature": 0, **fields}
    )


def wait_for(client: OpenAI, response_id: str, *statuses: str) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = client.responses.retrieve(response_id)
        if found.status in statuses:
            return found
        time.sleep(0.05)
    raise AssertionError(found.status)


def test_a_response_is_continued(client: OpenAI) -> None:
    first = create(client, "My name is Alice.")
    second = create(client, "What is my name?", previous_response_id=first.id)
    assert first.store is True and second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + 5, "the first turn is in the prompt"
    whole = create(
        client,
        [
            {"role": "user", "content": "My name is Alice."},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "What is my name?"},
        ],
    )
    assert whole.usage.input_tokens == second.usage.input_tokens and whole.output_text == second.output_text


def test_streams_are_stored_before_their_end(client: OpenAI) -> None:
    for _ in range(10):
        events = list(create(client, stream=True))
        final = events[-1].response
        assert client.responses.retrieve(final.id).output_text == final.output_text
        assert [event.sequence_number for event in events] == list(range(len(events)))


def test_retrieve_list_and_delete(client: OpenAI) -> None:
    made = create(client, [{"role": "user", "content": f"part {number}"} for number in range(5)])
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    newest = client.responses.input_items.list(made.id, limit=2)
    assert [item.content[0].text for item in newest.data] == ["part 4", "part 3"] and newest.has_more  # type: ignore[union-attr]
    every = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2, order="asc")]  # type: ignore[union-attr]
    assert every == [f"part {number}" for number in range(5)]
    client.responses.delete(made.id)
    for act in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(NotFoundError):
            act(made.id)
    with pytest.raises(BadRequestError) as error:
        create(client, previous_response_id=made.id)
    assert error.value.code == "previous_response_not_found" and error.value.param == "previous_response_id"


def test_store_false_stores_nothing(client: OpenAI) -> None:
    made = create(client, store=False)
    assert made.store is False
    with pytest.raises(NotFoundError):
        client.responses.retrieve(made.id)


def test_items_are_referred_to(client: OpenAI) -> None:
    made = create(client, "Remember 7.")
    [item] = client.responses.input_items.list(made.id).data
    again = create(client, [{"type": "item_reference", "id": item.id}])
    assert again.usage.input_tokens == made.usage.input_tokens
    with pytest.raises(BadRequestError, match="not stored"):
        create(client, [{"type": "item_reference", "id": "msg_elsewhere"}])


def test_a_conversation_collects_turns(client: OpenAI) -> None:
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "My name is Alice."}], metadata={"topic": "names"}
    )
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "names"}
    first = create(client, "What is my name?", conversation=conversation.id)
    assert first.conversation.id == conversation.id
    items = client.conversations.items.list(conversation.id, order="asc").data
    assert [item.role for item in items] == ["user", "user", "assistant"]  # type: ignore[union-attr]
    second = create(client, "And now?", conversation={"id": conversation.id})
    assert second.usage.input_tokens > first.usage.input_tokens
    assert len(client.conversations.items.list(conversation.id).data) == 5
    [added] = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": "x"}]
    ).data
    assert client.conversations.items.retrieve(added.id, conversation_id=conversation.id).id == added.id  # type: ignore[arg-type]
    client.conversations.items.delete(added.id, conversation_id=conversation.id)  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(added.id, conversation_id=conversation.id)  # type: ignore[arg-type]
    assert client.conversations.update(conversation.id, metadata={"topic": "x"}).metadata == {"topic": "x"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(conversation.id)
    with pytest.raises(NotFoundError):
        create(client, conversation=conversation.id)


def test_what_excludes_each_other_is_refused(client: OpenAI) -> None:
    conversation = client.conversations.create()
    made = create(client, conversation=conversation.id)
    with pytest.raises(BadRequestError, match="Send conversation"):
        create(client, previous_response_id=made.id)
    with pytest.raises(BadRequestError, match="mutually exclusive"):
        create(client, previous_response_id=made.id, conversation=conversation.id)
    with pytest.raises(BadRequestError, match="input is missing"):
        client.responses.create(model="toy")
    with pytest.raises(BadRequestError, match="requires store"):
        create(client, background=True, store=False)
    with pytest.raises(BadRequestError, match="only background responses"):
        client.responses.cancel(create(client).id)


def test_tokens_are_counted(client: OpenAI) -> None:
    first = create(client, "Hello there", tools=[TOOL])
    counted = client.responses.input_tokens.count(model="toy", input="Hello there", tools=[TOOL])
    assert counted.input_tokens == first.usage.input_tokens
    more = client.responses.input_tokens.count(model="toy", input="More", previous_response_id=first.id)
    assert more.input_tokens > 5
    fields: Any = {"tools": [TOOL, {"type": "web_search"}], "extra_body": {"max_reasoning_tokens": 0}}
    made = create(client, "[think]", model="thinker", **fields)
    answer = client.responses.input_tokens.with_raw_response.count(model="thinker", input="[think]", **fields)
    assert answer.parse().input_tokens == made.usage.input_tokens, "what is left out and what is added"
    assert "web_search" in answer.headers["x-enginebay-ignored"]


def test_a_compacted_conversation_goes_on(client: OpenAI) -> None:
    turns: Any = [{"role": "user", "content": "We launch on Tuesday."}, {"role": "assistant", "content": "Understood."}]
    compacted = json.loads(client.responses.with_raw_response.compact(model="toy", input=turns).content)
    output = compacted["output"]
    assert [item["type"] for item in output] == ["message", "compaction"] and compacted["usage"]["output_tokens"] > 0
    assert create(client, [*output, {"role": "user", "content": "When?"}]).status in ("completed", "incomplete")
    output[1]["encrypted_content"] = "gAAAAelsewhere"
    with pytest.raises(BadRequestError, match="did not make"):
        create(client, output)


def test_a_summary_has_no_thought_and_says_if_it_was_cut(client: OpenAI) -> None:
    compact = client.responses.with_raw_response.compact
    turns: Any = [{"role": "user", "content": "[think]", "odd": 1}]
    answer = compact(model="thinker", input=turns)
    whole = json.loads(answer.content)
    assert whole["status"] == "completed" and "odd" in answer.headers["x-enginebay-ignored"]
    assert decode_summary(whole["output"][1]["encrypted_content"], "") == "The summary."
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    cut = json.loads(compact(model="thinker", input="!long").content)
    assert cut["status"] == "incomplete"


def test_a_response_in_the_background(client: OpenAI) -> None:
    made = create(client, background=True, max_output_tokens=8)
    assert made.status == "queued" and made.background is True and made.output == []
    done = wait_for(client, made.id, "completed", "incomplete")
    assert done.output_text and done.usage.output_tokens
    assert create(client, "more", previous_response_id=made.id).usage.input_tokens > done.usage.input_tokens


def test_a_background_response_is_cancelled_wherever_it_runs(server: BayProcess) -> None:
    for _ in range(4):  # a new connection each: requests land on either process
        client = server.openai()
        made = create(client, background=True, model="slow", max_output_tokens=1000, extra_body={"ignore_eos": True})
        wait_for(client, made.id, "in_progress")
        assert server.openai().responses.cancel(made.id).status == "cancelled"
        assert server.openai().responses.cancel(made.id).status == "cancelled"
        with pytest.raises(BadRequestError, match="cancelled"):
            create(client, previous_response_id=made.id)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and count_running(server):
        time.sleep(0.2)
    assert count_running(server) == 0, "the engine's slots are free"


def count_running(server: BayProcess) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    lines = [line for line in text.splitlines() if line.startswith("enginebay_requests_running{") and "slow" in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_an_error_in_the_background_is_told_later(client: OpenAI) -> None:
    with pytest.raises(BadRequestError):
        create(client, background=True, max_output_tokens=4, truncation="auto", tools=[{"type": "function"}])
    with pytest.raises(NotFoundError):
        create(client, background=True, model="nowhere")


def test_a_background_stream_goes_on_without_its_client(server: BayProcess) -> None:
    url = f"{server.url}/v1/responses"
    body = {
        "model": "slow", "input": "hi", "background": True, "stream": True, "max_output_tokens": 40, "ignore_eos": True,
    }  # fmt: skip
    with httpx.stream("POST", url, json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        seen = [next(lines) for _ in range(20)]
    events = [json.loads(line[6:]) for line in seen if line.startswith("data: ")]
    response_id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
    for start in (last, -1):
        query = {"stream": "true"} | ({"starting_after": str(start)} if start >= 0 else {})
        found = httpx.get(f"{url}/{response_id}", params=query, timeout=60).text
        rest = [json.loads(line[6:]) for line in found.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in rest] == list(range(start + 1, start + 1 + len(rest)))
        assert rest[-1]["type"] in ("response.completed", "response.incomplete")
        final = rest[-1]["response"]
    stored = server.openai().responses.retrieve(response_id)
    assert stored.output_text == final["output"][0]["content"][0]["text"] and final["usage"]["output_tokens"] == 40


@pytest.mark.parametrize("act", ["cancel", "delete"])
def test_a_cancelled_background_stream_ends_for_its_clients(server: BayProcess, act: str) -> None:
    url = f"{server.url}/v1/responses"
    body = {"model": "slow", "input": "hi", "background": True, "stream": True, "ignore_eos": True}
    for _ in range(3):  # a new connection each: requests land on either process
        with httpx.stream("POST", url, json={**body, "max_output_tokens": 1000}, timeout=30) as stream:
            lines = stream.iter_lines()
            seen = [next(lines) for _ in range(12)]
            response_id = json.loads(seen[1][6:])["response"]["id"]
            getattr(server.openai().responses, act)(response_id)
            seen += lines
        events = [json.loads(line[6:]) for line in seen if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "cancelled"
        if act == "cancel":
            found = httpx.get(f"{url}/{response_id}", params={"stream": "true"}, timeout=30).text
            assert [line for line in found.splitlines() if line.startswith("data: ")][-1].startswith(
                'data: {"type":"response.failed"'
            )


def test_it_survives_a_restart(server: BayProcess, home: Path) -> None:
    made = create(server.openai(), "Remember 7.")
    with run_server(config=build_config({"step_s": 0.002}), environ={"ENGINEBAY_HOME": str(home)}) as another:
        assert another.openai().responses.retrieve(made.id).to_dict() == made.to_dict()
        assert create(another.openai(), previous_response_id=made.id).previous_response_id == made.id


def test_state_off(tmp_path: Path) -> None:
    config = build_config({}, state=False)
    with run_server(config=config, environ={"ENGINEBAY_HOME": str(tmp_path)}) as server:
        client = server.openai()
        answer = client.responses.with_raw_response.create(model="toy", input="hi", store=True, max_output_tokens=2)
        assert answer.headers["x-enginebay-ignored"] == "store: server.state is off"
        made = answer.parse()
        assert made.store is False
        with pytest.raises(BadRequestError, match=r"server\.state is off"):
            create(client, previous_response_id=made.id)
        with pytest.raises(BadRequestError, match=r"server\.state is off"):
            client.responses.retrieve(made.id)
        with pytest.raises(BadRequestError, match=r"server\.state is off"):
            create(client, background=True)
        assert not (tmp_path / "state").exists()

"""Messages of a Responses WebSocket: what they ask for, and how one continues the other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from enginebay.errors import InvalidRequest, RequestError
from enginebay.server.api.websocket.response_chain import ResponseChain, ResponseCreation


def read(chain: ResponseChain, **fields: Any) -> ResponseCreation:
    creation = chain.read_message(json.dumps({"type": "response.create", **fields}).encode())
    assert creation is not None
    return creation


def finish(chain: ResponseChain, creation: ResponseCreation, id: str, output: list[Any], **fields: Any) -> None:
    event = {"type": "response.completed", "response": {"id": id, "output": output, **fields}}
    chain.record(creation, json.dumps(event).encode())


def test_the_body_of_a_request() -> None:
    creation = read(ResponseChain(), model="m", input="hi", store=False, stream_id="a", background=False, stream=None)
    assert json.loads(creation.body) == {"model": "m", "input": "hi", "store": False, "stream": True}
    assert creation.stream_id == "a" and creation.previous_id is None and creation.generate


def test_a_response_that_was_not_stored_is_continued() -> None:
    chain = ResponseChain()
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}
    finish(chain, read(chain, model="m", input="hi"), "resp_1", [answer], store=False)
    second = read(chain, model="m", previous_response_id="resp_1", input=[{"type": "function_call_output"}])
    first = {"type": "message", "role": "user", "content": "hi"}
    assert json.loads(second.body)["input"] == [first, answer, {"type": "function_call_output"}]
    assert "previous_response_id" not in json.loads(second.body) and second.previous_id == "resp_1"
    finish(chain, second, "resp_2", [answer], store=False)
    third = read(chain, model="m", previous_response_id="resp_2", input="and?")
    assert len(json.loads(third.body)["input"]) == 5
    assert json.loads(read(chain, previous_response_id="resp_1").body)["previous_response_id"] == "resp_1"


def test_a_stored_response_is_left_to_the_endpoint() -> None:
    chain = ResponseChain()
    finish(chain, read(chain, model="m", input="hi"), "resp_1", [], store=True)
    assert json.loads(read(chain, previous_response_id="resp_1").body)["previous_response_id"] == "resp_1"
    assert chain.size == 0


def test_a_response_can_be_forgotten() -> None:
    chain = ResponseChain()
    finish(chain, read(chain, model="m", input="hi"), "resp_1", [])
    chain.forget()
    assert read(chain, previous_response_id="resp_1").previous_id is None


def test_a_warm_up_has_no_output() -> None:
    chain = ResponseChain()
    warm = read(chain, model="m", input=[{"role": "user", "content": "hi"}], generate=False, store=True)
    body = json.loads(warm.body)
    assert body["store"] is False and body["max_output_tokens"] == 1 and "generate" not in body
    finish(chain, warm, "resp_0", [{"never": "sent"}])
    assert json.loads(read(chain, previous_response_id="resp_0", input=[]).body)["input"] == [
        {"role": "user", "content": "hi"}
    ]


def test_an_input_that_is_no_list_is_left_to_the_endpoint() -> None:
    assert json.loads(read(ResponseChain(), input=5).body)["input"] == 5
    assert json.loads(read(ResponseChain(), input=None).body)["input"] is None


def test_a_message_without_an_answer() -> None:
    assert ResponseChain().read_message(b'{"type": "response.processed", "response_id": "resp_1"}') is None


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"{", None),
        (b'"response.create"', None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"a":' * 100_000, None),
        (b"{}", "type"),
        (b'{"type": 1}', "type"),
        (b'{"type": "response.steer"}', "type"),
        (b'{"type": "response.create", "stream_id": ""}', "stream_id"),
        (b'{"type": "response.create", "stream_id": "\\n"}', "stream_id"),
        (b'{"type": "response.create", "stream_id": 7}', "stream_id"),
        (b'{"type": "response.create", "generate": "no"}', "generate"),
        (b'{"type": "response.create", "background": true}', "background"),
        (b'{"type": "response.create", "previous_response_id": 7}', "previous_response_id"),
    ],
)
def test_a_message_that_is_refused(message: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as raised:
        ResponseChain().read_message(message)
    assert raised.value.param == param
    if param is None:
        assert isinstance(raised.value, InvalidRequest)

"""Bad bodies: each is refused with the right status and the right `param`, and the server is as good as new afterwards."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from enginebay.contract.sampling_parameters import RANGES
from enginebay.server.api.openai.schemas import ChatBody, CompletionBody, ResponsesBody
from tests.integration.server.abused_server import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    HELLO,
    RESPONSES,
    AbusedServer,
)
from tests.integration.server.raw_http import assert_error, build_request, connect, read_response

BODIES: dict[str, tuple[type, dict[str, Any]]] = {
    CHAT: (ChatBody, {"model": "toy", "messages": HELLO, "max_tokens": 4}),
    COMPLETIONS: (CompletionBody, {"model": "toy", "prompt": "hi", "max_tokens": 4}),
    RESPONSES: (ResponsesBody, {"model": "toy", "input": "hi", "max_output_tokens": 4}),
}
HUGE = 10**400
NOT_FOR_NUMBERS = ('"1"', "[]", "{}", "true", '"NaN"')
NOT_JSON = ("NaN", "Infinity", "-Infinity", "1e", "0x10", "01", "1_000")


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    return {**BODIES[path][1], **fields}


def with_literal(path: str, field: str, literal: str) -> bytes:
    """A body in which this text stands where the field's value would be."""
    text = json.dumps(body_of(path, **{field: "HERE"}))
    return text.replace('"HERE"', literal).encode()


def numbers_of(path: str) -> dict[str, tuple[float | None, float | None, bool]]:
    """Every number field of a body: its range, and whether it is whole. Straight from the struct that is decoded."""
    found = {}
    for field in msgspec.inspect.type_info(BODIES[path][0]).fields:  # type: ignore[attr-defined]
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        for kind in (getattr(one, "type", one) for one in kinds):
            if isinstance(kind, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
                found[field.encode_name] = (kind.ge, kind.le, isinstance(kind, msgspec.inspect.IntType))
    return found


NUMBERS = [(path, name) for path in BODIES for name in numbers_of(path)]


def test_the_ranges_of_the_contract_are_those_of_the_bodies() -> None:
    for path in (CHAT, COMPLETIONS):
        found = numbers_of(path)
        for name, (low, high) in RANGES.items():
            field = "top_logprobs" if name == "logprobs" and path == CHAT else name
            expected = (-1, 2**63 - 1) if name == "max_tokens" else (low, high)  # cut to the context
            assert found[field][:2] == expected, field
    assert len(NUMBERS) > 40


@pytest.mark.parametrize(("path", "field"), NUMBERS)
def test_numbers_out_of_range(battered: AbusedServer, path: str, field: str) -> None:
    low, high, whole = numbers_of(path)[field]
    extra = {"logprobs": True} if field == "top_logprobs" and path == CHAT else {}
    step = 1 if whole else 0.001
    outside = [value for value in (low - step if low is not None else None, high + step if high is not None else None)
               if value is not None]  # fmt: skip
    outside += [-HUGE] + ([HUGE] if high is not None else []) + ([0.5] if whole else [])
    for value in outside:
        battered.assert_refused(path, body_of(path, **extra, **{field: value}), field)
    for literal in (*NOT_FOR_NUMBERS, "1e309", "-1e309", "1" * 5000, "1e" + "9" * 1000):
        battered.assert_refused(path, with_literal(path, field, literal), field)
    for literal in NOT_JSON:
        assert battered.post(path, with_literal(path, field, literal)).status == 400


@pytest.mark.parametrize("value", [10**6, 0, -1, "1", 17, 1.5, True, [1], HUGE])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("field", ["n", "best_of"])
def test_n(battered: AbusedServer, path: str, field: str, value: Any) -> None:
    battered.assert_refused(path, body_of(path, **{field: value}), field)


def test_null_is_unset(battered: AbusedServer) -> None:
    for path in BODIES:
        names = [name for name in numbers_of(path) if name not in BODIES[path][1]]
        assert battered.post(path, body_of(path, **dict.fromkeys(names))).status == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [""]}, "prompt"),
        (COMPLETIONS, {"prompt": ["hi", ""]}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt"),
        (COMPLETIONS, {"prompt": [[], [1]]}, "prompt"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": 7}, "prompt"),
        (COMPLETIONS, {"prompt": {"a": 1}}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "prompt"),
        (COMPLETIONS, {"prompt": [True]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [1.5]}, "prompt"),
        (COMPLETIONS, {"prompt": [10**9]}, "prompt"),
        (COMPLETIONS, {"prompt": [HUGE]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1, HUGE]]}, "prompt"),
        (COMPLETIONS, {"prompt": ["x"] * 129}, "prompt"),
        (COMPLETIONS, {"prompt": "x" * 5000}, "prompt"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": ["hi"]}, "messages[0]"),
        (CHAT, {"messages": [{}]}, "messages"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": ""}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": []}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": 7}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        (CHAT, {"messages": [{"role": "nobody", "content": "hi"}]}, "messages"),
        (CHAT, {"messages": [{"role": ["user"], "content": "hi"}]}, "messages"),
        (CHAT, {"messages": [{"role": "x" * 10**6, "content": "hi"}]}, "messages"),
        (CHAT, {"messages": HELLO * 5000}, "messages"),
        (RESPONSES, {"input": ""}, "input"),
        (RESPONSES, {"input": []}, "input"),
        (EMBEDDINGS, {"model": "toy", "input": ""}, "input"),
        (EMBEDDINGS, {"model": "toy", "input": []}, "input"),
        (EMBEDDINGS, {"model": "toy", "input": [""]}, "input"),
        (EMBEDDINGS, {"model": "toy", "input": ["x"] * 3000}, "input"),
        (EMBEDDINGS, {"model": "toy", "input": "x" * 5000}, "input"),
        (EMBEDDINGS, {"model": "toy", "input": "hi", "dimensions": 0}, "dimensions"),
        (EMBEDDINGS, {"model": "toy", "input": "hi", "dimensions": 1000}, "dimensions"),
        (EMBEDDINGS, {"model": "toy", "input": "hi", "encoding_format": "hex"}, "encoding_format"),
    ],
)
def test_prompts_that_are_none(battered: AbusedServer, path: str, fields: dict[str, Any], param: str) -> None:
    battered.assert_refused(path, {**BODIES[path][1], **fields} if path in BODIES else fields, param)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": [f"s{number}" for number in range(10_000)]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stop": 7}, "stop"),
        ({"stop_token_ids": list(range(10_000))}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [HUGE]}, "stop_token_ids[0]"),
        ({"logit_bias": {str(number): 1 for number in range(100_000)}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"logit_bias": {"1": -HUGE}}, "logit_bias[...]"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 400: 1}}, "logit_bias"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias"),
        ({"logit_bias": []}, "logit_bias"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}}, "response_format"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[" * 10_000}, "guided_json"),
        ({"guided_json": '{"enum": ["\\ud800"]}'}, "guided_json"),
        ({"guided_json": '{"maximum": NaN}'}, "guided_json"),
        ({"guided_json": "7"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice[0]"),
        ({"guided_choice": ["x"] * 2000}, "guided_choice"),
        ({"guided_json": {}, "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"json": {}, "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml"),
        ({"guided_grammar": "x" * 100_000}, "guided_grammar"),
        ({"guided_grammar": "\x00"}, "guided_grammar"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"temperture": 1}, "temperture"),
        ({"model": 7}, "model"),
        ({"model": None}, "model"),
    ],
)
def test_fields_of_both(battered: AbusedServer, path: str, fields: dict[str, Any], param: str) -> None:
    battered.assert_refused(path, body_of(path, **fields), param)


def test_a_template_of_the_client_is_not_run(battered: AbusedServer) -> None:
    error = battered.assert_refused(CHAT, body_of(CHAT, chat_template="{{ 7 * 7 }}"), "chat_template")
    assert error["code"] == "unsupported_parameter"
    for name in ("messages", "tools", "self", "request", "add_generation_prompt"):
        battered.assert_refused(CHAT, body_of(CHAT, chat_template_kwargs={name: 1}), "chat_template_kwargs")


@pytest.mark.parametrize("body", [b"[" * 10_000, b'{"a":' * 10_000, b"[" * 10_000 + b"]" * 10_000])
def test_deep_json(battered: AbusedServer, body: bytes) -> None:
    assert battered.post(CHAT, body).status == 400
    text = json.dumps(body_of(CHAT, metadata="HERE")).encode()
    inner = b"[" * 10_000 + b"]" * 10_000
    assert battered.post(CHAT, text.replace(b'"HERE"', b'{"a":' + inner + b"}")).status == 400


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"7", b'"text"', b"[]", b"{", b"x{}", b"\xff\xfe", b"{'model': 'toy'}", b"\xef\xbb\xbf[]", b"\x00"],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, "/tokenize", "/detokenize"])
def test_bodies_that_are_no_object(battered: AbusedServer, path: str, body: bytes) -> None:
    battered.assert_refused(path, body, None)


@pytest.mark.parametrize("literal", [rb'"\ud800"', rb'"a\udfffb"', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc3"'])
@pytest.mark.parametrize("place", ["prompt", "model", "stop", "tool", "content", "key", "user"])
def test_lone_surrogates_and_bytes_that_are_no_text(battered: AbusedServer, place: str, literal: bytes) -> None:
    body: dict[str, Any] = {
        "prompt": body_of(COMPLETIONS, prompt="HERE"),
        "model": body_of(CHAT, model="HERE"),
        "stop": body_of(CHAT, stop=["HERE"]),
        "tool": body_of(CHAT, tools=[{"type": "function", "function": {"name": "HERE"}}]),
        "content": body_of(CHAT, messages=[{"role": "user", "content": "HERE"}]),
        "key": body_of(CHAT, HERE=1),
        "user": body_of(CHAT, user="HERE"),
    }[place]
    path = COMPLETIONS if place == "prompt" else CHAT
    answer = battered.post(path, json.dumps(body).encode().replace(b'"HERE"', literal))
    assert answer.status == 400, answer.body
    json.loads(answer.body)  # is itself proper JSON


def test_nul_is_a_character_like_any_other(battered: AbusedServer) -> None:
    assert battered.post(COMPLETIONS, body_of(COMPLETIONS, prompt="a\x00b", echo=True)).status == 200
    assert battered.post(CHAT, body_of(CHAT, messages=[{"role": "user", "content": "\x00"}])).status == 200
    assert battered.post(CHAT, body_of(CHAT, stop=["\x00"], user="\x00")).status == 200
    battered.assert_refused(CHAT, body_of(CHAT, model="to\x00y"), "model", 404)
    battered.assert_refused(CHAT, body_of(CHAT, tools=[{"type": "function", "function": {"name": "\x00"}}]), "tools")


@pytest.mark.parametrize(
    "name", ["../toy", "../../etc/passwd", "toy/../toy", "toy\x00", "", "x" * 10**6, "/etc/passwd"]
)
def test_models_that_are_not_there(battered: AbusedServer, name: str) -> None:
    for path in (CHAT, COMPLETIONS):
        assert battered.assert_refused(path, body_of(path, model=name), "model", 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    "name",
    [
        "..%2Ftoy",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "../toy",
        "toy%00",
        "%00",
        "toy//",
        "%ff%fe",
        "%",
        "%zz",
        "toy?x",
    ],
)
def test_models_asked_by_path(battered: AbusedServer, name: str) -> None:
    with connect(battered.port) as sock:  # a client library would tidy the path up first
        sock.sendall(build_request("GET", f"/v1/models/{name}"))
        answer, _ = read_response(sock)
    if name == "toy?x":
        assert answer.status == 200
    else:
        assert_error(answer, 404, asked=unquote(name))


def test_the_server_is_as_before(battered: AbusedServer) -> None:
    battered.assert_as_before()

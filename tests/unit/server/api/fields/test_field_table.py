"""Every field is honoured, translated, ignored or refused, and the table says which."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.config.sections.server_section import ServerConfig
from enginebay.errors import InvalidRequest, Unsupported
from enginebay.server.api.anthropic.schemas import CountTokensBody, MessagesBody
from enginebay.server.api.body_decoder import read_body
from enginebay.server.api.fields.field_listing import update_page
from enginebay.server.api.fields.field_rules import FieldRule, Treatment
from enginebay.server.api.fields.field_table import FIELD_TABLE
from enginebay.server.api.fields.unknown_fields import list_fields
from enginebay.server.api.ollama.schemas import OllamaChatBody, OllamaGenerateBody
from enginebay.server.api.openai import schemas
from enginebay.server.api.openai.responses_api.state_schemas import CompactBody
from enginebay.server.requests.request_context import RequestContext
from tests.unit.server.requests.test_retry_policy import make_request_context

PAGE = Path(__file__).parents[5] / "docs" / "server.md"
BODIES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "ChatBody": (schemas.ChatBody, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "CompletionBody": (schemas.CompletionBody, {"model": "m", "prompt": "hi"}),
    "ResponsesBody": (schemas.ResponsesBody, {"model": "m", "input": "hi"}),
    "CompactBody": (CompactBody, {"model": "m", "input": "hi"}),
    "MessagesBody": (MessagesBody, {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}),
    "CountTokensBody": (CountTokensBody, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "EmbeddingBody": (schemas.EmbeddingBody, {"model": "m", "input": "hi"}),
    "OllamaChatBody": (OllamaChatBody, {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
    "OllamaGenerateBody": (OllamaGenerateBody, {"model": "m", "prompt": "hi"}),
}
RULES = [(body, rule) for body, rules in FIELD_TABLE.items() for rule in rules.rules.values()]
APPLIED = [(body, rule) for body, rule in RULES if not rule.depends]


def read(name: str, **fields: Any) -> tuple[Any, RequestContext]:
    struct, base = BODIES[name]
    request_context = make_request_context()
    request_context.exchange.body = json.dumps({**base, **fields}).encode()
    context: Any = SimpleNamespace(config=ServerConfig())
    return read_body(struct, context, request_context), request_context


def nest(name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.rpartition(".")
    return {outer: {inner: value}} if outer else {name: value}


def pick_value(rule: FieldRule) -> Any:
    """A value that asks for something, of a type that the field takes."""
    values: dict[str, Any] = {
        "repeat_penalty": 1.5, "n_predict": 7, "max_output_tokens": 7, "max_tokens": 7, "max_completion_tokens": 7,
        "json_schema": {"type": "object"}, "skip_special_tokens": False, "max_tool_calls": 3, "conversation": "c",
        "prompt": {"id": "p"}, "moderation": {"model": "m"}, "context_management": [{"type": "compaction"}],
        "background": True, "truncation": "auto", "stream_options.include_obfuscation": True,
        "stream_options.continuous_usage_stats": True, "truncate": True, "shift": True, "context": [1],
    }  # fmt: skip
    return values.get(rule.name, "something")


@pytest.mark.parametrize(("name", "rule"), RULES, ids=lambda value: getattr(value, "name", value))
def test_a_rule_names_a_field_of_its_body(name: str, rule: FieldRule) -> None:
    outer, _, inner = rule.name.rpartition(".")
    struct = list_fields(BODIES[name][0])[outer] if outer else BODIES[name][0]
    assert struct is not None and inner in list_fields(struct)
    assert rule.detail and bool(rule.hint) == (rule.treatment is Treatment.REFUSED)
    assert not rule.target or rule.target in list_fields(BODIES[name][0])


@pytest.mark.parametrize(("name", "rule"), APPLIED, ids=lambda value: getattr(value, "name", value))
def test_a_field_is_treated_as_the_table_says(name: str, rule: FieldRule) -> None:
    value = pick_value(rule)
    if rule.treatment is Treatment.REFUSED:
        with pytest.raises(Unsupported) as caught:
            read(name, **nest(rule.name, value))
        assert (caught.value.param, caught.value.hint) == (rule.name, rule.hint)
        return
    body, request_context = read(name, **nest(rule.name, value))
    expected = {rule.name: rule.detail}
    is_ignored = rule.treatment is Treatment.IGNORED
    assert (request_context.ignored, request_context.translated) == ((expected, {}) if is_ignored else ({}, expected))
    if rule.target:
        assert getattr(body, rule.target) == value


@pytest.mark.parametrize(("name", "rule"), APPLIED, ids=lambda value: getattr(value, "name", value))
def test_null_and_neutral_values_ask_for_nothing(name: str, rule: FieldRule) -> None:
    for value in (None, *rule.neutral):
        _, request_context = read(name, **nest(rule.name, value))
        assert not request_context.ignored and not request_context.translated


@pytest.mark.parametrize("value", [7, "x", [1], {"a": 1}, True])
def test_what_is_ignored_may_have_any_value(value: Any) -> None:
    for name in ("service_tier", "prompt_cache_options", "verbosity", "prediction", "keep_alive", "metadata"):
        _, request_context = read("ChatBody", **{name: value})
        assert name in request_context.ignored


def test_a_field_and_its_other_name_must_agree() -> None:
    body, _ = read("ChatBody", repeat_penalty=1.5, repetition_penalty=1.5)
    assert body.repetition_penalty == 1.5
    with pytest.raises(InvalidRequest, match="differ") as caught:
        read("ChatBody", repeat_penalty=1.5, repetition_penalty=1.2)
    assert caught.value.param == "repeat_penalty"


def test_another_name_has_the_range_of_the_field() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read("ChatBody", repeat_penalty=100)
    assert caught.value.param == "repeat_penalty"


def test_an_ordinary_request_names_nothing() -> None:
    for name in BODIES:
        _, request_context = read(name)
        assert request_context.ignored == {} == request_context.translated


def test_the_documentation_shows_the_table() -> None:
    text = PAGE.read_text()
    assert update_page(text) == text, "run: python -m enginebay.server.api.fields.field_listing --write docs/server.md"
    assert text.count("| `verbosity` | chat | ignored |") == 1


def test_the_configuration_can_refuse_unknown_fields() -> None:
    request_context = make_request_context()
    request_context.exchange.body = json.dumps({**BODIES["ChatBody"][1], "some_new_field": 1}).encode()
    strict: Any = SimpleNamespace(config=ServerConfig(unknown_fields="refuse"))
    with pytest.raises(InvalidRequest) as caught:
        read_body(schemas.ChatBody, strict, request_context)
    assert caught.value.param == "some_new_field"

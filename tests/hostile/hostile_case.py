"""One hostile request as data: what is sent, what may come back, and what an answer must satisfy."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema

CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
TEXT_MODEL, VECTORS_MODEL, ADAPTER = "text", "vectors", "tiny"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Say hello."}]
MAX_TOKENS = 8  # a slow engine needs a tenth of a second for each
HUGE = 10**400

# The fields that make a request of each endpoint complete. A case adds its own.
BASES: dict[str, dict[str, Any]] = {
    CHAT: {"model": TEXT_MODEL, "messages": HELLO, "max_tokens": MAX_TOKENS, "temperature": 0},
    COMPLETIONS: {"model": TEXT_MODEL, "prompt": "Once", "max_tokens": MAX_TOKENS, "temperature": 0},
    RESPONSES: {"model": TEXT_MODEL, "input": "Say hello.", "max_output_tokens": MAX_TOKENS, "temperature": 0},
    EMBEDDINGS: {"model": VECTORS_MODEL, "input": "hello"},
    TOKENIZE: {"model": TEXT_MODEL},
    DETOKENIZE: {"model": TEXT_MODEL},
}

# refused: 4xx. answered: 200. supported: 200, but for an engine that has no such parameter. any: as the engine can.
Expected = Literal["refused", "answered", "supported", "any"]


@dataclass(frozen=True)
class Choice:
    """One choice of an answer."""

    text: str
    finish_reason: str
    tool_calls: Sequence[tuple[str, str]] = ()  # names and arguments


TextCheck = Callable[[Choice], None]


@dataclass(frozen=True)
class HostileCase:
    name: str
    path: str
    body: bytes
    expected: Expected = "any"
    check: TextCheck | None = None  # each choice of an answer must pass
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The request as a line that replays it, shortened."""
        text = self.body.decode(errors="replace")
        return (
            f"POST {self.path} {text if len(text) <= 600 else f'{text[:400]} … {text[-200:]}'} ({len(self.body)} bytes)"
        )


def make_case(
    name: str,
    fields: dict[str, Any],
    expected: Expected = "any",
    *,
    path: str = CHAT,
    check: TextCheck | None = None,
) -> HostileCase:
    """A request of this endpoint with these fields over the usual ones."""
    return HostileCase(name, path, json.dumps({**BASES[path], **fields}).encode(), expected, check)


def make_literal_case(
    name: str, field_name: str, literal: str | bytes, expected: Expected = "refused", *, path: str = CHAT
) -> HostileCase:
    """A request in which these bytes stand where the field's value would be: for what `json` cannot write."""
    text = json.dumps({**BASES[path], field_name: "HERE"}).encode()
    literal = literal if isinstance(literal, bytes) else literal.encode()
    return HostileCase(name, path, text.replace(b'"HERE"', literal), expected)


# Checks of an answer


def check_json(schema: Any) -> TextCheck:
    """A complete answer is an instance of the schema. One that was cut off at least begins like JSON."""

    def check(choice: Choice) -> None:
        text = choice.text.strip()
        if choice.finish_reason == "length":
            assert not text or text[0] in '{["-0123456789tfn', f"not JSON: {text[:200]!r}"
            return
        jsonschema.validate(json.loads(text), schema)

    return check


def check_regex(pattern: str, alphabet: str = "") -> TextCheck:
    """A complete answer matches the whole pattern. One that was cut off has no character but those of `alphabet`."""

    def check(choice: Choice) -> None:
        if choice.finish_reason == "length":
            assert not alphabet or set(choice.text) <= set(alphabet), f"outside {alphabet!r}: {choice.text[:200]!r}"
            return
        assert re.fullmatch(pattern, choice.text, re.DOTALL), f"does not match {pattern[:80]!r}: {choice.text[:200]!r}"

    return check


def check_choice(choices: Sequence[str]) -> TextCheck:
    """An answer is one of these, or the beginning of one if it was cut off."""

    def check(choice: Choice) -> None:
        if choice.finish_reason == "length":
            assert any(text.startswith(choice.text) for text in choices), f"begins none: {choice.text[:200]!r}"
        else:
            assert choice.text in choices, f"is none: {choice.text[:200]!r}"

    return check


def check_call(*names: str) -> TextCheck:
    """A complete answer calls one of these tools, with JSON as arguments."""

    def check(choice: Choice) -> None:
        if choice.finish_reason == "length":
            return
        assert choice.tool_calls, f"no call: {choice.text[:200]!r}"
        for name, arguments in choice.tool_calls:
            assert name in names, name
            assert isinstance(json.loads(arguments), dict), arguments

    return check


# Answers


def parse_choices(path: str, body: bytes) -> list[Choice]:
    """The choices of a whole answer; none for an endpoint that generates no text."""
    found = json.loads(body)
    if path == CHAT:
        return [_parse_chat_choice(choice) for choice in found["choices"]]
    if path == COMPLETIONS:
        return [Choice(choice["text"], choice["finish_reason"]) for choice in found["choices"]]
    return [_parse_response(found)] if path == RESPONSES else []


def _parse_chat_choice(choice: dict[str, Any]) -> Choice:
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return Choice(message.get("content") or "", choice["finish_reason"], calls)


def _parse_response(found: dict[str, Any]) -> Choice:
    parts = [part for item in found["output"] if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], item["arguments"]) for item in found["output"] if item["type"] == "function_call"]
    finish_reason = "stop" if found["status"] == "completed" else "length"
    return Choice("".join(part.get("text", "") for part in parts), finish_reason, calls)


def find_stream_error(body: bytes) -> dict[str, Any] | None:
    """The error in a stream of events, if there is one."""
    for line in body.splitlines():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            error = event.get("error") or (event.get("response") or {}).get("error")
            if error:
                return dict(error)
    return None

"""Encodes the responses of /api/chat and /api/generate: one line of JSON per token, or one object."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from enginebay.contract import TokenLogprobs
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.errors import EnginebayError
from enginebay.server.api.ollama import schemas
from enginebay.server.api.openai.encoders.logprobs import TokenBytes, encode_chat_logprobs
from enginebay.server.encoding.choice_state import ChoiceState, ResponseTiming, ToolCallState
from enginebay.server.encoding.choices_json_writer import ChoicesJsonWriter
from enginebay.server.encoding.choices_sse_writer import ChoicesSseWriter
from enginebay.server.encoding.error_responses import encode_error, get_error_row
from enginebay.server.http.exchange import Exchange
from enginebay.server.sessions.model_session import ModelSession
from enginebay.text.output_events import ReasoningText, ToolCallArguments, ToolCallStart

NDJSON = "application/x-ndjson"
_encode = msgspec.json.Encoder().encode


class OllamaErrorForm:
    """Ollama's form: one object with a text, in a stream on a line of its own. Implements `ErrorForm`."""

    def get_status(self, error: EnginebayError) -> int:
        return get_error_row(error).status

    def encode_body(self, error: EnginebayError) -> bytes:
        return _encode(schemas.OllamaErrorObject(encode_error(error).message))

    def encode_refusal(self, error: EnginebayError, status: int) -> bytes:
        return self.encode_body(error)

    def encode_event(self, error: EnginebayError) -> bytes:
        return self.encode_body(error) + b"\n"


OLLAMA_ERRORS = OllamaErrorForm()


def format_time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def to_nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


@dataclass(slots=True, kw_only=True)
class OllamaEncoder:
    """Encodes one response. Implements `ChoiceEventEncoder`: a line is an event."""

    endpoint: Literal["chat", "generate"]
    model: str
    created_at: str
    received_at: float  # by the performance counter
    token_bytes: TokenBytes
    with_logprobs: bool = False
    finish_reason: str = "stop"
    _choice: ChoiceState | None = field(default=None, init=False)
    _encoded_calls: int = field(default=0, init=False)

    # One object

    def encode_body(self, choice: ChoiceState, usage: Usage, timing: ResponseTiming) -> bytes:
        calls, cut = _build_calls(choice.calls, 0)
        text, thinking = "".join((*choice.texts, *cut)), "".join(choice.reasoning_texts)
        fields = {**self._build_ending(usage, timing), **self._build_logprobs(choice.logprobs)}
        return _encode(self._build_object(text, thinking, calls, **fields))

    def encode_empty(self, done_reason: Literal["load", "unload"]) -> bytes:
        """Encode the response to a request that only loads or unloads the model."""
        duration = to_nanoseconds(time.perf_counter() - self.received_at)
        fields: dict[str, Any] = {
            "done": True,
            "done_reason": done_reason,
            "total_duration": duration,
            "load_duration": duration,
        }
        return _encode(self._build_object("", **fields))

    def _build_object(
        self, text: str, thinking: str = "", calls: Sequence[schemas.OllamaToolCallObject] = (), **fields: Any
    ) -> schemas.OllamaOutputObject:
        output: dict[str, Any] = {"thinking": thinking or UNSET, "tool_calls": list(calls) or UNSET}
        created_at = format_time(time.time()) if fields.get("done") else self.created_at
        shared = {"model": self.model, "created_at": created_at, "done": False, **fields}
        if self.endpoint == "chat":
            return schemas.OllamaChatObject(message=schemas.OllamaMessageObject(content=text, **output), **shared)
        return schemas.OllamaGenerateObject(response=text, **output, **shared)

    def _build_ending(self, usage: Usage, timing: ResponseTiming) -> dict[str, Any]:
        return {
            "done": True,
            "done_reason": "length" if self.finish_reason == "length" else "stop",
            "total_duration": to_nanoseconds(time.perf_counter() - self.received_at),
            "load_duration": to_nanoseconds(timing.queue_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": to_nanoseconds(timing.ttft_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": to_nanoseconds(timing.total_s - timing.ttft_s),
        }

    def _build_logprobs(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        if not self.with_logprobs or not logprobs:
            return {}
        return {"logprobs": encode_chat_logprobs(logprobs, self.token_bytes).content}

    # Lines

    def encode_opening(self) -> bytes:
        return b""

    def build_text_envelope(self, index: int) -> tuple[bytes, bytes]:
        before = b'{"model":%b,"created_at":%b,' % (_encode(self.model), _encode(self.created_at))
        if self.endpoint == "chat":
            return before + b'"message":{"role":"assistant","content":', b'},"done":false}\n'
        return before + b'"response":', b',"done":false}\n'

    def encode_text(self, index: int, text: str, logprobs: Sequence[TokenLogprobs]) -> bytes:
        return self._encode_line(text, **self._build_logprobs(logprobs))

    def _encode_line(self, text: str = "", thinking: str = "", calls: Any = (), **fields: Any) -> bytes:
        return _encode(self._build_object(text, thinking, calls, **fields)) + b"\n"

    def encode_tool_event(self, choice: ChoiceState, event: Any, next_call_id: Callable[[], str]) -> bytes:
        """Encode one event. A call is encoded once it is complete, when something else begins."""
        self._choice = choice
        if isinstance(event, ToolCallArguments):
            choice.append_event(event, "")
            return b""
        calls = self._encode_calls()
        if isinstance(event, ToolCallStart):
            choice.append_event(event, next_call_id())
            return calls
        if isinstance(event, ReasoningText):
            return calls + self._encode_line(thinking=event.text)
        return calls + self._encode_line(event.text)

    def _encode_calls(self) -> bytes:
        """Encode the calls that no line had yet."""
        calls, cut = _build_calls(self._choice.calls if self._choice is not None else (), self._encoded_calls)
        self._encoded_calls += len(calls) + len(cut)
        return (self._encode_line(calls=calls) if calls else b"") + b"".join(map(self._encode_line, cut))

    def encode_finish(self, index: int, reason: str) -> bytes:
        self.finish_reason = reason
        return self._encode_calls()

    def encode_closing(
        self, usage: Usage, timing: ResponseTiming, energy: Energy | None = None, reasoning_tokens: int | None = None
    ) -> bytes:
        return self._encode_line(**self._build_ending(usage, timing))


def _build_calls(calls: Sequence[ToolCallState], start: int) -> tuple[list[schemas.OllamaToolCallObject], list[str]]:
    """Return the calls from `start` on, and as text those whose arguments are no object: the output was cut off."""
    built, cut = [], []
    for index, call in enumerate(calls[start:], start):
        arguments: Any = _parse_arguments(call.arguments)
        if arguments is None:
            cut.append(f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}')
        else:
            built.append(
                schemas.OllamaToolCallObject(call.id, schemas.OllamaFunctionCallObject(index, call.name, arguments))
            )
    return built, cut


def _parse_arguments(text: str) -> msgspec.Raw | None:
    """Return the JSON of an object on one line, or None."""
    try:
        value = json.loads(text or "{}", parse_constant=_reject_constant)
        return msgspec.Raw(json.dumps(value, ensure_ascii=False).encode()) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class OllamaJsonWriter(ChoicesJsonWriter):
    """Responds with one object."""

    def __init__(self, exchange: Exchange, session: ModelSession, choice: ChoiceState, encoder: OllamaEncoder) -> None:
        super().__init__(exchange, session, [choice], lambda *_: b"")
        self._choice = choice
        self._encoder = encoder

    def write_completed(self) -> None:
        choice = self._choice
        self._encoder.finish_reason = choice.finish_reason or "stop"
        if choice.parser is not None:
            self._finish_parsing(choice, choice.parser)
        self.exchange.respond(200, self._encoder.encode_body(choice, self.usage, self.timing))


class OllamaStreamWriter(ChoicesSseWriter):
    """Writes lines of JSON, one per token."""

    content_type = NDJSON

    def _encode_events(self, choice: ChoiceState, events: Sequence[object], logprobs: Sequence[TokenLogprobs]) -> None:
        super()._encode_events(choice, events, logprobs)
        self._events_ready = [line for line in self._events_ready if line]  # a call's line comes at its end

    def _encode_failure(self, error: EnginebayError) -> bytes:
        return OLLAMA_ERRORS.encode_event(error)

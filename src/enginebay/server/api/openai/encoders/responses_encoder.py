"""Encodes the response object of /v1/responses and its events. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from enginebay.contract import TokenLogprobs
from enginebay.contract.engine_messages import Energy, Usage
from enginebay.errors import EnginebayError
from enginebay.server.api.openai import response_objects as objects
from enginebay.server.api.openai.encoders.responses_output import (
    FunctionCallItem,
    OutputItem,
    ReasoningItem,
    ResponseOutput,
    encode_item,
    encode_reasoning_part,
    encode_text_part,
)
from enginebay.server.api.openai.responses_api.tool_names import read_custom_input
from enginebay.server.encoding.choice_state import UsageExtensionObject, encode_energy
from enginebay.server.encoding.error_responses import encode_error, get_error_row
from enginebay.text.output_events import AnswerText, OutputEvent, ReasoningText, ToolCallArguments

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ResponseEncoder:
    """Encodes the response object. `echoed_fields` repeat the request's fields."""

    id: str
    created: int
    model: str
    echoed_fields: Mapping[str, Any]
    include_energy: bool = False  # in the usage

    def encode_in_progress(self) -> objects.ResponseObject:
        return self._encode_response("in_progress", [])

    def encode_finished(
        self,
        output: ResponseOutput,
        usage: Usage,
        reason: str | None,
        energy: Energy | None = None,
        reasoning_tokens: int = 0,
    ) -> objects.ResponseObject:
        """Encode a finished response. `reason`: the engine's finish reason."""
        usage_object = encode_responses_usage(usage, reasoning_tokens)
        if self.include_energy:
            usage_object.enginebay = UsageExtensionObject(**encode_energy(energy))
        truncated = reason == "length"
        status: objects.ItemStatus = "incomplete" if truncated else "completed"
        return self._encode_response(
            status, output.encode_items(status),
            usage=usage_object,
            incomplete_details=objects.IncompleteDetailsObject("max_output_tokens") if truncated else None,
            completed_at=None if truncated else int(time.time()),
        )  # fmt: skip

    def encode_failed(self, output: ResponseOutput, error: EnginebayError) -> objects.ResponseObject:
        code = "invalid_prompt" if get_error_row(error).status < 500 else "server_error"
        details = objects.ResponseErrorObject(code, encode_error(error).message)
        return self._encode_response("failed", output.encode_items("incomplete") if output.items else [], error=details)

    def _encode_response(
        self, status: objects.ResponseStatus, output: list[objects.ItemObject], **more: Any
    ) -> objects.ResponseObject:
        return objects.ResponseObject(
            id=self.id, created_at=self.created, status=status, model=self.model, output=output, **self.echoed_fields, **more
        )  # fmt: skip


def encode_responses_usage(usage: Usage, reasoning_tokens: int = 0) -> objects.ResponseUsageObject:
    return objects.ResponseUsageObject(
        usage.prompt_tokens,
        objects.InputTokensDetailsObject(usage.cached_tokens),
        usage.completion_tokens,
        objects.OutputTokensDetailsObject(min(reasoning_tokens, usage.completion_tokens)),
        usage.prompt_tokens + usage.completion_tokens,
    )


class ResponseEventEncoder:
    """Encodes the server-sent events of one response, numbered in order."""

    def __init__(self, encoder: ResponseEncoder, output: ResponseOutput) -> None:
        self._encoder = encoder
        self._output = output
        self._next_sequence_number = 2  # 0 and 1 belong to the opening, which is encoded after the first token
        self._open_item: OutputItem | None = None
        self._text_delta_template = b""  # for % with a sequence number and a text

    def encode_opening(self) -> bytes:
        response = self._encoder.encode_in_progress()
        return b"".join(
            _encode_sse_event(f"response.{status}", number, {"response": response})
            for number, status in enumerate(("created", "in_progress"))
        )

    def encode_texts(self, texts: Sequence[str]) -> bytes:
        """Encode one event per text."""
        message = self._output.current_message()
        before = self._switch_item(message)
        message.texts += texts
        first = self._next_sequence_number
        self._next_sequence_number += len(texts)
        template = self._text_delta_template
        return before + b"".join([template % (first + offset, _encode(text)) for offset, text in enumerate(texts)])

    def encode_event(self, event: OutputEvent, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        item = self._output.append_event(event, logprobs)
        before = self._switch_item(item)
        if isinstance(event, ToolCallArguments):
            if isinstance(item, FunctionCallItem) and item.is_custom:
                return before  # its text is known once its arguments are whole
            return before + self._encode_item_event("response.function_call_arguments.delta", {"delta": event.fragment})
        if isinstance(event, AnswerText):
            encoded_logprobs = self._output.encode_logprobs(logprobs)
            return before + self._encode_part_event(
                "response.output_text.delta", {"delta": event.text, "logprobs": encoded_logprobs}
            )
        if isinstance(event, ReasoningText):
            return before + self._encode_part_event("response.reasoning_text.delta", {"delta": event.text})
        return before

    def encode_closing(
        self, usage: Usage, reason: str | None, energy: Energy | None = None, reasoning_tokens: int = 0
    ) -> bytes:
        response = self.build_finished(usage, reason, energy, reasoning_tokens)
        return self.encode_end(response)

    def build_finished(
        self, usage: Usage, reason: str | None, energy: Energy | None = None, reasoning_tokens: int = 0
    ) -> objects.ResponseObject:
        return self._encoder.encode_finished(self._output, usage, reason, energy, reasoning_tokens)

    def encode_end(self, response: objects.ResponseObject) -> bytes:
        """Encode the last events of a finished response."""
        before = b"" if self._open_item is not None else self._switch_item(self._output.items[-1])
        closing = self._close_item(cast("objects.ItemStatus", response.status))
        return before + closing + self._encode_next(f"response.{response.status}", {"response": response})

    def encode_failure(self, error: EnginebayError) -> bytes:
        return self._encode_next("response.failed", {"response": self._encoder.encode_failed(self._output, error)})

    def _switch_item(self, item: OutputItem) -> bytes:
        """Close the open item and open this one, unless it is already open."""
        if item is self._open_item:
            return b""
        closing = self._close_item("completed")
        self._open_item = item
        if isinstance(item, FunctionCallItem):
            opened = replace(encode_item(item, "in_progress"), **{"input" if item.is_custom else "arguments": ""})
            return closing + self._encode_next(
                "response.output_item.added", {"output_index": item.index, "item": opened}
            )
        opened = replace(encode_item(item, "in_progress"), content=[])
        if isinstance(item, ReasoningItem) and item.is_encrypted:
            opened = replace(opened, encrypted_content=None)
        added = self._encode_next("response.output_item.added", {"output_index": item.index, "item": opened})
        if isinstance(item, ReasoningItem):
            thought = replace(encode_reasoning_part(item), text="")
            return closing + added + self._encode_part_event("response.content_part.added", {"part": thought})
        part = replace(encode_text_part(item), text="", logprobs=[])
        self._text_delta_template = _build_text_delta_template(item.id, item.index)
        return closing + added + self._encode_part_event("response.content_part.added", {"part": part})

    def _close_item(self, status: objects.ItemStatus) -> bytes:
        item = self._open_item
        if item is None:
            return b""
        if isinstance(item, FunctionCallItem) and item.is_custom:
            text_input = read_custom_input(item.arguments)
            closing = self._encode_item_event("response.custom_tool_call_input.delta", {"delta": text_input})
            closing += self._encode_item_event("response.custom_tool_call_input.done", {"input": text_input})
        elif isinstance(item, FunctionCallItem):
            arguments = {"name": item.name, "arguments": item.arguments}
            closing = self._encode_item_event("response.function_call_arguments.done", arguments)
        elif isinstance(item, ReasoningItem):
            thought = encode_reasoning_part(item)
            closing = self._encode_part_event("response.reasoning_text.done", {"text": thought.text})
            closing += self._encode_part_event("response.content_part.done", {"part": thought})
        else:
            part = encode_text_part(item)
            text = {"text": part.text, "logprobs": part.logprobs}
            closing = self._encode_part_event("response.output_text.done", text)
            closing += self._encode_part_event("response.content_part.done", {"part": part})
        done = {"output_index": item.index, "item": encode_item(item, status)}
        return closing + self._encode_next("response.output_item.done", done)

    def _encode_part_event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        return self._encode_item_event(kind, {"content_index": 0, **fields})

    def _encode_item_event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        assert self._open_item is not None
        return self._encode_next(kind, {"item_id": self._open_item.id, "output_index": self._open_item.index, **fields})

    def _encode_next(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        number = self._next_sequence_number
        self._next_sequence_number += 1
        return _encode_sse_event(kind, number, fields)


def _encode_sse_event(kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
    data = _encode({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _build_text_delta_template(item_id: str, index: int) -> bytes:
    """Encode a text delta with placeholders for its sequence number and its text."""
    kind = b"response.output_text.delta"
    return (
        b'event: %b\ndata: {"type":"%b","sequence_number":%%d,"item_id":%b,"output_index":%d,"content_index":0,'
        b'"delta":%%b,"logprobs":[]}\n\n' % (kind, kind, _encode(item_id), index)
    )

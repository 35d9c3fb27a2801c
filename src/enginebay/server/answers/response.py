"""The forms of /v1/responses: the response object and its events. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from enginebay.contract import TokenLogprobs
from enginebay.contract.messages import Energy, Usage
from enginebay.errors import EnginebayError
from enginebay.server.answers.choice import energy_object
from enginebay.server.answers.output import FunctionCall, Item, Output, item_object, part_object
from enginebay.server.failures import error_object, shown
from enginebay.text.tools import CallArguments, Text, ToolEvent

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class ResponseForm:
    """Writes the response object: `echoed` are the fields that say what was asked for."""

    id: str
    created: int
    model: str
    echoed: Mapping[str, Any]
    include_energy: bool = False  # in the usage

    def unfinished(self) -> dict[str, Any]:
        return self._object("in_progress", [])

    def finished(
        self, output: Output, usage: Usage, reason: str | None, energy: Energy | None = None
    ) -> dict[str, Any]:
        """`reason` is the engine's reason to finish."""
        told = usage_object(usage)
        if self.include_energy:
            told["enginebay"] = energy_object(energy)
        cut = reason == "length"
        status = "incomplete" if cut else "completed"
        return self._object(
            status, output.objects(status),
            usage=told,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            completed_at=None if cut else int(time.time()),
        )  # fmt: skip

    def failed(self, output: Output, error: EnginebayError) -> dict[str, Any]:
        code = "invalid_prompt" if shown(error).status < 500 else "server_error"
        about = {"code": code, "message": error_object(error)["message"]}
        return self._object("failed", output.objects("incomplete") if output.items else [], error=about)

    def _object(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "background": False,
            "completed_at": None, "error": None, "incomplete_details": None, "model": self.model, "output": output,
            "previous_response_id": None, "reasoning": {"effort": None, "summary": None}, "store": False,
            "truncation": "disabled", "usage": None, **self.echoed, **more,
        }  # fmt: skip


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class ResponseEvents:
    """The server-sent events of one response, numbered in the order in which they are made."""

    def __init__(self, form: ResponseForm, output: Output) -> None:
        self._form = form
        self._output = output
        self._next = 2  # 0 and 1 are the opening's, which is written first and made when the first token is there
        self._open: Item | None = None
        self._token = b""  # one text delta, with places for its number and its text

    def opening(self) -> bytes:
        response = self._form.unfinished()
        return b"".join(
            _event(f"response.{status}", number, {"response": response})
            for number, status in enumerate(("created", "in_progress"))
        )

    def texts(self, texts: Sequence[str]) -> bytes:
        """One event for each piece of plain text."""
        message = self._output.message()
        before = self._moved_to(message)
        message.texts += texts
        first = self._next
        self._next += len(texts)
        token = self._token
        return before + b"".join([token % (first + place, _encode(text)) for place, text in enumerate(texts)])

    def event(self, event: ToolEvent, logprobs: Sequence[TokenLogprobs] = ()) -> bytes:
        item = self._output.take(event, logprobs)
        before = self._moved_to(item)
        if isinstance(event, CallArguments):
            return before + self._of_item("response.function_call_arguments.delta", {"delta": event.fragment})
        if isinstance(event, Text):
            shown_logprobs = self._output.logprobs(logprobs)
            return before + self._of_part(
                "response.output_text.delta", {"delta": event.text, "logprobs": shown_logprobs}
            )
        return before

    def closing(self, usage: Usage, reason: str | None, energy: Energy | None = None) -> bytes:
        before = b"" if self._output.items else self._moved_to(self._output.message())
        response = self._form.finished(self._output, usage, reason, energy)
        ended = self._closed(response["status"])
        return before + ended + self._write(f"response.{response['status']}", {"response": response})

    def failure(self, error: EnginebayError) -> bytes:
        return self._write("response.failed", {"response": self._form.failed(self._output, error)})

    def _moved_to(self, item: Item) -> bytes:
        """What ends the item before and begins this one, when it is a new one."""
        if item is self._open:
            return b""
        ended = self._closed("completed")
        self._open = item
        if isinstance(item, FunctionCall):
            begun = {**item_object(item, "in_progress"), "arguments": ""}
            return ended + self._write("response.output_item.added", {"output_index": item.place, "item": begun})
        begun = {**item_object(item, "in_progress"), "content": []}
        added = self._write("response.output_item.added", {"output_index": item.place, "item": begun})
        part = {**part_object(item), "text": "", "logprobs": []}
        self._token = _text_delta(item.id, item.place)
        return ended + added + self._of_part("response.content_part.added", {"part": part})

    def _closed(self, status: str) -> bytes:
        item = self._open
        if item is None:
            return b""
        if isinstance(item, FunctionCall):
            arguments = {"name": item.name, "arguments": "".join(item.fragments)}
            ended = self._of_item("response.function_call_arguments.done", arguments)
        else:
            part = part_object(item)
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            ended = self._of_part("response.output_text.done", text)
            ended += self._of_part("response.content_part.done", {"part": part})
        whole = {"output_index": item.place, "item": item_object(item, status)}
        return ended + self._write("response.output_item.done", whole)

    def _of_part(self, kind: str, more: Mapping[str, Any]) -> bytes:
        return self._of_item(kind, {"content_index": 0, **more})

    def _of_item(self, kind: str, more: Mapping[str, Any]) -> bytes:
        assert self._open is not None
        return self._write(kind, {"item_id": self._open.id, "output_index": self._open.place, **more})

    def _write(self, kind: str, more: Mapping[str, Any]) -> bytes:
        number = self._next
        self._next += 1
        return _event(kind, number, more)


def _event(kind: str, number: int, more: Mapping[str, Any]) -> bytes:
    data = _encode({"type": kind, "sequence_number": number, **more})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _text_delta(item_id: str, place: int) -> bytes:
    """All of a text delta but its number and its text, which are put in with %."""
    kind = b"response.output_text.delta"
    return (
        b'event: %b\ndata: {"type":"%b","sequence_number":%%d,"item_id":%b,"output_index":%d,"content_index":0,'
        b'"delta":%%b,"logprobs":[]}\n\n' % (kind, kind, _encode(item_id), place)
    )

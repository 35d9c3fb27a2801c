"""Decode the chunks of a streamed response and pass them to the sink."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.contract import FinishReason, Sink, Usage
from enginebay.engines.openai.errors import error_from_event, replace_lone_surrogates
from enginebay.engines.openai.http_response import MalformedResponse
from enginebay.engines.openai.remote_server import RemoteServer
from enginebay.engines.openai.tool_call_writer import ToolCallWriter
from enginebay.errors import EngineFailed

_DONE = b"[DONE]"
_LENGTH_REASONS = ("length", "max_tokens", "model_length")
_STOP_REASONS = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call")
_ERROR_REASONS = ("error", "abort")
_MAX_COUNT = 2**32 - 1  # fits the worker protocol's counters


class _ChoiceState:
    """State of one choice."""

    __slots__ = ("deferred_text", "finish", "in_reasoning", "seen", "tool_calls")

    def __init__(self) -> None:
        self.seen = False
        self.in_reasoning = False
        self.tool_calls: ToolCallWriter | None = None
        self.deferred_text: list[str] = []  # content that came during tool calls; sent after them
        self.finish: tuple[FinishReason, str | int | None] | None = None


class StreamDecoder:
    """Decodes all choices of one request. Holds the last finish until the usage arrives, which follows it.

    Wraps reasoning that the server sends as a separate field in <think> tags, as the models write it.
    """

    def __init__(self, server: RemoteServer, number: int, choices: int, sink: Sink) -> None:
        self.done = False  # the server sent [DONE]
        self.delivered = False  # the sink has everything
        self.usage: Usage | None = None
        self._server = server
        self._number = number
        self._sink = sink
        self._choices = [_ChoiceState() for _ in range(choices)]
        self._open_choices = choices
        self._pending_finish: int | None = None  # the choice whose finish is held

    @property
    def finished(self) -> bool:
        """Whether every choice has finished. The usage may still be missing."""
        return self._open_choices == 0

    def feed(self, payload: bytes) -> bool:
        """Decode one event. Returns True if it had output. Raises `MalformedResponse`, or the event's own error."""
        if payload.strip() == _DONE:
            self.done = True
            return False
        chunk = _parse_chunk(payload)
        if chunk.get("error"):
            raise error_from_event(self._server, chunk)
        moved = False
        for delta_choice in chunk.get("choices") or ():
            moved |= self._feed_choice(delta_choice)
        usage = _parse_usage(chunk.get("usage"))
        if usage is not None:
            self.usage = usage
            if self.finished:
                self._deliver_last_finish()
        return moved

    def end(self) -> None:
        """Handle the end of the stream. Raises if a choice is incomplete."""
        for index, choice in enumerate(self._choices):
            if choice.finish is None and choice.seen and self.done:
                self._finish_choice(index, choice, "stop", None)
        if not self.finished:
            raise self._make_truncation_error()
        self._deliver_last_finish()

    def _make_truncation_error(self) -> Exception:
        requested, finished = len(self._choices), sum(choice.finish is not None for choice in self._choices)
        if finished and not any(choice.seen and choice.finish is None for choice in self._choices):
            return EngineFailed(
                f"{self._server.authority} returned {finished} of {requested} choices", "it may not support n"
            )
        return MalformedResponse("a truncated response")

    def _deliver_last_finish(self) -> None:
        if self.delivered or self._pending_finish is None:
            return
        self.delivered = True
        if self.usage is not None:
            used = self.usage
            self._sink.usage(self._number, used.prompt_tokens, used.completion_tokens, used.cached_tokens)
        self._send_finish(self._pending_finish)

    def _feed_choice(self, delta_choice: Any) -> bool:
        if not isinstance(delta_choice, Mapping):
            raise MalformedResponse("a choice that is not an object")
        index = delta_choice.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < len(self._choices):
            raise MalformedResponse("a choice that was not requested")
        choice = self._choices[index]
        if choice.finish is not None:
            return False  # some servers repeat the last chunk with the usage
        choice.seen = True
        text = self._extract_text(choice, delta_choice)
        if text:
            self._sink.token(self._number, replace_lone_surrogates(text), (), index)
        reason = delta_choice.get("finish_reason")
        if reason:
            self._finish_choice(index, choice, str(reason), delta_choice.get("stop_reason"))
        return bool(text or reason or choice.tool_calls)

    def _extract_text(self, choice: _ChoiceState, delta_choice: Mapping[str, Any]) -> str:
        delta = delta_choice.get("delta")
        if not isinstance(delta, Mapping):
            return _parse_string(delta_choice.get("text"))
        reasoning = _parse_string(delta.get("reasoning_content")) or _parse_string(delta.get("reasoning"))
        content = _parse_string(delta.get("content")) + _parse_string(delta.get("refusal"))
        calls = delta.get("tool_calls")
        if choice.tool_calls is not None:
            choice.deferred_text.append(_open_reasoning(choice, reasoning) + _close_reasoning(choice, content))
            return choice.tool_calls.feed(calls) if calls else ""
        if calls:
            choice.tool_calls = ToolCallWriter()
            content += choice.tool_calls.feed(calls)
        return _open_reasoning(choice, reasoning) + _close_reasoning(choice, content, last=bool(calls))

    def _finish_choice(self, index: int, choice: _ChoiceState, reason: str, stop_reason: Any) -> None:
        if reason in _ERROR_REASONS:
            raise EngineFailed(f"{self._server.authority} aborted this request")
        calls = choice.tool_calls.end() if choice.tool_calls is not None else ""
        rest = calls + "".join(choice.deferred_text) + _close_reasoning(choice, "", last=True)
        if rest:
            self._sink.token(self._number, replace_lone_surrogates(rest), (), index)
        choice.finish = _parse_finish_reason(reason, stop_reason)
        self._open_choices -= 1
        if self._open_choices:
            self._send_finish(index)
        else:
            self._pending_finish = index

    def _send_finish(self, index: int) -> None:
        ending = self._choices[index].finish
        assert ending is not None
        self._sink.finish(self._number, ending[0], index, ending[1])


def _parse_chunk(payload: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except (ValueError, RecursionError):
        raise MalformedResponse("an event that is not JSON") from None
    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices") or [], list):
        raise MalformedResponse("an event that is not a completion chunk")
    return chunk


def _parse_string(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise MalformedResponse("content that is not a string")


def _open_reasoning(choice: _ChoiceState, text: str) -> str:
    if not text or choice.in_reasoning:
        return text
    choice.in_reasoning = True
    return f"<think>{text}"


def _close_reasoning(choice: _ChoiceState, text: str, last: bool = False) -> str:
    if choice.in_reasoning and (text or last):
        choice.in_reasoning = False
        return f"</think>{text}"
    return text


def _parse_finish_reason(reason: str, stop_reason: Any) -> tuple[FinishReason, str | int | None]:
    if reason in _LENGTH_REASONS:
        return FinishReason.LENGTH, None
    if reason not in _STOP_REASONS:
        return FinishReason.STOP, replace_lone_surrogates(reason)  # content_filter, or an unknown reason
    if isinstance(stop_reason, str):
        return FinishReason.STOP, replace_lone_surrogates(stop_reason)
    return FinishReason.STOP, _parse_count(stop_reason)


def _parse_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(
        _parse_count(usage.get("prompt_tokens")) or 0,
        _parse_count(usage.get("completion_tokens")) or 0,
        _parse_count(cached) or 0,
    )


def _parse_count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
    return int(value) if whole else None

"""The chunks of a streamed answer, turned into what a sink is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enginebay.contract import FinishReason, Sink, Usage
from enginebay.engines.openai.failures import of_event, plain
from enginebay.engines.openai.http import Garbled
from enginebay.engines.openai.remote import Remote
from enginebay.engines.openai.tool_text import ToolText
from enginebay.errors import EngineFailed

_DONE = b"[DONE]"
_LENGTHS = ("length", "max_tokens", "model_length")
_PLAIN_STOPS = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call")
_FAILURES = ("error", "abort")
_MOST = 2**32 - 1  # of a count that a message can carry


class _Choice:
    """One answer to the request."""

    __slots__ = ("after", "calls", "ending", "seen", "thinking")

    def __init__(self) -> None:
        self.seen = False
        self.thinking = False
        self.calls: ToolText | None = None
        self.after: list[str] = []  # what was said during calls; it cannot stand inside one
        self.ending: tuple[FinishReason, str | int | None] | None = None


class Answer:
    """All choices of one request. The last finish waits for the count of tokens, which comes behind it.

    Thoughts, which some servers send apart, are text in <think> tags, as the models themselves write them.
    """

    def __init__(self, remote: Remote, number: int, choices: int, sink: Sink) -> None:
        self.done = False  # the server said so
        self.delivered = False  # the sink has all of it
        self.usage: Usage | None = None
        self._remote = remote
        self._number = number
        self._sink = sink
        self._choices = [_Choice() for _ in range(choices)]
        self._open = choices
        self._held: int | None = None  # the choice whose finish waits

    @property
    def finished(self) -> bool:
        """Every choice has ended; only the count of tokens may be missing."""
        return self._open == 0

    def take(self, payload: bytes) -> bool:
        """One event. True when it brought something of the answer. Raises `Garbled`, or the error in it."""
        if payload.strip() == _DONE:
            self.done = True
            return False
        chunk = _parsed(payload)
        if chunk.get("error"):
            raise of_event(self._remote, chunk)
        moved = False
        for one in chunk.get("choices") or ():
            moved |= self._take_choice(one)
        usage = _usage(chunk.get("usage"))
        if usage is not None:
            self.usage = usage
            if self.finished:
                self._deliver()
        return moved

    def end(self) -> None:
        """Nothing more comes. Raises when that is too early."""
        for place, choice in enumerate(self._choices):
            if choice.ending is None and choice.seen and self.done:
                self._finish(place, choice, "stop", None)
        if not self.finished:
            raise self._too_early()
        self._deliver()

    def _too_early(self) -> Exception:
        asked, given = len(self._choices), sum(choice.ending is not None for choice in self._choices)
        if given and not any(choice.seen and choice.ending is None for choice in self._choices):
            return EngineFailed(f"{self._remote.place} gave {given} of {asked} answers", "it seems not to support n")
        return Garbled("an answer that breaks off")

    def _deliver(self) -> None:
        if self.delivered or self._held is None:
            return
        self.delivered = True
        if self.usage is not None:
            used = self.usage
            self._sink.usage(self._number, used.prompt_tokens, used.completion_tokens, used.cached_tokens)
        self._put_finish(self._held)

    def _take_choice(self, one: Any) -> bool:
        if not isinstance(one, Mapping):
            raise Garbled("a choice that is no object")
        place = one.get("index", 0)
        if not isinstance(place, int) or not 0 <= place < len(self._choices):
            raise Garbled("a choice that was not asked for")
        choice = self._choices[place]
        if choice.ending is not None:
            return False  # some servers repeat the last chunk with the count of tokens
        choice.seen = True
        text = self._text(choice, one)
        if text:
            self._sink.token(self._number, plain(text), (), place)
        reason = one.get("finish_reason")
        if reason:
            self._finish(place, choice, str(reason), one.get("stop_reason"))
        return bool(text or reason or choice.calls)

    def _text(self, choice: _Choice, one: Mapping[str, Any]) -> str:
        delta = one.get("delta")
        if not isinstance(delta, Mapping):
            return _string(one.get("text"))
        thought = _string(delta.get("reasoning_content")) or _string(delta.get("reasoning"))
        said = _string(delta.get("content")) + _string(delta.get("refusal"))
        calls = delta.get("tool_calls")
        if choice.calls is not None:
            choice.after.append(_thoughts(choice, thought) + _spoken(choice, said))
            return choice.calls.feed(calls) if calls else ""
        if calls:
            choice.calls = ToolText()
            said += choice.calls.feed(calls)
        return _thoughts(choice, thought) + _spoken(choice, said, last=bool(calls))

    def _finish(self, place: int, choice: _Choice, reason: str, stop_reason: Any) -> None:
        if reason in _FAILURES:
            raise EngineFailed(f"{self._remote.place} gave up on this request")
        calls = choice.calls.end() if choice.calls is not None else ""
        rest = calls + "".join(choice.after) + _spoken(choice, "", last=True)
        if rest:
            self._sink.token(self._number, plain(rest), (), place)
        choice.ending = _ending(reason, stop_reason)
        self._open -= 1
        if self._open:
            self._put_finish(place)
        else:
            self._held = place

    def _put_finish(self, place: int) -> None:
        ending = self._choices[place].ending
        assert ending is not None
        self._sink.finish(self._number, ending[0], place, ending[1])


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except (ValueError, RecursionError):
        raise Garbled("an event that is not JSON") from None
    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices") or [], list):
        raise Garbled("an event that is no part of an answer")
    return chunk


def _string(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    raise Garbled("content that is no text")


def _thoughts(choice: _Choice, text: str) -> str:
    if not text or choice.thinking:
        return text
    choice.thinking = True
    return f"<think>{text}"


def _spoken(choice: _Choice, text: str, last: bool = False) -> str:
    if choice.thinking and (text or last):
        choice.thinking = False
        return f"</think>{text}"
    return text


def _ending(reason: str, stop_reason: Any) -> tuple[FinishReason, str | int | None]:
    if reason in _LENGTHS:
        return FinishReason.LENGTH, None
    if reason not in _PLAIN_STOPS:
        return FinishReason.STOP, plain(reason)  # content_filter, or a word that we do not know
    if isinstance(stop_reason, str):
        return FinishReason.STOP, plain(stop_reason)
    return FinishReason.STOP, _count(stop_reason)


def _usage(found: Any) -> Usage | None:
    if not isinstance(found, Mapping):
        return None
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(
        _count(found.get("prompt_tokens")) or 0, _count(found.get("completion_tokens")) or 0, _count(cached) or 0
    )


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST
    return int(value) if whole else None

"""Encodes a message of the Messages API, as JSON and as events. Pure.

The bytes around a text delta are encoded once per block. A token then costs one JSON string and its share of a join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from enginebay.contract.engine_messages import Usage
from enginebay.server.api.anthropic.conversation_input import SIGNATURE, sign_hidden_thinking
from enginebay.server.api.anthropic.message_objects import (
    MessageObject,
    MessageUsageObject,
    StopReason,
    TextBlockObject,
    ThinkingBlockObject,
    ThinkingTokensObject,
    ToolUseBlockObject,
)
from enginebay.text.output_events import AnswerText, OutputEvent, ReasoningText, ToolCallArguments, ToolCallStart

_encode = msgspec.json.Encoder().encode

BlockKind = Literal["text", "thinking", "tool_use"]
# The type of a delta, and the name of its text.
_DELTAS: dict[BlockKind, tuple[bytes, bytes]] = {
    "text": (b"text_delta", b"text"),
    "thinking": (b"thinking_delta", b"thinking"),
    "tool_use": (b"input_json_delta", b"partial_json"),
}


@dataclass(slots=True)
class ContentBlock:
    kind: BlockKind
    index: int
    id: str = ""  # of a tool use
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.pieces)


class BlockSequence:
    """Assigns output events to content blocks. Text of whitespace alone opens no block: models write it around calls."""

    def __init__(self, next_call_id: Callable[[], str]) -> None:
        self._next_call_id = next_call_id
        self._calls: list[ContentBlock] = []
        self._blank = ""  # whitespace that waits for text of its kind
        self._blank_kind: BlockKind = "text"
        self.last: ContentBlock | None = None
        self.count = 0

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    def assign(self, event: OutputEvent) -> tuple[ContentBlock, str] | None:
        """Return the block of the event and the text that it adds, or None if it adds nothing yet."""
        if isinstance(event, ToolCallStart):
            call = self._open("tool_use", f"toolu_{self._next_call_id().removeprefix('call_')}", event.name)
            self._calls.append(call)
            return call, ""
        if isinstance(event, ToolCallArguments):
            return self._calls[event.index], event.fragment
        kind: BlockKind = "thinking" if isinstance(event, ReasoningText) else "text"
        if self.last is not None and self.last.kind == kind:
            return self.last, event.text
        text = self._blank + event.text if self._blank_kind == kind else event.text
        if not text or text.isspace():
            self._blank, self._blank_kind = text, kind
            return None
        return self._open(kind), text

    def _open(self, kind: BlockKind, id_: str = "", name: str = "") -> ContentBlock:
        self._blank = ""
        self.last = ContentBlock(kind, self.count, id_, name)
        self.count += 1
        return self.last


def collect_blocks(events: Iterable[OutputEvent], blocks: BlockSequence) -> list[ContentBlock]:
    """Return the content blocks of a whole output."""
    content: dict[int, ContentBlock] = {}
    for event in events:
        assigned = blocks.assign(event)
        if assigned is not None:
            block, text = assigned
            block.pieces.append(text)
            content[block.index] = block
    return list(content.values())


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """Why a message ended, in this API's terms."""

    reason: StopReason
    stop_sequence: str | None = None


def find_end(
    finish_reason: str | None, matched: str | int | None, stop_sequences: Sequence[str], has_calls: bool
) -> MessageEnd:
    """`matched`: the stop string or token that the engine reports."""
    if finish_reason == "length":
        return MessageEnd("max_tokens")
    if has_calls:
        return MessageEnd("tool_use")
    if isinstance(matched, str) and matched in stop_sequences:
        return MessageEnd("stop_sequence", matched)
    return MessageEnd("end_turn")


def encode_message_usage(usage: Usage, thinking_tokens: int | None = None) -> MessageUsageObject:
    """Encode the usage. Here, tokens read from the cache are not among the input tokens."""
    return MessageUsageObject(
        input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens),
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=UNSET if thinking_tokens is None else ThinkingTokensObject(thinking_tokens),
    )


@dataclass(frozen=True, slots=True)
class MessageEncoder:
    """Encodes the message object."""

    id: str
    model: str
    hides_thinking: bool = False

    def encode_message(self, content: Sequence[ContentBlock], usage: MessageUsageObject, end: MessageEnd) -> bytes:
        message = MessageObject(
            id=self.id, model=self.model, content=[self._encode_block(block) for block in content],
            stop_reason=end.reason, stop_sequence=end.stop_sequence, usage=usage,
        )  # fmt: skip
        return _encode(message)

    def encode_start(self, prompt_tokens: int) -> MessageObject:
        usage = MessageUsageObject(input_tokens=prompt_tokens, output_tokens=0)
        return MessageObject(id=self.id, model=self.model, content=[], usage=usage)

    def _encode_block(self, block: ContentBlock) -> Any:
        if block.kind == "text":
            return TextBlockObject(text=block.content)
        if block.kind == "thinking":
            text = "" if self.hides_thinking else block.content
            return ThinkingBlockObject(thinking=text, signature=self.sign(block))
        return ToolUseBlockObject(id=block.id, name=block.name, input=_parse_input(block.content))

    def encode_empty_block(self, block: ContentBlock) -> Any:
        """Encode the block as it starts in a stream."""
        if block.kind == "text":
            return TextBlockObject(text="")
        if block.kind == "thinking":
            return ThinkingBlockObject(thinking="", signature="")
        return ToolUseBlockObject(id=block.id, name=block.name, input={})

    def sign(self, thinking: ContentBlock) -> str:
        return sign_hidden_thinking(thinking.content) if self.hides_thinking else SIGNATURE


def _parse_input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call, or {} if the output was cut within them."""
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


class MessageEventEncoder:
    """Encodes the server-sent events of one message."""

    def __init__(self, encoder: MessageEncoder, blocks: BlockSequence, prompt_tokens: int) -> None:
        self._encoder = encoder
        self._blocks = blocks
        self._prompt_tokens = prompt_tokens
        self._open: ContentBlock | None = None
        self._text_prefix = self._text_separator = b""  # of the open text block
        self._text_suffix = b"}}\n\n"

    def encode_opening(self) -> bytes:
        start = _encode_sse_event("message_start", {"message": self._encoder.encode_start(self._prompt_tokens)})
        return start + _encode_sse_event("ping", {})

    def encode_texts(self, texts: Sequence[str]) -> bytes:
        """Encode one event per text, none of which is empty."""
        if self._open is None or self._open.kind != "text":
            return b"".join([self.encode_event(AnswerText(text)) for text in texts])
        return self._text_prefix + self._text_separator.join(map(_encode, texts)) + self._text_suffix

    def encode_event(self, event: OutputEvent) -> bytes:
        assigned = self._blocks.assign(event)
        if assigned is None:
            return b""
        block, text = assigned
        before = self._switch_block(block) if block is not self._open else b""
        if block.kind == "thinking" and self._encoder.hides_thinking:
            block.pieces.append(text)
            return before
        return before + _encode_delta(block, text) if text else before

    def encode_closing(self, usage: MessageUsageObject, end: MessageEnd) -> bytes:
        delta = {"stop_reason": end.reason, "stop_sequence": end.stop_sequence, "stop_details": None, "container": None}
        fields = {"delta": delta, "usage": usage}
        return self._close_block() + _encode_sse_event("message_delta", fields) + _encode_sse_event("message_stop", {})

    def _switch_block(self, block: ContentBlock) -> bytes:
        """Close the open block and open this one."""
        closing = self._close_block()
        self._open = block
        if block.kind == "text":
            self._text_prefix = _build_delta_prefix(block)
            self._text_separator = self._text_suffix + self._text_prefix
        fields = {"index": block.index, "content_block": self._encoder.encode_empty_block(block)}
        return closing + _encode_sse_event("content_block_start", fields)

    def _close_block(self) -> bytes:
        block = self._open
        if block is None:
            return b""
        self._open = None
        signature = b""
        if block.kind == "thinking":
            delta = {"type": "signature_delta", "signature": self._encoder.sign(block)}
            signature = _encode_sse_event("content_block_delta", {"index": block.index, "delta": delta})
        return signature + _encode_sse_event("content_block_stop", {"index": block.index})


def _encode_sse_event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def _build_delta_prefix(block: ContentBlock) -> bytes:
    """Return the bytes of a delta up to its text."""
    return b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":' % (
        block.index,
        *_DELTAS[block.kind],
    )


def _encode_delta(block: ContentBlock, text: str) -> bytes:
    return _build_delta_prefix(block) + _encode(text) + b"}}\n\n"

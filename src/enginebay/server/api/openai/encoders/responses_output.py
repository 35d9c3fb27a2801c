"""The output of a response so far: messages and function calls in order. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from enginebay.contract import TokenLogprobs
from enginebay.server.api.openai.encoders.logprobs import TokenBytes, encode_chat_logprobs
from enginebay.server.api.openai.response_objects import (
    CustomToolCallItemObject,
    FunctionCallItemObject,
    ItemObject,
    ItemStatus,
    LogprobEntryObject,
    MessageItemObject,
    OutputTextObject,
    ReasoningItemObject,
    ReasoningTextObject,
)
from enginebay.server.api.openai.responses_api.tool_names import CalledTool, read_custom_input
from enginebay.text.output_events import (
    AnswerText,
    OutputEvent,
    OutputEventParser,
    ReasoningText,
    ToolCallArguments,
    ToolCallStart,
)
from enginebay.text.reasoning import ReasoningParser


@dataclass(slots=True)
class MessageItem:
    """A message with one text part."""

    id: str
    index: int  # in the output
    texts: list[str] = field(default_factory=list)
    logprobs: list[LogprobEntryObject] = field(default_factory=list)


@dataclass(slots=True)
class FunctionCallItem:
    id: str
    index: int
    call_id: str
    name: str
    fragments: list[str] = field(default_factory=list)
    namespace: str | UnsetType = UNSET
    is_custom: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.fragments)


@dataclass(slots=True)
class ReasoningItem:
    """A thought with one text part."""

    id: str
    index: int
    texts: list[str] = field(default_factory=list)
    is_encrypted: bool = False  # also in the form in which clients that store nothing send it back


OutputItem = MessageItem | FunctionCallItem | ReasoningItem


_ENCODED_PREFIX = "enginebay:"


class ResponseOutput:
    """The items of one output in order. Text after a call starts a new message."""

    def __init__(
        self,
        response_id: str,
        next_call_id: Callable[[], str],
        token_bytes: TokenBytes,
        find_tool: Callable[[str], CalledTool] = CalledTool,
        encrypts_reasoning: bool = False,
    ) -> None:
        self._encrypts_reasoning = encrypts_reasoning
        self._suffix = response_id.removeprefix("resp_")
        self._next_call_id = next_call_id
        self._token_bytes = token_bytes
        self._find_tool = find_tool  # by the name of the function that the model called
        self._calls: list[FunctionCallItem] = []
        self.items: list[OutputItem] = []

    def current_message(self) -> MessageItem:
        """Return the message that the next text belongs to. Add one if needed."""
        last = self.items[-1] if self.items else None
        if isinstance(last, MessageItem):
            return last
        index = len(self.items)
        message = MessageItem(f"msg_{self._suffix}_{index}", index)
        self.items.append(message)
        return message

    def _current_thought(self) -> ReasoningItem:
        last = self.items[-1] if self.items else None
        if isinstance(last, ReasoningItem):
            return last
        index = len(self.items)
        thought = ReasoningItem(f"rs_{self._suffix}_{index}", index, is_encrypted=self._encrypts_reasoning)
        self.items.append(thought)
        return thought

    def append_event(self, event: OutputEvent, logprobs: Sequence[TokenLogprobs] = ()) -> OutputItem:
        """Append one event, and return the item it belongs to."""
        if isinstance(event, ToolCallStart):
            index = len(self.items)
            tool = self._find_tool(event.name)
            call = FunctionCallItem(
                f"{'ctc' if tool.is_custom else 'fc'}_{self._suffix}_{index}", index, self._next_call_id(), tool.name,
                namespace=tool.namespace or UNSET, is_custom=tool.is_custom,
            )  # fmt: skip
            self._calls.append(call)
            self.items.append(call)
            return call
        if isinstance(event, ToolCallArguments):
            call = self._calls[event.index]
            call.fragments.append(event.fragment)
            return call
        if isinstance(event, ReasoningText):
            thought = self._current_thought()
            thought.texts.append(event.text)
            return thought
        message = self.current_message()
        message.texts.append(event.text)
        message.logprobs += self.encode_logprobs(logprobs)
        return message

    def encode_logprobs(self, tokens: Sequence[TokenLogprobs]) -> list[LogprobEntryObject]:
        """Encode log probabilities for this API, in which `bytes` is always a list."""
        entries = encode_chat_logprobs(tokens, self._token_bytes).content if tokens else []
        for entry in entries:
            for token in (entry, *entry.top_logprobs):
                token.bytes = token.bytes or []
        return entries

    def encode_items(self, last_status: ItemStatus = "completed") -> list[ItemObject]:
        """Encode all items. The last one has `last_status`, the others are completed."""
        if not self.items:
            self.current_message()  # an output has at least one item
        completed = [encode_item(item, "completed") for item in self.items[:-1]]
        return [*completed, encode_item(self.items[-1], last_status)]


def encode_item(item: OutputItem, status: ItemStatus) -> ItemObject:
    if isinstance(item, FunctionCallItem) and item.is_custom:
        text = read_custom_input(item.arguments)
        return CustomToolCallItemObject(item.id, status, item.call_id, item.name, text, item.namespace)
    if isinstance(item, FunctionCallItem):
        return FunctionCallItemObject(item.id, status, item.call_id, item.name, item.arguments, item.namespace)
    if isinstance(item, ReasoningItem):
        thought = ReasoningItemObject(item.id, status, [encode_reasoning_part(item)])
        if item.is_encrypted:
            thought.encrypted_content = encrypt_thought(thought.content[0].text)
        return thought
    return MessageItemObject(item.id, status, [encode_text_part(item)])


def encode_reasoning_part(thought: ReasoningItem) -> ReasoningTextObject:
    return ReasoningTextObject("".join(thought.texts))


def encrypt_thought(text: str) -> str:
    """Encode a thought for clients that send only `encrypted_content` back. It is not a secret: the text is next to it."""
    return _ENCODED_PREFIX + b64encode(text.encode("utf-8", "replace")).decode()


def decrypt_thought(encoded: str) -> str:
    """Return the thought of an `encrypted_content`; empty if another server made it."""
    if not encoded.startswith(_ENCODED_PREFIX):
        return ""
    try:
        return b64decode(encoded.removeprefix(_ENCODED_PREFIX), validate=True).decode()
    except ValueError:
        return ""


def encode_text_part(message: MessageItem) -> OutputTextObject:
    return OutputTextObject("".join(message.texts), message.logprobs)


class OutputParser:
    """Parses tokens into events: text, and calls if the request has tools."""

    def __init__(self, parser: OutputEventParser | None, restore_markers: Callable[[str, Sequence[int]], str]) -> None:
        self._parser = parser
        self._restore_markers = restore_markers  # restores call markers, which engines drop as special tokens
        self._pending_logprobs: list[TokenLogprobs] = []  # of text that the parser holds back

    @property
    def is_plain_text(self) -> bool:
        return self._parser is None or (isinstance(self._parser, ReasoningParser) and self._parser.is_plain)

    @property
    def reasoning_tokens(self) -> int:
        if not isinstance(self._parser, ReasoningParser):
            return 0
        return self._parser.reasoning_tokens or self._parser.uncounted_pieces

    def feed(
        self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> list[tuple[OutputEvent, Sequence[TokenLogprobs]]]:
        if self._parser is None:
            return [(AnswerText(text), logprobs)]
        self._pending_logprobs += logprobs
        restored = self._restore_markers(text, token_ids)
        if isinstance(self._parser, ReasoningParser):
            return self._attach_logprobs(self._parser.feed(restored, len(token_ids)))
        return self._attach_logprobs(self._parser.feed(restored))

    def end(self) -> list[tuple[OutputEvent, Sequence[TokenLogprobs]]]:
        return [] if self._parser is None else self._attach_logprobs(self._parser.end())

    def _attach_logprobs(self, events: Sequence[OutputEvent]) -> list[tuple[OutputEvent, Sequence[TokenLogprobs]]]:
        """Pair each text with its log probabilities. Those of calls are dropped: this API has no field for them."""
        pairs: list[tuple[OutputEvent, Sequence[TokenLogprobs]]] = []
        for event in events:
            pairs.append((event, tuple(self._pending_logprobs) if isinstance(event, AnswerText) else ()))
            self._pending_logprobs.clear()
        return pairs

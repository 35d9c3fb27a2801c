"""What has come of a response so far: messages and calls in their order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from enginebay.contract import TokenLogprobs
from enginebay.server.answers.logprobs import TokenBytes, chat_logprobs
from enginebay.text.tools import CallArguments, CallStart, Text, ToolEvent, ToolParser


@dataclass(slots=True)
class Message:
    """One piece of text of the output."""

    id: str
    place: int  # among the items
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class FunctionCall:
    id: str
    place: int
    call_id: str
    name: str
    fragments: list[str] = field(default_factory=list)


Item = Message | FunctionCall


class Output:
    """The items of one output in their order. Text after a call is a message of its own."""

    def __init__(self, response_id: str, call_id: Callable[[], str], token_bytes: TokenBytes) -> None:
        self._suffix = response_id.removeprefix("resp_")
        self._call_id = call_id
        self._token_bytes = token_bytes
        self._calls: list[FunctionCall] = []
        self.items: list[Item] = []

    def message(self) -> Message:
        """The message that text belongs to now."""
        last = self.items[-1] if self.items else None
        if isinstance(last, Message):
            return last
        place = len(self.items)
        made = Message(f"msg_{self._suffix}_{place}", place)
        self.items.append(made)
        return made

    def take(self, event: ToolEvent, logprobs: Sequence[TokenLogprobs] = ()) -> Item:
        """Keep one event, and say which item it belongs to."""
        if isinstance(event, CallStart):
            place = len(self.items)
            call = FunctionCall(f"fc_{self._suffix}_{place}", place, self._call_id(), event.name)
            self._calls.append(call)
            self.items.append(call)
            return call
        if isinstance(event, CallArguments):
            call = self._calls[event.index]
            call.fragments.append(event.fragment)
            return call
        message = self.message()
        message.texts.append(event.text)
        message.logprobs += self.logprobs(logprobs)
        return message

    def logprobs(self, tokens: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        """As this API writes them: `bytes` is always a list."""
        found: list[dict[str, Any]] = chat_logprobs(tokens, self._token_bytes)["content"] if tokens else []
        for entry in found:
            for one in (entry, *entry["top_logprobs"]):
                one["bytes"] = one["bytes"] or []
        return found

    def objects(self, last: str = "completed") -> list[dict[str, Any]]:
        """All items in OpenAI's form; `last` is the status of the last one, the others are complete."""
        if not self.items:
            self.message()  # an output always has something to read
        done = [item_object(item, "completed") for item in self.items[:-1]]
        return [*done, item_object(self.items[-1], last)]


def item_object(item: Item, status: str) -> dict[str, Any]:
    if isinstance(item, FunctionCall):
        return {
            "id": item.id, "type": "function_call", "status": status, "call_id": item.call_id, "name": item.name,
            "arguments": "".join(item.fragments),
        }  # fmt: skip
    return {
        "id": item.id, "type": "message", "status": status, "role": "assistant", "content": [part_object(item)]
    }  # fmt: skip


def part_object(message: Message) -> dict[str, Any]:
    return {
        "type": "output_text", "text": "".join(message.texts), "annotations": [], "logprobs": message.logprobs
    }  # fmt: skip


class Reader:
    """Tokens to events: text as it comes, and calls when there are tools."""

    def __init__(self, parser: ToolParser | None, marked: Callable[[str, Sequence[int]], str]) -> None:
        self._parser = parser
        self._marked = marked  # puts back the markers of calls that the engine leaves out
        self._pending: list[TokenLogprobs] = []  # of text that the parser still holds back

    @property
    def plain(self) -> bool:
        return self._parser is None

    def read(
        self, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> list[tuple[ToolEvent, Sequence[TokenLogprobs]]]:
        if self._parser is None:
            return [(Text(text), logprobs)]
        self._pending += logprobs
        return self._with_logprobs(self._parser.feed(self._marked(text, token_ids)))

    def end(self) -> list[tuple[ToolEvent, Sequence[TokenLogprobs]]]:
        return [] if self._parser is None else self._with_logprobs(self._parser.end())

    def _with_logprobs(self, events: Sequence[ToolEvent]) -> list[tuple[ToolEvent, Sequence[TokenLogprobs]]]:
        """Log probabilities are of text alone: those of a call's tokens have no place in this API."""
        found: list[tuple[ToolEvent, Sequence[TokenLogprobs]]] = []
        for event in events:
            found.append((event, tuple(self._pending) if isinstance(event, Text) else ()))
            self._pending.clear()
        return found

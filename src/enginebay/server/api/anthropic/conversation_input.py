"""Translates the system prompt and the messages of the Messages API to the messages of a chat. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.server.api.anthropic.input_notes import InputNotes, describe_value, read_string
from enginebay.server.api.anthropic.schemas import MessagesPrompt
from enginebay.util.limit_errors import make_limit_error

# A line that changes with every request of Claude Code. At the start of the prompt it would defeat the prefix cache.
_BILLING_HEADER = "x-anthropic-billing-header"
_BILLING_BLOCK = re.compile(rf"{_BILLING_HEADER}:[^\n]*\s*")
# The signature of a thinking block. One whose text is not shown carries the text, so that it comes back.
SIGNATURE = "enginebay"
_HIDDEN_SIGNATURE = f"{SIGNATURE}:"

_FIELDS = {
    "message": frozenset(("role", "content")),
    "text": frozenset(("type", "text", "citations")),
    "image": frozenset(("type", "source")),
    "document": frozenset(("type", "source", "title", "context", "citations")),
    "search_result": frozenset(("type", "source", "title", "content", "citations")),
    "tool_reference": frozenset(("type", "tool_name")),
    "thinking": frozenset(("type", "thinking", "signature")),
    "redacted_thinking": frozenset(("type", "data")),
    "tool_use": frozenset(("type", "id", "name", "input", "caller")),
    "tool_result": frozenset(("type", "tool_use_id", "content", "is_error")),
}
_IMAGE_HINT = "remove the image, or use a model that accepts images"
_NO_FILES = "the server stores no files: send the content itself"

Blocks = Sequence[Mapping[str, Any]]


def sign_hidden_thinking(thinking: str) -> str:
    """Return the signature of a thinking block whose text is not shown."""
    return _HIDDEN_SIGNATURE + base64.b64encode(thinking.encode()).decode()


def to_chat_messages(
    body: MessagesPrompt, limits: ServerLimits, notes: InputNotes, accepts_images: bool
) -> list[dict[str, Any]]:
    """Return the chat. Raise `RequestError` that names the message."""
    if len(body.messages) > limits.messages:
        raise make_limit_error(f"messages has {len(body.messages)} entries", limits, "messages", "messages")
    conversation = _Conversation(notes, accepts_images)
    conversation.add_system(_read_system(body.system, notes), "system")
    for number, message in enumerate(body.messages):
        conversation.add_message(message, f"messages[{number}]")
    return conversation.finish()


def _read_system(system: str | list[dict[str, Any]] | None, notes: InputNotes) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = []
    for number, block in enumerate(system):
        text = _read_text(block, f"system[{number}]", notes, param="system")
        if _BILLING_BLOCK.fullmatch(text):
            notes.ignore(_BILLING_HEADER, "it changes with every request, which defeats the prefix cache")
        else:
            texts.append(text)
    return "\n\n".join(texts)


class _Conversation:
    """The messages of a chat so far. Consecutive messages of one role become one, as in the Messages API."""

    def __init__(self, notes: InputNotes, accepts_images: bool) -> None:
        self._notes = notes
        self._accepts_images = accepts_images
        self._messages: list[dict[str, Any]] = []
        self._tool_names: dict[str, str] = {}  # of the calls so far, by id

    def add_message(self, message: Mapping[str, Any], where: str) -> None:
        role = message.get("role")
        if role not in ("user", "assistant", "system"):
            raise _invalid(f"{where}.role is {describe_value(role)}", "use user, assistant or system")
        self._notes.ignore_others(message, _FIELDS["message"], "message")
        blocks = _read_blocks(message.get("content"), f"{where}.content")
        if role == "user":
            self._add_user(blocks, f"{where}.content")
        elif role == "assistant":
            self._add_assistant(blocks, f"{where}.content")
        else:
            texts = [
                _read_text(block, f"{where}.content[{number}]", self._notes) for number, block in enumerate(blocks)
            ]
            self.add_system("\n\n".join(texts), "message.system")

    def add_system(self, text: str, name: str) -> None:
        """Add to the system message. Later ones become the user's: chat templates accept one, at the start."""
        if not text:
            return
        if not self._messages:
            self._messages.append({"role": "system", "content": text})
        elif len(self._messages) == 1 and self._messages[0]["role"] == "system":
            self._messages[0]["content"] += f"\n\n{text}"
        else:
            self._notes.translate(name, "sent as user text: chat templates accept one system message, at the start")
            self._add_parts([{"type": "text", "text": f"<system-reminder>\n{text}\n</system-reminder>"}])

    def finish(self) -> list[dict[str, Any]]:
        if not self._messages:
            raise _invalid("messages have no text", "send at least one message with text")
        if self._messages[-1].get("tool_calls"):
            raise _invalid("the last message has tool_use blocks", "send their tool_result blocks in a user message")
        return [_simplify_content(message) for message in self._messages]

    # User messages

    def _add_user(self, blocks: Blocks, where: str) -> None:
        parts: list[dict[str, Any]] = []
        for number, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                self._add_tool_result(block, f"{where}[{number}]")
            else:
                parts.append(self._to_part(block, f"{where}[{number}]"))
        if parts:
            self._add_parts(parts)

    def _add_parts(self, parts: list[dict[str, Any]]) -> None:
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages[-1]["content"] += parts
        else:
            self._messages.append({"role": "user", "content": parts})

    def _add_tool_result(self, block: Mapping[str, Any], where: str) -> None:
        self._notes.ignore_others(block, _FIELDS["tool_result"], "tool_result")
        call_id = read_string(block, "tool_use_id", where)
        name = self._tool_names.get(call_id)
        if name is None:
            raise _invalid(
                f"{where}.tool_use_id is {describe_value(call_id)}, which no tool_use block before it has",
                "send the assistant's message with that tool_use block first",
            )
        content = block.get("content")
        blocks = [] if content is None else _read_blocks(content, f"{where}.content")
        parts = [self._to_part(part, f"{where}.content[{number}]") for number, part in enumerate(blocks)]
        if _read_flag(block, "is_error", where):
            self._notes.translate("tool_result.is_error", "its text starts with Error:")
            _mark_error(parts)
        parts = parts or [{"type": "text", "text": ""}]
        self._messages.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": parts})

    def _to_part(self, block: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Translate a block of a user message or a tool result to a part of a chat message."""
        kind = block.get("type")
        if kind == "text":
            text = _read_text(block, where, self._notes)
        elif kind == "image":
            return self._to_image_part(block, where)
        elif kind == "document":
            text = _read_document(block, where, self._notes)
        elif kind == "search_result":
            text = _read_search_result(block, where, self._notes)
        elif kind == "tool_reference":
            self._notes.ignore_others(block, _FIELDS["tool_reference"], "tool_reference")
            text = read_string(block, "tool_name", where)
        else:
            raise _unsupported(f"{where}.type is {describe_value(kind)}", "use text, image, document or tool_result")
        return {"type": "text", "text": text}

    def _to_image_part(self, block: Mapping[str, Any], where: str) -> dict[str, Any]:
        if not self._accepts_images:
            raise _unsupported(f"{where} is an image, and the model accepts only text", _IMAGE_HINT)
        self._notes.ignore_others(block, _FIELDS["image"], "image")
        source = _read_source(block, where)
        if source.get("type") == "url":
            url = read_string(source, "url", f"{where}.source")
        elif source.get("type") == "base64":
            media_type, data = (read_string(source, key, f"{where}.source") for key in ("media_type", "data"))
            url = f"data:{media_type};base64,{data}"
        else:
            raise _unsupported(f"{where}.source.type is {describe_value(source.get('type'))}", _NO_FILES)
        return {"type": "image_url", "image_url": {"url": url}}

    # Assistant messages

    def _add_assistant(self, blocks: Blocks, where: str) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for number, block in enumerate(blocks):
            at = f"{where}[{number}]"
            kind = block.get("type")
            if kind == "text":
                texts.append(_read_text(block, at, self._notes))
            elif kind == "thinking":
                thoughts.append(_read_thinking(block, at, self._notes))
            elif kind == "redacted_thinking":
                self._notes.ignore("redacted_thinking", "only the server that wrote it can read it")
            elif kind == "tool_use":
                calls.append(self._to_tool_call(block, at))
            else:
                raise _unsupported(f"{at}.type is {describe_value(kind)}", "use text, thinking or tool_use")
        self._add_turn("\n".join(texts), "\n".join(filter(None, thoughts)), calls)

    def _add_turn(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> None:
        if not self._messages or self._messages[-1]["role"] != "assistant":
            self._messages.append({"role": "assistant", "content": ""})
        turn = self._messages[-1]
        for key, addition in (("content", text), ("reasoning_content", thinking)):
            if addition:
                turn[key] = f"{turn[key]}\n{addition}" if turn.get(key) else addition
        if calls:
            turn.setdefault("tool_calls", []).extend(calls)

    def _to_tool_call(self, block: Mapping[str, Any], where: str) -> dict[str, Any]:
        self._notes.ignore_others(block, _FIELDS["tool_use"], "tool_use")
        call_id, name = (read_string(block, key, where) for key in ("id", "name"))
        arguments = block.get("input")
        if not isinstance(arguments, Mapping):
            raise _invalid(f"{where}.input is {describe_value(arguments)}", "send an object")
        self._tool_names[call_id] = name
        function = {"name": name, "arguments": _encode_arguments(arguments, where)}
        return {"id": call_id, "type": "function", "function": function}


def _encode_arguments(arguments: Mapping[str, Any], where: str) -> str:
    try:
        return msgspec.json.encode(arguments).decode()
    except RecursionError:
        raise _invalid(f"{where}.input is nested too deeply", "send a flatter object") from None


# Blocks


def _read_blocks(content: Any, where: str) -> Blocks:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _invalid(f"{where} is {describe_value(content)}", "send a string or a list of content blocks")
    if not content:
        raise _invalid(f"{where} is empty", "send at least one content block")
    for number, block in enumerate(content):
        if not isinstance(block, Mapping):
            raise _invalid(f"{where}[{number}] is {describe_value(block)}", 'a block is {"type": "text", "text": "…"}')
    return content


def _read_text(block: Any, where: str, notes: InputNotes, param: str = "messages") -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind != "text":
        raise InvalidRequest(f"{where} is not a text block", 'use {"type": "text", "text": "…"}', param=param)
    notes.ignore_others(block, _FIELDS["text"], "text", param)
    return read_string(block, "text", where, param)


def _read_thinking(block: Mapping[str, Any], where: str, notes: InputNotes) -> str:
    """Return the thought, which the signature carries if it was not shown. Other signatures mean nothing here."""
    notes.ignore_others(block, _FIELDS["thinking"], "thinking")
    thinking = read_string(block, "thinking", where)
    signature = block.get("signature")
    if thinking or not isinstance(signature, str) or not signature.startswith(_HIDDEN_SIGNATURE):
        return thinking
    try:
        return base64.b64decode(signature.removeprefix(_HIDDEN_SIGNATURE), validate=True).decode()
    except (binascii.Error, ValueError):
        raise _invalid(f"{where}.signature is damaged", "send the thinking block back unchanged") from None


def _read_document(block: Mapping[str, Any], where: str, notes: InputNotes) -> str:
    notes.ignore_others(block, _FIELDS["document"], "document")
    source = _read_source(block, where)
    if source.get("type") == "text":
        text = read_string(source, "data", f"{where}.source")
    elif source.get("type") == "content":
        blocks = _read_blocks(source.get("content"), f"{where}.source.content")
        texts = [_read_text(inner, f"{where}.source.content[{at}]", notes) for at, inner in enumerate(blocks)]
        text = "\n".join(texts)
    else:
        raise _unsupported(
            f"{where}.source.type is {describe_value(source.get('type'))}", "send the document's text, as a text block"
        )
    head = [block[key] for key in ("title", "context") if isinstance(block.get(key), str)]
    return "\n".join((*head, text))


def _read_search_result(block: Mapping[str, Any], where: str, notes: InputNotes) -> str:
    notes.ignore_others(block, _FIELDS["search_result"], "search_result")
    title, source = (read_string(block, key, where) for key in ("title", "source"))
    blocks = _read_blocks(block.get("content"), f"{where}.content")
    texts = [_read_text(inner, f"{where}.content[{at}]", notes) for at, inner in enumerate(blocks)]
    return "\n".join((title, source, *texts))


def _read_source(block: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise _invalid(f"{where}.source is {describe_value(source)}", "send an object with a type")
    return source


def _read_flag(block: Mapping[str, Any], key: str, where: str) -> bool:
    value = block.get(key)
    if not isinstance(value, (bool, type(None))):
        raise _invalid(f"{where}.{key} is {describe_value(value)}", "send true or false")
    return bool(value)


def _mark_error(parts: list[dict[str, Any]]) -> None:
    """Put `Error: ` before the text of a failed call: a chat has no field for it."""
    first = parts[0] if parts else None
    if first is None or first["type"] != "text":
        parts.insert(0, {"type": "text", "text": "Error"})
    elif not first["text"].lower().startswith("error"):
        first["text"] = f"Error: {first['text']}"


def _simplify_content(message: dict[str, Any]) -> dict[str, Any]:
    """Replace a single text part by its text: some templates accept nothing else."""
    content = message["content"]
    if isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
        return {**message, "content": content[0]["text"]}
    return message


def _invalid(message: str, hint: str) -> RequestError:
    return InvalidRequest(message, hint, param="messages")


def _unsupported(message: str, hint: str) -> RequestError:
    return Unsupported(message, hint, param="messages")

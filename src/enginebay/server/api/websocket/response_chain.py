"""The messages of a Responses WebSocket: `response.create`, and how it continues the response before. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from enginebay.errors import InvalidRequest, Unsupported

_encode = msgspec.json.Encoder().encode
_STREAM_ID = re.compile(r"[\x20-\x7e]{1,128}")
_WARM_UP_TOKENS = 1


class ResponseCreation(Struct):
    """One `response.create`: the body of POST /v1/responses, and its input with that of the responses before."""

    body: bytes
    items: list[bytes]
    previous_id: str | None  # if this connection knows it, and the body does not name it any more
    stream_id: str | None
    generate: bool
    max_output_tokens: bytes = b"null"  # as asked, in JSON


class _FinishedObject(Struct):
    id: str
    output: list[Raw] = []
    store: bool | None = None


class _FinishedEvent(Struct):
    response: _FinishedObject


class ResponseChain:
    """The last response of a connection, with its input. A client can continue it although nothing is stored."""

    def __init__(self) -> None:
        self._last_id = ""
        self._items: list[bytes] = []

    @property
    def size(self) -> int:
        return sum(map(len, self._items))

    def read_message(self, message: bytes) -> ResponseCreation | None:
        """Return the response to create, or None for a message that needs no answer. Raise `RequestError`."""
        fields = _decode_fields(message)
        kind = _decode_field(fields, "type", str)
        if kind == "response.processed":
            return None
        if kind != "response.create":
            raise InvalidRequest(
                f"the message type {kind[:60]!r} is not supported" if kind else "type is missing",
                "send response.create",
                param="type",
            )
        if _decode_field(fields, "background", bool):
            raise Unsupported(
                "background responses are not supported over a WebSocket", "remove background", param="background"
            )
        stream_id = _decode_field(fields, "stream_id", str)
        if stream_id is not None and not _STREAM_ID.fullmatch(stream_id):
            raise InvalidRequest("stream_id must be 1 to 128 printable ASCII characters", param="stream_id")
        generate = _decode_field(fields, "generate", bool) is not False
        for name in ("type", "background", "stream_id", "generate"):
            fields.pop(name, None)
        previous_id = self._continue(fields)
        fields["stream"] = Raw(b"true")
        max_output_tokens = bytes(fields.get("max_output_tokens", b"null"))
        if not generate:  # the prompt goes to the engine's cache; the token is not sent
            fields |= {"store": Raw(b"false"), "max_output_tokens": Raw(b"%d" % _WARM_UP_TOKENS)}
        items = _list_items(fields.get("input"))
        return ResponseCreation(_encode(fields), items, previous_id, stream_id, generate, max_output_tokens)

    def _continue(self, fields: dict[str, Raw]) -> str | None:
        """Put the last response before the input, if the request continues it. Return its id."""
        previous_id: str | None = _decode_field(fields, "previous_response_id", str)
        if not previous_id or previous_id != self._last_id:
            return None
        del fields["previous_response_id"]
        fields["input"] = Raw(b"[%b]" % b",".join((*self._items, *_list_items(fields.get("input")))))
        return previous_id

    def record(self, creation: ResponseCreation, finished: bytes) -> None:
        """Remember a response. `finished`: its last event. One that the server stores is found there."""
        event = msgspec.json.decode(finished, type=_FinishedEvent)
        if event.response.store:
            self.forget()
            return
        self._last_id = event.response.id
        self._items = creation.items + ([bytes(item) for item in event.response.output] if creation.generate else [])

    def forget(self) -> None:
        self._last_id, self._items = "", []


def _decode_fields(message: bytes) -> dict[str, Raw]:
    try:
        return msgspec.json.decode(message, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise InvalidRequest("the message is not a JSON object", 'send {"type": "response.create", …}') from None


def _decode_field(fields: dict[str, Raw], name: str, kind: type[Any]) -> Any:
    if name not in fields:
        return None
    try:
        return msgspec.json.decode(fields[name], type=kind | None)
    except msgspec.MsgspecError:
        raise InvalidRequest(f"{name} must be a {'string' if kind is str else 'boolean'}", param=name) from None


def _list_items(value: Raw | None) -> list[bytes]:
    """Return the items of an `input`. What is neither a text nor a list is left to the endpoint to refuse."""
    if value is None:
        return []
    try:
        items = msgspec.json.decode(value, type=str | list[Raw] | None)
    except (msgspec.MsgspecError, RecursionError):
        return [bytes(value)]
    if isinstance(items, str):
        return [_encode({"type": "message", "role": "user", "content": items})]
    return [bytes(item) for item in items or ()]

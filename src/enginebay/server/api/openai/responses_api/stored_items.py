"""The form in which items are stored and listed: with an id, a status, and content as parts. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from enginebay.errors import InvalidRequest
from enginebay.server.state.stored_records import StoredItem, is_made_id, make_id

_encode = msgspec.json.Encoder().encode
_MAX_ID_CHARS = 128
_PREFIXES = {
    "message": "msg", "function_call": "fc", "function_call_output": "fco", "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco", "reasoning": "rs", "compaction": "cmp",
}  # fmt: skip
_SUMMARY_MARK = "bay1."


def to_stored_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input item as it is stored. It keeps an id that the server made: another client could guess others."""
    kind = "message" if item.get("type") is None else item["type"]
    item_id = item.get("id")
    if not isinstance(item_id, str) or len(item_id) > _MAX_ID_CHARS or not is_made_id(item_id):
        item_id = make_id(_PREFIXES.get(kind, "item") if isinstance(kind, str) else "item")
    stored = {**item, "type": kind, "id": item_id}
    if kind == "compaction":
        return stored
    stored["status"] = item.get("status") or "completed"
    if kind == "message" and isinstance(item.get("content"), str):
        stored["content"] = [_make_part(item.get("role"), item["content"])]
    if kind == "reasoning":
        stored.setdefault("summary", [])
    return stored


def _make_part(role: Any, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def encode_item_bodies(items: Sequence[Mapping[str, Any]]) -> list[StoredItem]:
    return [StoredItem(str(item["id"]), _encode(item)) for item in items]


def decode_item_bodies(bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in bodies]


def encode_summary(summary: str) -> str:
    """Encode a summary as the opaque content of a compaction item."""
    return _SUMMARY_MARK + base64.urlsafe_b64encode(json.dumps({"summary": summary}).encode()).decode()


def decode_summary(content: Any, where: str) -> str:
    """Return the summary of a compaction item that this server made. Raises `InvalidRequest` for others."""
    if isinstance(content, str) and content.startswith(_SUMMARY_MARK):
        try:
            found = json.loads(base64.urlsafe_b64decode(content.removeprefix(_SUMMARY_MARK)))["summary"]
            if isinstance(found, str):
                return found
        except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
            pass
    raise InvalidRequest(
        f"{where} is a compaction that this server did not make", "send the items that it stands for", param="input"
    )

"""Look up the model in the server's model list, once at load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from enginebay.engines.openai.errors import describe_in_full
from enginebay.engines.openai.remote_client import RemoteClient
from enginebay.engines.openai.remote_server import RemoteServer
from enginebay.errors import EnginebayError, LoadFailed

_MAX_LIST_BYTES = 1 << 24
_MAX_SHOWN = 5
_CONTEXT_FIELDS = ("max_model_len", "context_length", "context_window", "max_context_length")
_SKIP_HINT = "to skip this check, set openai.verify: false"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """The model as the server lists it."""

    context_length: int = 0  # 0: unknown
    warnings: tuple[str, ...] = ()


async def fetch_listed_model(server: RemoteServer) -> ListedModel:
    """Fetch the model's entry. Raises `LoadFailed` if the server does not respond, rejects the key or lacks the model."""
    client = RemoteClient(server)
    try:
        body = await client.fetch("/models", _MAX_LIST_BYTES)
    except EnginebayError as error:
        raise LoadFailed(describe_in_full(error), "; ".join(filter(None, (error.hint, _SKIP_HINT)))) from None
    finally:
        client.close()
    return parse_listed_model(server, body)


def parse_listed_model(server: RemoteServer, body: bytes) -> ListedModel:
    """Return the model's entry in the server's model list. Pure."""
    entries = _parse_entries(body)
    if entries is None:
        raise LoadFailed(
            f"{server.authority} did not return a list of models",
            f"set openai.url to the base URL including /v1; {_SKIP_HINT}",
        )
    if not entries:
        return ListedModel(warnings=(f"{server.authority} lists no models; cannot check that it has {server.model}",))
    entry = entries.get(server.model)
    if entry is None:
        raise LoadFailed(
            f"{server.authority} has no model {server.model!r}; it has {_list_nearest(server.model, list(entries))}",
            f"set openai.model to one of its names; {_SKIP_HINT}",
        )
    return ListedModel(_read_context_length(entry))


def _parse_entries(body: bytes) -> dict[str, Mapping[str, Any]] | None:
    try:
        listing = json.loads(body)
    except (ValueError, RecursionError):
        return None
    rows = listing.get("data") if isinstance(listing, dict) else listing
    if not isinstance(rows, list):
        return None
    return {row["id"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)}


def _read_context_length(entry: Mapping[str, Any]) -> int:
    values = (entry.get(name) for name in _CONTEXT_FIELDS)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0), 0)


def _list_nearest(wanted: str, names: list[str]) -> str:
    """Return a few of the names, closest match first."""
    near = get_close_matches(wanted, names, n=_MAX_SHOWN, cutoff=0.3)
    shown = [*near, *(name for name in names if name not in near)][:_MAX_SHOWN]
    text = ", ".join("".join(char if char.isprintable() else "?" for char in name[:80]) for name in shown)
    return f"{text} and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else text

"""What a server says about its models, asked once at load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from enginebay.engines.openai.asking import Client
from enginebay.engines.openai.failures import in_full
from enginebay.engines.openai.remote import Remote
from enginebay.errors import EnginebayError, LoadFailed

_MOST = 1 << 24
_SHOWN = 5
_CONTEXTS = ("max_model_len", "context_length", "context_window", "max_context_length")
_SKIP = "if it is right as it is, set openai.verify: false"


@dataclass(frozen=True, slots=True)
class Listed:
    """The model as the server lists it."""

    context_length: int = 0  # 0: it does not say
    warnings: tuple[str, ...] = ()


async def look_up(remote: Remote) -> Listed:
    """Raises `LoadFailed` when the server does not answer, refuses the key, or does not have the model."""
    client = Client(remote)
    try:
        body = await client.fetch("/models", _MOST)
    except EnginebayError as error:
        raise LoadFailed(in_full(error), "; ".join(filter(None, (error.hint, _SKIP)))) from None
    finally:
        client.close()
    return listed(remote, body)


def listed(remote: Remote, body: bytes) -> Listed:
    """The model's entry in a list of models. Pure."""
    entries = _entries(body)
    if entries is None:
        raise LoadFailed(
            f"what {remote.place} gives as its models is no list of models",
            f"openai.url is the address up to and with /v1; {_SKIP}",
        )
    if not entries:
        return Listed(warnings=(f"{remote.place} lists no models: whether it has {remote.model} is not known",))
    entry = entries.get(remote.model)
    if entry is None:
        raise LoadFailed(
            f"{remote.place} has no model {remote.model!r}; it has {_some(remote.model, list(entries))}",
            f"set openai.model to one of its names; {_SKIP}",
        )
    return Listed(_context(entry))


def _entries(body: bytes) -> dict[str, Mapping[str, Any]] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    rows = found.get("data") if isinstance(found, dict) else found
    if not isinstance(rows, list):
        return None
    return {row["id"]: row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)}


def _context(entry: Mapping[str, Any]) -> int:
    values = (entry.get(name) for name in _CONTEXTS)
    return next((one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0), 0)


def _some(wanted: str, names: list[str]) -> str:
    """A few of the names, the nearest first."""
    near = get_close_matches(wanted, names, n=_SHOWN, cutoff=0.3)
    shown = [*near, *(name for name in names if name not in near)][:_SHOWN]
    text = ", ".join("".join(char if char.isprintable() else "?" for char in name[:80]) for name in shown)
    return f"{text} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else text

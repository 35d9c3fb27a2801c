"""Log probabilities in the two forms the OpenAI API has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import TokenLogprobs

TokenBytes = Callable[[int], bytes]

_FLOOR = -9999.0  # JSON has no infinity; this is what OpenAI writes for a token that cannot be


def chat_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> dict[str, Any]:
    return {"content": [{**_entry(one.token_id, one.logprob, token_bytes), "top_logprobs": [
        _entry(token, logprob, token_bytes) for token, logprob in one.top
    ]} for one in tokens], "refusal": None}  # fmt: skip


def _entry(token: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    raw = token_bytes(token)
    return {
        "token": raw.decode("utf-8", "replace") if raw else f"token_id:{token}",
        "logprob": max(logprob, _FLOOR),
        "bytes": list(raw) if raw else None,
    }


def completion_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes, offset: int) -> dict[str, Any]:
    """`offset`: characters of text before the first of these tokens."""
    texts = [_name(one.token_id, token_bytes) for one in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, _FLOOR) for one in tokens],
        "top_logprobs": [
            {_name(token, token_bytes): max(logprob, _FLOOR) for token, logprob in reversed(one.top)} for one in tokens
        ],
        "text_offset": offsets,
    }


def _name(token: int, token_bytes: TokenBytes) -> str:
    """A token as text; half a character as OpenAI writes it."""
    raw = token_bytes(token)
    if not raw:
        return f"token_id:{token}"
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

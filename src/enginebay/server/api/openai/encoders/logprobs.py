"""Encodes log probabilities in the two formats of the OpenAI API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import TokenLogprobs

TokenBytes = Callable[[int], bytes]

_MIN_LOGPROB = -9999.0  # JSON has no infinity; OpenAI uses this for impossible tokens


def encode_chat_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> dict[str, Any]:
    return {"content": [{**_encode_entry(token.token_id, token.logprob, token_bytes), "top_logprobs": [
        _encode_entry(token_id, logprob, token_bytes) for token_id, logprob in token.top
    ]} for token in tokens], "refusal": None}  # fmt: skip


def _encode_entry(token_id: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    raw = token_bytes(token_id)
    return {
        "token": raw.decode("utf-8", "replace") if raw else f"token_id:{token_id}",
        "logprob": max(logprob, _MIN_LOGPROB),
        "bytes": list(raw) if raw else None,
    }


def encode_completion_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes, offset: int) -> dict[str, Any]:
    """Encode the tokens. `offset`: characters before the first of them."""
    texts = [_decode_token(token.token_id, token_bytes) for token in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(token.logprob, _MIN_LOGPROB) for token in tokens],
        "top_logprobs": [
            {
                _decode_token(token_id, token_bytes): max(logprob, _MIN_LOGPROB)
                for token_id, logprob in reversed(token.top)
            }
            for token in tokens
        ],
        "text_offset": offsets,
    }


def _decode_token(token_id: int, token_bytes: TokenBytes) -> str:
    """Return the token's text, or OpenAI's `bytes:` notation for a partial character."""
    raw = token_bytes(token_id)
    if not raw:
        return f"token_id:{token_id}"
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

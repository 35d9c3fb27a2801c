"""Log probabilities in the two forms the OpenAI API has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from enginebay.contract import TokenLogprobs

TokenBytes = Callable[[int], bytes]

_MIN_LOGPROB = -9999.0  # JSON has no infinity; this is what OpenAI writes for a token that cannot be


def encode_chat_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> dict[str, Any]:
    return {"content": [{**_encode_entry(one.token_id, one.logprob, token_bytes), "top_logprobs": [
        _encode_entry(token, logprob, token_bytes) for token, logprob in one.top
    ]} for one in tokens], "refusal": None}  # fmt: skip


def _encode_entry(token: int, logprob: float, token_bytes: TokenBytes) -> dict[str, Any]:
    raw = token_bytes(token)
    return {
        "token": raw.decode("utf-8", "replace") if raw else f"token_id:{token}",
        "logprob": max(logprob, _MIN_LOGPROB),
        "bytes": list(raw) if raw else None,
    }


def encode_completion_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes, offset: int) -> dict[str, Any]:
    """`offset`: characters of text before the first of these tokens."""
    texts = [_decode_token(one.token_id, token_bytes) for one in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [max(one.logprob, _MIN_LOGPROB) for one in tokens],
        "top_logprobs": [
            {_decode_token(token, token_bytes): max(logprob, _MIN_LOGPROB) for token, logprob in reversed(one.top)}
            for one in tokens
        ],
        "text_offset": offsets,
    }


def _decode_token(token: int, token_bytes: TokenBytes) -> str:
    """A token as text; half a character as OpenAI writes it."""
    raw = token_bytes(token)
    if not raw:
        return f"token_id:{token}"
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

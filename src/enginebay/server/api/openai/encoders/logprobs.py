"""Encodes log probabilities in the two formats of the OpenAI API."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from enginebay.contract import TokenLogprobs
from enginebay.server.api.openai.response_objects import (
    ChatLogprobsObject,
    CompletionLogprobsObject,
    LogprobEntryObject,
    TokenLogprobObject,
)

TokenBytes = Callable[[int], bytes]

_MIN_LOGPROB = -9999.0  # JSON has no infinity; OpenAI uses this for impossible tokens


def encode_chat_logprobs(tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes) -> ChatLogprobsObject:
    return ChatLogprobsObject(
        [
            LogprobEntryObject(
                *_encode_entry(token.token_id, token.logprob, token_bytes),
                [TokenLogprobObject(*_encode_entry(*alternative, token_bytes)) for alternative in token.top],
            )
            for token in tokens
        ]
    )


def _encode_entry(token_id: int, logprob: float, token_bytes: TokenBytes) -> tuple[str, float, list[int] | None]:
    raw = token_bytes(token_id)
    text = raw.decode("utf-8", "replace") if raw else f"token_id:{token_id}"
    return text, max(logprob, _MIN_LOGPROB), list(raw) if raw else None


def encode_completion_logprobs(
    tokens: Sequence[TokenLogprobs], token_bytes: TokenBytes, offset: int
) -> CompletionLogprobsObject:
    """Encode the tokens. `offset`: characters before the first of them."""
    texts = [_decode_token(token.token_id, token_bytes) for token in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return CompletionLogprobsObject(
        texts,
        [max(token.logprob, _MIN_LOGPROB) for token in tokens],
        [
            {
                _decode_token(token_id, token_bytes): max(logprob, _MIN_LOGPROB)
                for token_id, logprob in reversed(token.top)
            }
            for token in tokens
        ],
        offsets,
    )


def _decode_token(token_id: int, token_bytes: TokenBytes) -> str:
    """Return the token's text, or OpenAI's `bytes:` notation for a partial character."""
    raw = token_bytes(token_id)
    if not raw:
        return f"token_id:{token_id}"
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

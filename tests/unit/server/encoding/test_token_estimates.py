from __future__ import annotations

from typing import Any

import pytest

from enginebay.contract import GenerateRequest
from enginebay.server.encoding.response_writer import estimate_completion_tokens, estimate_prompt_tokens

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        ({"token_ids": (1, 2, 3)}, 3),
        ({"text": "a"}, 1),
        ({"text": "a" * 400}, 100),
        ({"messages": ({"role": "user", "content": "a" * 396},)}, 100),
        ({"messages": ({"role": "user", "content": [{"type": "text", "text": "a" * 392}, PICTURE]},)}, 102),
        ({"messages": ({"role": "user", "content": None},)}, 1),
        ({"text": "a" * 40, "extras": {"tools": [{"description": "b" * 40}], "parallel": True}}, 20),
    ],
)
def test_prompt_tokens_are_estimated_from_text(request_: dict[str, Any], tokens: int) -> None:
    assert estimate_prompt_tokens(GenerateRequest(**request_)) == tokens


@pytest.mark.parametrize(("pieces", "chars", "tokens"), [(0, 0, 0), (3, 3, 3), (1, 400, 100), (5, 0, 5)])
def test_completion_tokens_are_estimated_from_text(pieces: int, chars: int, tokens: int) -> None:
    assert estimate_completion_tokens(pieces, chars) == tokens

"""Plans the thought of a chat: whether the prompt opens it, when it ends, and what binds the answer after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.contract import GenerateRequest
from enginebay.server.sessions.model_session import ModelSession


async def read_prompt_end(
    session: ModelSession, request: GenerateRequest, prepared: GenerateRequest, template_options: Mapping[str, Any]
) -> str:
    """Return the end of the prompt as text: it may open or close a thought."""
    if prepared.token_ids is None:
        return ""  # a remote server renders it, and its thoughts come with both tags
    encoder = session.client.prompt_encoder
    text = encoder.decode_end(prepared.token_ids)
    if text is not None or request.messages is None:
        return text or ""
    options = {name: value for name, value in template_options.items() if name != "allow_special_tokens"}
    return await encoder.render_async(request.messages, **options)

"""Chat template variables of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest

# Request fields, and parameter names of the functions that pass the variables on.
_RESERVED_KWARGS = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "self",
        "request",
        "large",
        "allow_special_tokens",
    }
)


def build_template_options(chat_template_kwargs: Mapping[str, Any] | None, **fields: Any) -> dict[str, Any]:
    """Merge `chat_template_kwargs` and the request fields that are set."""
    for name in chat_template_kwargs or ():
        if name in _RESERVED_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {name}", "use the field of that name", param="chat_template_kwargs"
            )
    return {**(chat_template_kwargs or {}), **{name: value for name, value in fields.items() if value is not None}}

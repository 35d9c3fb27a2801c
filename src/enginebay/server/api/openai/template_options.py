"""What a request gives to the model's chat template beside its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest

# Fields of the request itself, and names that the functions on the way to the template have taken.
_RESERVED_KWARGS = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "self", "request", "large"}
)


def build_template_options(chat_template_kwargs: Mapping[str, Any] | None, **own: Any) -> dict[str, Any]:
    """`chat_template_kwargs` and the request's own fields; those that are not set are left to the template."""
    for name in chat_template_kwargs or ():
        if name in _RESERVED_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {name}", "use the field of that name", param="chat_template_kwargs"
            )
    return {**(chat_template_kwargs or {}), **{name: value for name, value in own.items() if value is not None}}

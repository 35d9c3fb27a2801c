"""Leaves out tools that OpenAI runs on its own servers: there is nothing here that could run them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

# Some have versions: web_search_preview, web_search_2025_08_26, computer_use_preview.
HOSTED_TOOLS = (
    "web_search", "file_search", "code_interpreter", "mcp", "image_generation", "local_shell", "shell", "apply_patch",
    "computer", "computer_use", "tool_search",
)  # fmt: skip
_HOSTED = re.compile(rf"({'|'.join(HOSTED_TOOLS)})(_preview)?(_\d{{4}}_\d{{2}}_\d{{2}})?")
_MAX_SHOWN = 8

T = TypeVar("T", bound=Mapping[str, Any])


def is_hosted(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def drop_hosted_tools(tools: Sequence[T] | None, ignored: dict[str, str]) -> list[T] | None:
    """Return the tools that the client runs itself. Note the others as ignored."""
    if tools is None:
        return None
    kept = [tool for tool in tools if not is_hosted(tool)]
    if len(kept) < len(tools):
        kinds = list(dict.fromkeys(str(tool["type"]) for tool in tools if is_hosted(tool)))
        shown = ", ".join(kinds[:_MAX_SHOWN]) + (
            f" and {len(kinds) - _MAX_SHOWN} more" if len(kinds) > _MAX_SHOWN else ""
        )
        ignored["tools"] = f"{shown} would run on OpenAI's servers"
    return kept

"""A request in the shape that Claude Code sends: attribution, a long system prompt, many tools, a session."""

from __future__ import annotations

from typing import Any

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "x-api-key": "none",
    "user-agent": "claude-cli/2.1.177 (external, cli)",
}
SYSTEM_CHARS = 25_000
_TOOLS = [
    "Agent",
    "Bash",
    "BashOutput",
    "Edit",
    "EnterPlanMode",
    "ExitPlanMode",
    "Glob",
    "Grep",
    "KillShell",
    "ListMcpResources",
    "NotebookEdit",
    "Read",
    "ReadMcpResource",
    "Skill",
    "SlashCommand",
    "Task",
    "TaskCreate",
    "TaskUpdate",
    "TodoWrite",
    "WebFetch",
    "Write",
    "AskUserQuestion",
]
_CACHED = {"type": "ephemeral", "ttl": "1h"}


def _build_tool(name: str) -> dict[str, Any]:
    item = {
        "type": "object",
        "properties": {
            "content": {"type": "string", "minLength": 1, "description": "What is to be done"},
            "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
            "limit": {"type": "number", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        },
        "required": ["content", "status"],
        "additionalProperties": False,
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "The absolute path of the file"},
            "items": {"type": "array", "items": item, "minItems": 1, "maxItems": 4},
            "answers": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}},
            "pattern": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["file_path"],
        "additionalProperties": False,
    }  # fmt: skip
    return {
        "name": name,
        "description": f"{name}: use it well. " * 60,
        "input_schema": schema,
        "eager_input_streaming": True,
    }


def build_claude_code_request(model: str, prompt: str, nonce: str = "36ee5", **fields: Any) -> dict[str, Any]:
    """`nonce`: the part of the attribution that changes with every request."""
    attribution = f"x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch={nonce};"
    return {
        "model": model,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nThe date is today.\n</system-reminder>"},
                    {"type": "text", "text": prompt, "cache_control": _CACHED},
                ],
            }
        ],
        "system": [
            {"type": "text", "text": attribution},
            {"type": "text", "text": "You are an agent for software engineering.", "cache_control": _CACHED},
            {"type": "text", "text": ("Do the work well. " * 2000)[:SYSTEM_CHARS], "cache_control": _CACHED},
        ],
        "tools": [_build_tool(name) for name in _TOOLS],
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"1b9d6bcd-bbfd"}'},
        "max_tokens": 200_000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "temperature": 1,
        "stream": True,
        **fields,
    }

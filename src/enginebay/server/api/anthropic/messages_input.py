"""Translates requests of the Messages API into chat requests. Pure.

Nothing is dropped silently: a field without effect is named as ignored, any other is refused with a hint. The fields of the
body itself that are ignored or refused are in `fields.field_table`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import ContextOverflow, InvalidRequest, RequestError, Unsupported
from enginebay.server.api.anthropic.conversation_input import to_chat_messages
from enginebay.server.api.anthropic.input_notes import InputNotes, describe_value, read_string
from enginebay.server.api.anthropic.schemas import MessagesBody, MessagesPrompt
from enginebay.server.api.openai.schemas import ChatBody
from enginebay.util.limit_errors import make_limit_error

# Tools that run on Anthropic's servers, by the start of their type.
SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "advisor", "mcp_toolset")
_UNUSED_TOOL_FIELDS = ("allowed_callers", "defer_loading", "eager_input_streaming", "input_examples")
_TOOL_FIELDS = frozenset(("type", "name", "description", "input_schema", "strict", *_UNUSED_TOOL_FIELDS))
_TOOL_EXAMPLE = '{"name": "…", "input_schema": {"type": "object", "properties": {…}}}'
_CHOICE_FIELDS = frozenset(("type", "name", "disable_parallel_tool_use"))
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_SESSION = re.compile(r"_session_([\w-]{1,128})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class TranslatedMessages:
    """A request as a chat, and what its headers say of it."""

    chat: ChatBody
    notes: InputNotes
    hides_thinking: bool  # thinking blocks come without their text


def translate_messages(
    body: MessagesPrompt, limits: ServerLimits, accepts_images: bool, refuses_unknown: bool = False
) -> TranslatedMessages:
    """Return the chat. Raise `RequestError` that names the field."""
    notes = InputNotes(refuses_unknown)
    messages = to_chat_messages(body, limits, notes, accepts_images)
    tools = _to_chat_tools(body.tools, limits, notes)
    choice, parallel = _to_tool_choice(body.tool_choice, tools, notes)
    thinking, hides_thinking = _to_thinking(body.thinking, notes)
    chat = ChatBody(
        model=body.model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        continue_final_message=True if messages[-1]["role"] == "assistant" else None,
        response_format=_to_response_format(body, notes),
        reasoning_effort=_read_effort(body.output_config, notes),
        **thinking,
        **(_to_generation_fields(body) if isinstance(body, MessagesBody) else {}),
    )
    return TranslatedMessages(chat, notes, hides_thinking)


def _to_generation_fields(body: MessagesBody) -> dict[str, Any]:
    return {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences or None,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "prompt_cache_key": read_session(body.metadata) or None,
    }


def read_session(metadata: Mapping[str, Any] | None) -> str:
    """Return the session that `metadata.user_id` names, or "". Claude Code names its own, in one of two forms."""
    user = (metadata or {}).get("user_id")
    if not isinstance(user, str):
        return ""
    if user.startswith("{"):
        try:
            session = msgspec.json.decode(user, type=dict[str, Any]).get("session_id")
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return ""
        return session[:128] if isinstance(session, str) else ""
    match = _SESSION.search(user)
    return match[1] if match else ""


# Tools


def _to_chat_tools(
    tools: Sequence[Mapping[str, Any]] | None, limits: ServerLimits, notes: InputNotes
) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if len(tools) > limits.tools:
        raise make_limit_error(f"tools has {len(tools)} entries", limits, "tools", "tools")
    translated = [_to_chat_tool(tool, f"tools[{number}]", notes) for number, tool in enumerate(tools)]
    return [tool for tool in translated if tool is not None]


def _to_chat_tool(tool: Mapping[str, Any], where: str, notes: InputNotes) -> dict[str, Any] | None:
    """Return the tool of a chat, or None for one that runs on Anthropic's servers."""
    kind = tool.get("type")
    if isinstance(kind, str) and kind.startswith(SERVER_TOOLS):
        notes.ignore(f"tools.{read_string(tool, 'name', where, 'tools')}", "it runs on Anthropic's servers")
        return None
    if kind not in (None, "custom"):
        raise Unsupported(
            f"{where}.type is {describe_value(kind)}", f"describe the tool itself: {_TOOL_EXAMPLE}", param="tools"
        )
    for field in _UNUSED_TOOL_FIELDS:
        if tool.get(field) is not None:
            notes.ignore(f"tools.{field}", "the server does not use it")
    notes.ignore_others(tool, _TOOL_FIELDS, "tools", "tools")
    name = read_string(tool, "name", where, "tools")
    schema = tool.get("input_schema")
    if not isinstance(schema, Mapping):
        raise InvalidRequest(f"{where}.input_schema is {describe_value(schema)}", f"use {_TOOL_EXAMPLE}", param="tools")
    optional = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": name, **optional, "parameters": schema}}


def _to_tool_choice(
    choice: Mapping[str, Any] | None, tools: Sequence[Any] | None, notes: InputNotes
) -> tuple[Any, bool | None]:
    """Return `tool_choice` and `parallel_tool_calls` of a chat."""
    if choice is None:
        return None, None
    kind = choice.get("type")
    notes.ignore_others(choice, _CHOICE_FIELDS, "tool_choice", "tool_choice")
    if kind not in (*_CHOICES, "tool"):
        raise _invalid_choice(f"tool_choice.type is {describe_value(kind)}", "use auto, any, tool or none")
    if kind in ("any", "tool") and not tools:
        raise _invalid_choice(f"tool_choice.type is {kind!r}, but there are no tools", "add tools, or use auto")
    disable = choice.get("disable_parallel_tool_use")
    if not isinstance(disable, (bool, type(None))):
        raise _invalid_choice("tool_choice.disable_parallel_tool_use is not a boolean", "use true or false")
    parallel = False if disable else None
    if kind == "tool":
        name = read_string(choice, "name", "tool_choice", "tool_choice")
        return {"type": "function", "function": {"name": name}}, parallel
    return _CHOICES[str(kind)], parallel


def _invalid_choice(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint, param="tool_choice")


# Thinking and output


def _to_thinking(thinking: Mapping[str, Any] | None, notes: InputNotes) -> tuple[dict[str, Any], bool]:
    """Return the thinking switches of the chat, and whether thoughts are hidden."""
    if thinking is None:
        return {}, False
    kind = thinking.get("type")
    notes.ignore_others(thinking, frozenset(("type", "budget_tokens", "display")), "thinking", "thinking")
    display = thinking.get("display")
    if display not in (None, "summarized", "omitted"):
        raise _invalid_thinking(f"thinking.display is {describe_value(display)}", "use summarized or omitted")
    hides = display == "omitted"
    if kind in ("disabled", "between_tools"):
        return {"enable_thinking": False}, hides
    if kind == "adaptive":
        return {"enable_thinking": True}, hides
    if kind != "enabled":
        raise _invalid_thinking(f"thinking.type is {describe_value(kind)}", "use enabled, adaptive or disabled")
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int) or isinstance(budget, bool) or not 1 <= budget < 2**31:
        raise _invalid_thinking(
            f"thinking.budget_tokens is {describe_value(budget)}", "send an integer, or use type adaptive"
        )
    return {"enable_thinking": True, "max_reasoning_tokens": budget}, hides


def _invalid_thinking(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint, param="thinking")


def _read_effort(config: Mapping[str, Any] | None, notes: InputNotes) -> str | None:
    if config is None:
        return None
    notes.ignore_others(config, frozenset(("effort", "format")), "output_config", "output_config")
    effort = config.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise InvalidRequest(
            f"output_config.effort is {describe_value(effort)}",
            f"use one of {', '.join(_EFFORTS)}",
            param="output_config",
        )
    return effort


def _to_response_format(body: MessagesPrompt, notes: InputNotes) -> dict[str, Any] | None:
    configured = (body.output_config or {}).get("format")
    if configured is not None and body.output_format is not None:
        raise InvalidRequest(
            "output_config.format and output_format are mutually exclusive",
            "remove output_format",
            param="output_format",
        )
    param = "output_format" if body.output_format is not None else "output_config"
    output_format = body.output_format if configured is None else configured
    if output_format is None:
        return None
    kind = output_format.get("type") if isinstance(output_format, Mapping) else None
    if kind != "json_schema" or not isinstance(output_format.get("schema"), Mapping):
        raise InvalidRequest(f"{param} has no JSON schema", 'use {"type": "json_schema", "schema": {…}}', param=param)
    notes.ignore_others(output_format, frozenset(("type", "schema")), f"{param}.format" if configured else param, param)
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": output_format["schema"]}}


# The names of this API for those of a chat

_FIELD_NAMES = {
    "continue_final_message": "messages",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "thinking",
    "max_reasoning_tokens": "thinking.budget_tokens",
}
_CHAT_FIELDS = re.compile(
    r"\b(continue_final_message|response_format\.json_schema|response_format|parallel_tool_calls|reasoning_effort|"
    r"enable_thinking|max_reasoning_tokens)\b"
)


def to_messages_error(error: RequestError) -> RequestError:
    """Rename the chat fields in an error to those of this API."""

    def rename_fields(text: str) -> str:
        text = _CHAT_FIELDS.sub(lambda match: _FIELD_NAMES[match[1]], text)
        return text.replace("].function.parameters", "].input_schema").replace("].function.", "].")

    if isinstance(error, ContextOverflow):
        return ContextOverflow(error.message, "shorten the conversation", param="messages")
    param = error.param and _FIELD_NAMES.get(error.param, rename_fields(error.param))
    return type(error)(rename_fields(error.message), rename_fields(error.hint), param=param)


def rename_notes(notes: Mapping[str, str]) -> dict[str, str]:
    """Rename the chat fields that a header names to those of this API."""
    return {_FIELD_NAMES.get(name, name): detail for name, detail in notes.items()}

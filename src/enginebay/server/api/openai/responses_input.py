"""Translates requests to /v1/responses into chat requests. Pure.

Nothing is dropped silently: what a chat cannot express is refused with a hint, and an unknown field is noted in `unknown`, or
refused if that is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.server.api.fields.unknown_fields import note_unknown_keys, shorten_name
from enginebay.server.api.openai.reasoning.reasoning_items import (
    add_assistant_text,
    add_reasoning_item,
    drop_lone_thoughts,
)
from enginebay.server.api.openai.responses_api.stored_items import decode_summary
from enginebay.server.api.openai.responses_api.tool_names import join_tool_name, to_custom_arguments
from enginebay.server.api.openai.schema_fields import GenerationFields
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.util.limit_errors import make_limit_error

UnknownFields = dict[str, str] | None  # field: why it is ignored

_ROLES = ("user", "assistant", "system", "developer")
_MESSAGE_KEYS = frozenset(("type", "role", "content", "id", "status", "phase"))
_PART_KEYS = frozenset(("type", "text", "refusal", "annotations", "logprobs", "parsed"))
_IMAGE_KEYS = frozenset(("type", "image_url", "detail", "file_id"))
_CALL_KEYS = frozenset(
    ("type", "call_id", "name", "namespace", "arguments", "input", "id", "status", "parsed_arguments")
)
_OUTPUT_KEYS = frozenset(("type", "call_id", "output", "id", "status", "name", "namespace"))
_TOOL_KEYS = frozenset(("type", "name", "description", "parameters", "strict"))
FORMAT_KEYS = ("type", "name", "description", "schema", "strict")
_TOOL_EXAMPLE = '{"type": "function", "name": "…"}'
_SUMMARY_HEADING = "Summary of the conversation so far:"
_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_INCLUDED = (_LOGPROBS, _ENCRYPTED)  # what can be added to a response
_MAX_SHOWN = 8
_WHOLE_INPUT = "send the call too, or continue its response with previous_response_id"

# Fields


def check_stream_options(body: ResponsesBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options requires stream", "set stream to true", param="stream_options")


def note_includes(body: ResponsesBody, ignored: dict[str, str]) -> None:
    """Note what the response will not include."""
    others = [shorten_name(name) for name in body.include or () if name not in _INCLUDED]
    if others:
        shown = ", ".join(others[:_MAX_SHOWN]) + (", ..." if len(others) > _MAX_SHOWN else "")
        ignored["include"] = f"{shown}: only {' and '.join(_INCLUDED)} are supported"


def read_logprobs(body: ResponsesBody) -> int | None:
    """Return the alternatives per token, or None for no log probabilities."""
    if _LOGPROBS in (body.include or ()):
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequest(
            "top_logprobs requires log probabilities", f"add {_LOGPROBS} to include", param="top_logprobs"
        )
    return None


_SHARED_FIELDS = (
    "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "no_repeat_ngram_size", "do_sample", "min_tokens", "ignore_eos", "stop_token_ids", "logit_bias", "best_of", "num_beams",
    "length_penalty", "early_stopping", "seed", "stop",
)  # fmt: skip


def to_generation_fields(body: ResponsesBody) -> GenerationFields:
    """Return the fields that all generating endpoints share."""
    shared = {name: getattr(body, name) for name in _SHARED_FIELDS}
    return GenerationFields(**shared, response_format=to_response_format(body))


def to_response_format(body: ResponsesBody) -> dict[str, Any] | None:
    """Translate `text.format` to the `response_format` of a chat."""
    text_format = body.text.format if body.text is not None else None
    if text_format is None or text_format.get("type") != "json_schema":
        return text_format
    return {"type": "json_schema", "json_schema": {key: value for key, value in text_format.items() if key != "type"}}


# Tools


def to_chat_tools(
    tools: Sequence[Mapping[str, Any]] | None, unknown: UnknownFields = None
) -> list[dict[str, Any]] | None:
    """Translate the flat function tools of this API to those of a chat."""
    if tools is None:
        return None
    return [_to_chat_tool(tool, f"tools[{number}]", unknown) for number, tool in enumerate(tools)]


def _to_chat_tool(tool: Mapping[str, Any], where: str, unknown: UnknownFields) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise Unsupported(
            f"{where} has type {_describe_value(kind)}", "only function tools are supported", param="tools"
        )
    _check_keys({key: value for key, value in tool.items() if value is not False}, _TOOL_KEYS, where, unknown)
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def to_chat_tool_choice(choice: Any) -> Any:
    """Translate `tool_choice` to that of a chat."""
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        if isinstance(tools, list):
            tools = [_to_named_tool(tool, "a tool of allowed_tools", f"use {_TOOL_EXAMPLE}") for tool in tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return _to_named_tool(choice, "tool_choice", f"use auto, none, required, {_TOOL_EXAMPLE}, or allowed_tools")


def _to_named_tool(tool: Any, where: str, hint: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind not in ("function", "custom"):
        raise Unsupported(f"{where} has type {_describe_value(kind)}", hint, param="tool_choice")
    if not isinstance(tool.get("name"), str):
        raise InvalidRequest(f"{where} has no name", hint, param="tool_choice")
    return {"type": "function", "function": {"name": _read_tool_name(tool, tool["name"])}}


def _read_tool_name(item: Mapping[str, Any], name: str) -> str:
    """Return the function's name of a tool that may have a namespace."""
    namespace = item.get("namespace")
    return join_tool_name(namespace if isinstance(namespace, str) else None, name)


# Input to messages


def to_chat_messages(
    instructions: str | None,
    items: Sequence[Mapping[str, Any]],
    limits: ServerLimits,
    history: Sequence[Mapping[str, Any]] = (),
    unknown: UnknownFields = None,
) -> list[dict[str, Any]]:
    """Translate instructions, the items before the request and its own to the messages of a chat."""
    if len(items) + len(history) > limits.messages:
        raise make_limit_error(f"input has {len(items) + len(history)} entries", limits, "messages", "input")
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}  # of the calls so far, by call id
    for item in history:
        _add_item(item, "the previous input", messages, names, {})
    for number, item in enumerate(items):
        _add_item(item, f"input[{number}]", messages, names, unknown)
    messages = drop_lone_thoughts(messages)
    if not messages:
        raise _make_input_error("input has no message", "send at least one")
    return messages


def list_input_items(body: ResponsesBody) -> Sequence[Mapping[str, Any]]:
    """Return the input as items."""
    return [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input or ()


def check_item(item: Mapping[str, Any], where: str) -> None:
    """Raise unless this is an item that a prompt can have. The call of an output may be stored before it."""
    call_id = item.get("call_id")
    _add_item(item, where, [], {call_id: ""} if isinstance(call_id, str) else {}, {})


def _add_item(
    item: Mapping[str, Any],
    where: str,
    messages: list[dict[str, Any]],
    names: dict[str, str],
    unknown: UnknownFields,
) -> None:
    kind = "message" if item.get("type") is None else item["type"]
    if kind == "message":
        _check_keys(item, _MESSAGE_KEYS, where, unknown)
        _add_message(item, where, messages, unknown)
    elif kind in ("function_call", "custom_tool_call"):
        _check_keys(item, _CALL_KEYS, where, unknown)
        _add_call(item, where, messages, names)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        _check_keys(item, _OUTPUT_KEYS, where, unknown)
        _add_call_output(item, where, messages, names, unknown)
    elif kind == "reasoning":
        add_reasoning_item(item, where, messages)
    elif kind in ("compaction", "compaction_summary"):
        summary = decode_summary(item.get("encrypted_content"), where)
        messages.append({"role": "assistant", "content": f"{_SUMMARY_HEADING}\n{summary}"})
    else:
        raise Unsupported(
            f"{where} has type {_describe_value(kind)}",
            "use message, reasoning, function_call, function_call_output, custom_tool_call, custom_tool_call_output, "
            "compaction or item_reference",
            param="input",
        )


def _add_message(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]], unknown: UnknownFields) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise _make_input_error(f"{where}.role is {_describe_value(role)}", f"use one of {', '.join(_ROLES)}")
    text = _read_content(item.get("content"), f"{where}.content", unknown)
    first_is_system = len(messages) == 1 and messages[0]["role"] == "system"
    if role == "system" and first_is_system:  # many chat templates accept only one, at the start
        messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
    elif role == "assistant" and isinstance(text, str):
        add_assistant_text(text, messages)
    else:
        messages.append({"role": role, "content": text})


def _read_content(content: Any, where: str, unknown: UnknownFields) -> str | list[dict[str, Any]]:
    """Return the text; if there are images, the parts of a chat message. The engine decides whether it takes images."""
    if not isinstance(content, list) or not any(_is_image(part) for part in content):
        return _read_text(content, where, unknown)
    return [
        _to_image_part(part, f"{where}[{number}]", unknown)
        if _is_image(part)
        else {"type": "text", "text": _read_part(part, f"{where}[{number}]", unknown)}
        for number, part in enumerate(content)
    ]


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "input_image"


def _to_image_part(part: Mapping[str, Any], where: str, unknown: UnknownFields) -> dict[str, Any]:
    _check_keys(part, _IMAGE_KEYS, where, unknown)
    if not isinstance(part.get("image_url"), str):
        raise _make_input_error(f"{where}.image_url is {_describe_value(part.get('image_url'))}", "send a data URL")
    detail = {"detail": part["detail"]} if part.get("detail") is not None else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


def _read_text(content: Any, where: str, unknown: UnknownFields) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _make_input_error(f"{where} is {_describe_value(content)}", "send a string or a list of text parts")
    return "\n".join(_read_part(part, f"{where}[{number}]", unknown) for number, part in enumerate(content))


def _read_part(part: Any, where: str, unknown: UnknownFields) -> str:
    if not isinstance(part, Mapping):
        raise _make_input_error(f"{where} is not an object", 'use {"type": "input_text", "text": "…"}')
    kind = part.get("type")
    if kind not in ("input_text", "output_text", "refusal"):
        raise Unsupported(
            f"{where} has type {_describe_value(kind)}", "only input_text and output_text are supported", param="input"
        )
    _check_keys(part, _PART_KEYS, where, unknown)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise _make_input_error(f"{where} has no text", 'use {"type": "input_text", "text": "…"}')
    return text


def _add_call(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]], names: dict[str, str]) -> None:
    is_custom = item["type"] == "custom_tool_call"
    call_id, name, text = (
        _read_string(item, key, where) for key in ("call_id", "name", "input" if is_custom else "arguments")
    )
    arguments = to_custom_arguments(text) if is_custom else text
    names[call_id] = name = _read_tool_name(item, name)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    if messages and messages[-1]["role"] == "assistant":  # text and calls of one turn
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})


def _add_call_output(
    item: Mapping[str, Any],
    where: str,
    messages: list[dict[str, Any]],
    names: dict[str, str],
    unknown: UnknownFields,
) -> None:
    call_id = _read_string(item, "call_id", where)
    if call_id not in names:
        raise _make_input_error(
            f"{where} refers to call {_describe_value(call_id)}, which is not in the input", _WHOLE_INPUT
        )
    text = _read_text(item.get("output"), f"{where}.output", unknown)
    messages.append({"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": text})


def _check_keys(item: Mapping[str, Any], known: frozenset[str], where: str, unknown: UnknownFields) -> None:
    if unknown is not None:
        note_unknown_keys(item, known, where, unknown)
        return
    for key, value in item.items():
        if key not in known and value is not None:
            hint = f"use {', '.join(sorted(known))}"
            raise InvalidRequest(f"unknown field {where}.{key[:40]}", hint, param=where.partition("[")[0])


def _read_string(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise _make_input_error(f"{where}.{key} is {_describe_value(value)}", "send a string")
    return value


def _describe_value(value: Any) -> str:
    """Return a short description of a client's value for a message."""
    if value is None:
        return "missing"
    if isinstance(value, (str, int, float)):
        return repr(value)[:60]
    return "a list" if isinstance(value, list) else "an object"


def _make_input_error(message: str, hint: str) -> InvalidRequest:
    return InvalidRequest(message, hint, param="input")


# Errors

_FIELD_NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "prompt": "input",
}
_CHAT_FIELD_PATTERN = re.compile(r"\b(max_tokens|messages|response_format\.json_schema|response_format)\b")


def to_responses_error(error: RequestError) -> RequestError:
    """Rename the chat fields in an error to those of this API."""

    def rename_fields(text: str) -> str:
        return _CHAT_FIELD_PATTERN.sub(lambda match: _FIELD_NAMES[match[1]], text).replace("].function.", "].")

    return type(error)(
        rename_fields(error.message), rename_fields(error.hint), param=_FIELD_NAMES.get(error.param or "", error.param)
    )

"""Translates requests to /v1/responses into chat requests. Pure.

Nothing is dropped silently: what a chat cannot express is refused with a hint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from enginebay.config.sections.server_section import ServerLimits
from enginebay.errors import InvalidRequest, RequestError, Unsupported
from enginebay.server.api.openai.responses_api.stored_items import decode_summary
from enginebay.server.api.openai.responses_api.tool_names import join_tool_name, to_custom_arguments
from enginebay.server.api.openai.schema_fields import GenerationFields
from enginebay.server.api.openai.schemas import ResponsesBody
from enginebay.util.limit_errors import make_limit_error

_ROLES = ("user", "assistant", "system", "developer")
_MESSAGE_KEYS = frozenset(("type", "role", "content", "id", "status", "phase"))
_PART_KEYS = frozenset(("type", "text", "refusal", "annotations", "logprobs", "parsed"))
_IMAGE_KEYS = frozenset(("type", "image_url", "detail", "file_id"))
_CALL_KEYS = frozenset(
    ("type", "call_id", "name", "namespace", "arguments", "input", "id", "status", "parsed_arguments")
)
_OUTPUT_KEYS = frozenset(("type", "call_id", "output", "id", "status", "name", "namespace"))
_TOOL_KEYS = frozenset(("type", "name", "description", "parameters", "strict"))
_TOOL_EXAMPLE = '{"type": "function", "name": "…"}'
_SUMMARY_HEADING = "Summary of the conversation so far:"
_LOGPROBS = "message.output_text.logprobs"
_WHOLE_INPUT = "send the call too, or continue its response with previous_response_id"

# Fields of the OpenAI API that are not supported: message and hint.
_REFUSED = {
    "prompt": ("stored prompts are not supported", "send the text as instructions and input"),
    "moderation": ("moderation is not supported", "remove moderation"),
    "context_management": (
        "context management is not supported",
        "remove context_management, or use truncate_prompt_tokens",
    ),
}


# Fields


def check_unsupported_response_fields(body: ResponsesBody) -> None:
    """Raise for unsupported fields, unless their value asks for nothing."""
    for name, (message, hint) in _REFUSED.items():
        if getattr(body, name) not in (None, False):
            raise Unsupported(message, hint, param=name)
    if body.truncation == "auto":
        raise Unsupported(
            "automatic truncation is not supported",
            "remove truncation, and set truncate_prompt_tokens", param="truncation",
        )  # fmt: skip
    if any(value is not None for value in (body.reasoning or {}).values()):
        raise Unsupported(
            "reasoning is not supported: models have no common scale",
            "remove reasoning, or set the template's own switch in chat_template_kwargs", param="reasoning",
        )  # fmt: skip
    if body.text is not None and body.text.verbosity in ("low", "high"):
        raise Unsupported("verbosity is not supported", "ask for the length in instructions", param="text.verbosity")
    _check_stream_options(body)


def _check_stream_options(body: ResponsesBody) -> None:
    if body.stream_options is None:
        return
    if not body.stream:
        raise InvalidRequest("stream_options requires stream", "set stream to true", param="stream_options")
    if body.stream_options.include_obfuscation:
        raise Unsupported("obfuscation is not supported", "remove include_obfuscation", param="stream_options")


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


def to_chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Translate the flat function tools of this API to those of a chat."""
    return None if tools is None else [_to_chat_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]


def _to_chat_tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise Unsupported(
            f"{where} has type {_describe_value(kind)}", "only function tools are supported", param="tools"
        )
    for key, value in tool.items():
        if key not in _TOOL_KEYS and value not in (None, False):
            raise Unsupported(f"{where}.{key[:40]} is not supported", "remove it", param="tools")
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
) -> list[dict[str, Any]]:
    """Translate instructions, the items before the request and its own to the messages of a chat."""
    if len(items) + len(history) > limits.messages:
        raise make_limit_error(f"input has {len(items) + len(history)} entries", limits, "messages", "input")
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    names: dict[str, str] = {}  # of the calls so far, by call id
    for item in history:
        _add_item(item, "the previous input", messages, names)
    for number, item in enumerate(items):
        _add_item(item, f"input[{number}]", messages, names)
    return [message for message in messages if not _is_lone_reasoning(message)]


def list_input_items(body: ResponsesBody) -> Sequence[Mapping[str, Any]]:
    """Return the input as items."""
    return [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input or ()


def check_item(item: Mapping[str, Any], where: str) -> None:
    """Raise unless this is an item that a prompt can have. The call of an output may be stored before it."""
    call_id = item.get("call_id")
    _add_item(item, where, [], {call_id: ""} if isinstance(call_id, str) else {})


def _add_item(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]], names: dict[str, str]) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        _add_message(item, where, messages)
    elif kind in ("function_call", "custom_tool_call"):
        _add_call(item, where, messages, names)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        _add_call_output(item, where, messages, names)
    elif kind == "reasoning":
        _add_reasoning(item, where, messages)
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


def _add_reasoning(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    """Begin an assistant message with the reasoning; the text and the calls that follow join it."""
    content, summary = (_join_reasoning(item.get(key), f"{where}.{key}") for key in ("content", "summary"))
    if content or summary:
        messages.append({"role": "assistant", "content": "", "reasoning_content": content or summary})


def _join_reasoning(parts: Any, where: str) -> str:
    if parts is not None and (not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts)):
        raise _make_input_error(f"{where} is not a list of parts", "send the item as it was received")
    texts = [part.get("text") for part in parts or ()]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is_lone_reasoning(message: Mapping[str, Any]) -> bool:
    return "reasoning_content" in message and not message["content"] and not message.get("tool_calls")


def _add_message(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    _check_keys(item, _MESSAGE_KEYS, where)
    role = item.get("role")
    if role not in _ROLES:
        raise _make_input_error(f"{where}.role is {_describe_value(role)}", f"use one of {', '.join(_ROLES)}")
    text = _read_content(item.get("content"), f"{where}.content")
    first_is_system = len(messages) == 1 and messages[0]["role"] == "system"
    if role == "system" and first_is_system:  # many chat templates accept only one, at the start
        messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{text}"}
    elif role == "assistant" and messages and _is_lone_reasoning(messages[-1]):
        messages[-1]["content"] = text
    else:
        messages.append({"role": role, "content": text})


def _read_content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Return the text; if there are images, the parts of a chat message. The engine decides whether it takes images."""
    if not isinstance(content, list) or not any(_is_image(part) for part in content):
        return _read_text(content, where)
    return [
        _to_image_part(part, f"{where}[{number}]")
        if _is_image(part)
        else {"type": "text", "text": _read_part(part, f"{where}[{number}]")}
        for number, part in enumerate(content)
    ]


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "input_image"


def _to_image_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    _check_keys(part, _IMAGE_KEYS, where)
    if not isinstance(part.get("image_url"), str):
        raise _make_input_error(f"{where}.image_url is {_describe_value(part.get('image_url'))}", "send a data URL")
    detail = {"detail": part["detail"]} if part.get("detail") is not None else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


def _read_text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _make_input_error(f"{where} is {_describe_value(content)}", "send a string or a list of text parts")
    return "\n".join(_read_part(part, f"{where}[{number}]") for number, part in enumerate(content))


def _read_part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise _make_input_error(f"{where} is not an object", 'use {"type": "input_text", "text": "…"}')
    kind = part.get("type")
    if kind not in ("input_text", "output_text", "refusal"):
        raise Unsupported(
            f"{where} has type {_describe_value(kind)}", "only input_text and output_text are supported", param="input"
        )
    _check_keys(part, _PART_KEYS, where)
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise _make_input_error(f"{where} has no text", 'use {"type": "input_text", "text": "…"}')
    return text


def _add_call(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]], names: dict[str, str]) -> None:
    _check_keys(item, _CALL_KEYS, where)
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
    item: Mapping[str, Any], where: str, messages: list[dict[str, Any]], names: dict[str, str]
) -> None:
    _check_keys(item, _OUTPUT_KEYS, where)
    call_id = _read_string(item, "call_id", where)
    if call_id not in names:
        raise _make_input_error(
            f"{where} refers to call {_describe_value(call_id)}, which is not in the input", _WHOLE_INPUT
        )
    text = _read_text(item.get("output"), f"{where}.output")
    messages.append({"role": "tool", "tool_call_id": call_id, "name": names[call_id], "content": text})


def _check_keys(item: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key, value in item.items():
        if key not in known and value is not None:
            raise _make_input_error(f"unknown field {where}.{key[:40]}", f"use {', '.join(sorted(known))}")


def _read_string(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise _make_input_error(f"{where}.{key} is {_describe_value(value)}", "send a string")
    return value


def _describe_value(value: Any) -> str:
    """Return a short description of a client's value for a message."""
    if value is None:
        return "missing"
    return repr(value)[:60] if isinstance(value, (str, int, float)) else f"a {type(value).__name__}"


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

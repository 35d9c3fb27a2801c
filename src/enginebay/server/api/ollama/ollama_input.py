"""Translates requests of the Ollama API to a chat. Pure, but for the notes on ignored and translated fields."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginebay.errors import InvalidRequest
from enginebay.server.api.body_decoder import decode_body
from enginebay.server.api.ollama.schemas import (
    JsonObject,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaOptions,
    OllamaOutputBody,
    Think,
)
from enginebay.server.api.openai.schemas import ChatBody
from enginebay.util.text_format import find_nearest

Notes = dict[str, str]

_LOAD_TIME = "applies at load time: set it in the configuration"
_NO_SAMPLER = "no engine has this sampler"
_IGNORED_OPTIONS = {
    **dict.fromkeys(
        ("num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock", "low_vram", "f16_kv", "numa", "logits_all",
         "vocab_only", "embedding_only", "draft_num_predict"),
        _LOAD_TIME,
    ),
    **dict.fromkeys(("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "typical_p", "penalize_newline"), _NO_SAMPLER),
    "repeat_last_n": "repeat_penalty applies to the prompt and the whole output",
    "num_keep": "a prompt that does not fit is refused, not truncated",
}  # fmt: skip
_OPTION_NAMES = (*OllamaOptions.__struct_fields__, *_IGNORED_OPTIONS)
_CHAT_FIELDS = {
    "enable_thinking": "think", "reasoning_effort": "think", "response_format": "format", "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty", **{name: f"options.{name}" for name in OllamaOptions.__struct_fields__},
}  # fmt: skip
_MAX_UNKNOWN_OPTIONS = 16  # each is named in a header
_MAX_NAME_CHARS = 60
_ANY = ("", "")  # any call

# The first bytes of an image in base64, and its type.
_IMAGE_TYPES = {"/9j/": "jpeg", "iVBORw0KGgo": "png", "UklGR": "webp", "R0lGOD": "gif"}


def read_options(raw: JsonObject | None, ignored: Notes, *, refuse_unknown: bool = False) -> OllamaOptions:
    """Return the options that apply to a request, and note the others in `ignored`. Raise `InvalidRequest`."""
    given = {name: value for name, value in (raw or {}).items() if value is not None}
    known = {name: given.pop(name) for name in OllamaOptions.__struct_fields__ if name in given}
    unknown = [name for name in given if name not in _IGNORED_OPTIONS]
    if len(unknown) > _MAX_UNKNOWN_OPTIONS:
        raise InvalidRequest(f"options has {len(unknown)} unknown entries", "remove them", param="options")
    for name in given:
        shown = name[:_MAX_NAME_CHARS]
        similar = find_nearest(shown, _OPTION_NAMES) if name in unknown else []
        if similar or (refuse_unknown and name in unknown):
            hint = f"did you mean {similar[0]}?" if similar else "remove it"
            raise InvalidRequest(f"unknown option {shown!r}", hint, param=f"options.{shown}")
        ignored[f"options.{shown}"] = _IGNORED_OPTIONS.get(name, "unknown")
    try:
        return decode_body(OllamaOptions, json.dumps(known).encode())
    except InvalidRequest as error:
        raise InvalidRequest(f"options.{error.message}", error.hint, param=f"options.{error.param}") from None


def note_options(options: OllamaOptions, context_length: int, ignored: Notes, translated: Notes) -> None:
    """Note what has no effect, or another one than in Ollama."""
    if options.num_ctx:
        ignored["options.num_ctx"] = f"the configuration sets the context, which is {context_length} tokens"
    if options.repeat_penalty is not None and options.repeat_penalty != 1:
        translated["options.repeat_penalty"] = "repetition_penalty, over the prompt and the whole output"


def rename_notes(notes: Notes) -> None:
    """Give the fields of a chat their names in Ollama."""
    for name in [name for name in notes if name in _CHAT_FIELDS]:
        notes.setdefault(_CHAT_FIELDS[name], notes.pop(name))


def to_chat_body(body: OllamaChatBody, options: OllamaOptions) -> ChatBody:
    messages = translate_messages(body.messages or [])
    return ChatBody(messages=messages, tools=translate_tools(body.tools), **_translate_output_fields(body, options))


def translate_tools(tools: list[JsonObject] | None) -> list[JsonObject] | None:
    return None if tools is None else [{"type": "function", **tool} for tool in tools]


def to_generate_chat(body: OllamaGenerateBody, options: OllamaOptions) -> ChatBody:
    """Return the chat of a prompt that is not raw."""
    messages: list[JsonObject] = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": _build_content(body.prompt or "", body.images, "images")})
    return ChatBody(messages=messages, **_translate_output_fields(body, options))


def check_raw_fields(body: OllamaGenerateBody) -> None:
    if body.raw and (body.system or body.images):
        field = "system" if body.system else "images"
        raise InvalidRequest(f"raw and {field} are mutually exclusive", "remove one of them", param=field)


def _translate_output_fields(body: OllamaOutputBody, options: OllamaOptions) -> dict[str, Any]:
    return {
        "model": body.model,
        "stream": body.stream is not False,
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        **translate_options(options),
        **translate_format(body.format),
        **_translate_think(body.think),
    }


def translate_options(options: OllamaOptions) -> dict[str, Any]:
    """Return the fields of a chat or a completion."""
    shared = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop")
    fields = {name: getattr(options, name) for name in shared}
    fields["repetition_penalty"] = options.repeat_penalty
    fields["seed"] = None if options.seed == -1 else options.seed  # a random one
    fields["max_tokens"] = options.num_predict if options.num_predict and options.num_predict > 0 else None
    return fields


def translate_format(value: str | JsonObject | None) -> dict[str, Any]:
    if not value:
        return {}
    if isinstance(value, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "format", "schema": value}}}
    if value != "json":
        raise InvalidRequest(f"format is {value[:40]!r}", "use json or a JSON schema", param="format")
    return {"response_format": {"type": "json_object"}}


def _translate_think(think: Think | None) -> dict[str, Any]:
    if think is None:
        return {}
    return {"enable_thinking": think} if isinstance(think, bool) else {"reasoning_effort": think}


# Messages


@dataclass(slots=True)
class _WaitingCall:
    id: str
    is_answered: bool = False


class _WaitingCalls:
    """The calls without a result, in order. Each is passed once in each of its queues, however many there are."""

    def __init__(self) -> None:
        self._queues: defaultdict[tuple[str, str], deque[_WaitingCall]] = defaultdict(deque)

    def add(self, call_id: str, name: str) -> None:
        call = _WaitingCall(call_id)
        for key in (("id", call_id), ("name", name), _ANY):
            self._queues[key].append(call)

    def take(self, key: tuple[str, str]) -> str | None:
        """Return the id of the first call of this id or name, which waits no more."""
        queue = self._queues.get(key)
        while queue:
            call = queue.popleft()
            if not call.is_answered:
                call.is_answered = True
                return call.id
        return None


def translate_messages(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the messages in OpenAI's form. Roles and contents are checked there."""
    calls = _WaitingCalls()
    translated = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        role = message.get("role")
        fields: JsonObject = {
            "role": role.lower() if isinstance(role, str) else role,
            "content": _build_content(message.get("content"), message.get("images"), where),
        }
        _check_texts(message, ("thinking", "tool_name", "tool_call_id"), where)
        if message.get("thinking"):
            fields["reasoning_content"] = message["thinking"]
        made = _translate_calls(message.get("tool_calls"), number, where, calls)
        if made:
            fields["tool_calls"] = made
        if fields["role"] == "tool":
            fields |= _answer_call(message, calls)
        translated.append(fields)
    return translated


def _check_texts(fields: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for name in names:
        if not isinstance(fields.get(name), (str, type(None))):
            raise InvalidRequest(f"{where}.{name} is not a string", param="messages")


def _build_content(text: Any, images: Any, where: str) -> Any:
    if images is None or images == []:
        return text
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise InvalidRequest(f"{where}: images must be a list of base64 strings", param="messages")
    parts: list[JsonObject] = [{"type": "text", "text": text}] if text else []
    return parts + [{"type": "image_url", "image_url": {"url": _to_data_url(image)}} for image in images]


def _to_data_url(image: str) -> str:
    kind = next((kind for start, kind in _IMAGE_TYPES.items() if image.startswith(start)), "png")
    return f"data:image/{kind};base64,{image}"


def _translate_calls(value: Any, number: int, where: str, calls: _WaitingCalls) -> list[JsonObject]:
    """Return an assistant's calls, with ids. Add them to those that wait for a result."""
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(call, Mapping) for call in value):
        raise InvalidRequest(f"{where}.tool_calls must be a list of objects", param="messages")
    translated = []
    for index, call in enumerate(value):
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            message = f"{where}.tool_calls[{index}] has no function with a name"
            raise InvalidRequest(message, 'use {"function": {"name": "...", "arguments": {...}}}', param="messages")
        _check_texts(call, ("id",), f"{where}.tool_calls[{index}]")
        given = call.get("id")
        call_id = (
            given if isinstance(given, str) and given else f"c{number % 10**4:04}{index % 10**4:04}"
        )  # nine: Mistral's
        arguments = function.get("arguments")
        if not isinstance(arguments, (dict, str, type(None))):
            raise InvalidRequest(f"{where}.tool_calls[{index}] has arguments that are not an object", param="messages")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        calls.add(call_id, function["name"])
        translated.append(
            {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": text}}
        )
    return translated


def _answer_call(message: JsonObject, calls: _WaitingCalls) -> JsonObject:
    """Return the fields of a tool's result: the id of its call, found by id, else by name, else the first that waits."""
    name, call_id = message.get("tool_name"), message.get("tool_call_id")
    fields: JsonObject = {"name": name} if isinstance(name, str) and name else {}
    if isinstance(call_id, str) and call_id:
        calls.take(("id", call_id))
        return {**fields, "tool_call_id": call_id}
    found = calls.take(("name", fields["name"]) if fields else _ANY)
    return fields if found is None else {**fields, "tool_call_id": found}

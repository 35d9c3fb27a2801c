"""Request schemas of the Messages API beyond its structs: messages, content blocks and tools; and what its fields mean."""

from __future__ import annotations

from enginebay.server.api.anthropic.messages_input import SERVER_TOOLS
from enginebay.server.api.openapi.schema_builders import (
    BOOLEAN,
    OBJECT,
    STRING,
    Schema,
    any_of,
    array,
    const,
    describe,
    enum,
    nullable,
    obj,
    ref,
)

_BODIES = ("MessagesBody", "CountTokensBody")
_TEXTS = any_of(STRING, array(ref("MessagesTextBlock"), minItems=1))
_PARALLEL = {"disable_parallel_tool_use": nullable(BOOLEAN)}
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"}
_BASE64 = {"type": const("base64"), "media_type": STRING, "data": STRING}

MESSAGES_COMPONENTS: dict[str, Schema] = {
    "MessagesTextBlock": obj(
        {"type": const("text"), "text": STRING, "cache_control": {}}, ("cache_control",)
    ),
    "MessagesImageBlock": describe(
        obj(
            {
                "type": const("image"),
                "source": any_of(obj(_BASE64), obj({"type": const("url"), "url": STRING})),
            }
        ),
        "Only for models that accept images.",
    ),
    "MessagesToolResultBlock": obj(
        {
            "type": const("tool_result"),
            "tool_use_id": STRING,
            "content": nullable(
                any_of(STRING, array(any_of(ref("MessagesTextBlock"), ref("MessagesImageBlock")), minItems=1))
            ),
            "is_error": nullable(BOOLEAN),
        },
        ("content", "is_error"),
    ),
    "MessagesAssistantBlock": any_of(
        ref("MessagesTextBlock"),
        obj({"type": const("thinking"), "thinking": STRING, "signature": {}}, ("signature",)),
        obj({"type": const("redacted_thinking")}),
        obj({"type": const("tool_use"), "id": STRING, "name": _NAME, "input": OBJECT}),
    ),
    "MessagesMessage": any_of(
        obj({"role": enum("user", "assistant", "system"), "content": _TEXTS}),
        obj(
            {
                "role": const("user"),
                "content": array(
                    any_of(ref("MessagesTextBlock"), ref("MessagesImageBlock"), ref("MessagesToolResultBlock")),
                    minItems=1,
                ),
            }
        ),
        obj({"role": const("assistant"), "content": array(ref("MessagesAssistantBlock"), minItems=1)}),
        description="One message. If the last one is the assistant's, the response continues it.",
    ),
    "MessagesTool": any_of(
        obj(
            {
                "type": nullable(const("custom")),
                "name": _NAME,
                "description": nullable(STRING),
                "input_schema": ref("ParametersSchema"),
                "strict": nullable(BOOLEAN),
                "cache_control": {},
            },
            ("type", "description", "strict", "cache_control"),
        ),
        describe(
            obj({"type": {"type": "string", "pattern": f"^({'|'.join(SERVER_TOOLS)})"}, "name": STRING}),
            "One of Anthropic's server tools: ignored.",
        ),
    ),
    "MessagesToolChoice": any_of(
        obj({"type": enum("auto", "any"), **_PARALLEL}, tuple(_PARALLEL)),
        obj({"type": const("tool"), "name": _NAME, **_PARALLEL}, tuple(_PARALLEL)),
        obj({"type": const("none")}),
    ),
    "MessagesThinking": any_of(
        obj({"type": const("enabled"), "budget_tokens": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}}),
        obj({"type": enum("adaptive", "disabled")}),
    ),
    "MessagesOutputFormat": obj({"type": const("json_schema"), "schema": ref("JsonSchema")}),
    "MessagesOutputConfig": obj(
        {
            "effort": nullable(enum("low", "medium", "high", "xhigh", "max")),
            "format": nullable(ref("MessagesOutputFormat")),
        },
        ("effort", "format"),
    ),
}  # fmt: skip

_FIELD_SCHEMAS: dict[str, Schema] = {
    "messages": array(ref("MessagesMessage"), minItems=1),
    "system": any_of(STRING, array(ref("MessagesTextBlock"))),
    "tools": array(ref("MessagesTool")),
    "tool_choice": ref("MessagesToolChoice"),
    "thinking": ref("MessagesThinking"),
    "output_config": ref("MessagesOutputConfig"),
    "output_format": ref("MessagesOutputFormat"),
}
MESSAGES_FIELD_SCHEMAS = {(body, field): schema for body in _BODIES for field, schema in _FIELD_SCHEMAS.items()}

_FIELD_DESCRIPTIONS = {
    "system": "The system prompt: a string or text blocks.",
    "tools": "Tools that the model may call. Anthropic's server tools are ignored.",
    "tool_choice": "auto: the model decides. any: at least one call. tool: this tool. none: no calls.",
    "thinking": "Whether the model thinks first. budget_tokens: end the thought after this many tokens.",
    "output_config": "effort: how much the model thinks. format: a JSON schema that the text must match.",
    "output_format": "The older name of output_config.format.",
}
MESSAGES_FIELD_DESCRIPTIONS = {
    **{f"{body}.{field}": text for body in _BODIES for field, text in _FIELD_DESCRIPTIONS.items()},
    "MessagesBody.max_tokens": "Generate at most this many tokens.",
    "MessagesBody.metadata": "user_id: requests of the session that it names go to the same replica of the model.",
    "stop_sequences": "Stop before any of these strings.",
}

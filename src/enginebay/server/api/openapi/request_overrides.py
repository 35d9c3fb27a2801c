"""Request schemas beyond the structs: messages, tools and formats; and the description of each field."""

from __future__ import annotations

from enginebay.server.api.openapi.messages_overrides import (
    MESSAGES_COMPONENTS,
    MESSAGES_FIELD_DESCRIPTIONS,
    MESSAGES_FIELD_SCHEMAS,
)
from enginebay.server.api.openapi.ollama_operations import (
    OLLAMA_COMPONENTS,
    OLLAMA_FIELD_DESCRIPTIONS,
    OLLAMA_FIELD_SCHEMAS,
)
from enginebay.server.api.openapi.schema_builders import (
    BOOLEAN,
    NULL,
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

_TEXT_PART = obj({"type": const("text"), "text": STRING}, ("type",))
_CONTENT = any_of(STRING, array(any_of(_TEXT_PART, STRING)))
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"}
_TOKENS = array({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, minItems=1)
_TEXT = {"type": "string", "minLength": 1}
_PROMPT = any_of(_TEXT, array(_TEXT, minItems=1), _TOKENS, array(_TOKENS, minItems=1))
_FUNCTION_FIELDS = {
    "name": _NAME,
    "description": nullable(STRING),
    "parameters": nullable(ref("ParametersSchema")),
    "strict": nullable(BOOLEAN),
}
_OPTIONAL = ("description", "parameters", "strict")
_SCHEMA_FIELDS = {
    "name": nullable(STRING),
    "schema": ref("JsonSchema"),
    "strict": nullable(BOOLEAN),
    "description": nullable(STRING),
}
# Calls in a history: servers of others wrote some of them.
_PAST_CALL = obj({"name": STRING, "arguments": nullable(any_of(STRING, OBJECT))}, ("arguments",))
_PLAIN_FORMATS = (obj({"type": const("text")}), obj({"type": const("json_object")}))
_CHOICES = enum("none", "auto", "required")
_ALLOWED_MODES = enum("auto", "required")
_CALL_FUNCTION = obj({"name": _NAME, "arguments": describe(STRING, 'JSON text, such as {"city": "Paris"}')})

_GUIDED_JSON = any_of(ref("JsonSchema"), describe(STRING, "The same as JSON text."))
_INNER = any_of(OBJECT, BOOLEAN)  # a nested schema, not expanded
_TYPE = enum("string", "number", "integer", "boolean", "object", "array", "null")
# The keywords that the server checks; others are up to the engine.
_SCHEMA_KEYWORDS = {
    "type": any_of(_TYPE, array(_TYPE, minItems=1)),
    "properties": {"type": "object", "additionalProperties": _INNER},
    "required": array(STRING),
    "additionalProperties": _INNER,
    "items": _INNER,
    "enum": array({}, minItems=1),
    "anyOf": array(_INNER),
    "$ref": describe(
        {"type": "string", "pattern": "^#(/.*)?$"}, "A reference within the schema, such as #/$defs/NAME."
    ),
    "$defs": {"type": "object", "additionalProperties": _INNER},
}

_THOUGHT: dict[str, Schema] = {"reasoning_content": nullable(STRING), "reasoning": nullable(STRING)}

INPUT_COMPONENTS: dict[str, Schema] = {
    "JsonSchema": describe(
        obj(_SCHEMA_KEYWORDS, tuple(_SCHEMA_KEYWORDS)), "A JSON schema. Its size and depth are limited."
    ),
    "ParametersSchema": describe(
        obj({**_SCHEMA_KEYWORDS, "type": const("object")}, tuple(_SCHEMA_KEYWORDS)), "A JSON schema of an object."
    ),
    "ChatMessage": any_of(
        obj({"role": enum("system", "developer", "user"), "content": _CONTENT}),
        obj({"role": const("assistant"), "content": _CONTENT, **_THOUGHT}, tuple(_THOUGHT)),
        obj(
            {
                "role": const("assistant"),
                "content": nullable(_CONTENT),
                "tool_calls": array(ref("ToolCall")),
                **_THOUGHT,
            },
            ("content", *_THOUGHT),
        ),
        obj({"role": const("tool"), "content": _CONTENT, "tool_call_id": nullable(STRING)}, ("tool_call_id",)),
        description="One message. Its content is a string or a list of text parts.",
    ),
    "ToolCall": obj(
        {"id": nullable(STRING), "type": nullable(const("function")), "function": _PAST_CALL}, ("id", "type")
    ),
    "Tool": obj({"type": const("function"), "function": obj(_FUNCTION_FIELDS, _OPTIONAL)}),
    "NamedTool": obj({"type": const("function"), "function": obj({"name": _NAME})}),
    "ToolChoice": any_of(
        _CHOICES,
        ref("NamedTool"),
        obj(
            {
                "type": const("allowed_tools"),
                "allowed_tools": obj({"mode": _ALLOWED_MODES, "tools": array(ref("NamedTool"), minItems=1)}),
            }
        ),
    ),
    "ResponseFormat": any_of(
        *_PLAIN_FORMATS,
        obj({"type": const("json_schema"), "json_schema": obj(_SCHEMA_FIELDS, ("name", "strict", "description"))}),
    ),
    "ResponsesFunctionTool": obj({"type": const("function"), **_FUNCTION_FIELDS}, _OPTIONAL),
    "ResponsesCustomTool": obj(
        {
            "type": const("custom"),
            "name": _NAME,
            "description": nullable(STRING),
            "format": any_of(
                obj({"type": const("text")}),
                obj({"type": const("grammar"), "syntax": enum("lark", "regex"), "definition": STRING}),
            ),
        },
        ("description", "format"),
    ),
    "ResponsesTool": any_of(
        ref("ResponsesFunctionTool"),
        ref("ResponsesCustomTool"),
        obj(
            {
                "type": const("namespace"),
                "name": _TEXT,
                "description": STRING,
                "tools": array(any_of(ref("ResponsesFunctionTool"), ref("ResponsesCustomTool"))),
            },
            ("description",),
        ),
        description="A function, a tool that takes text, or several of them in a namespace.",
    ),
    "ResponsesNamedTool": obj(
        {"type": enum("function", "custom"), "name": _NAME, "namespace": nullable(STRING)}, ("namespace",)
    ),
    "ResponsesToolChoice": any_of(
        _CHOICES,
        ref("ResponsesNamedTool"),
        obj(
            {
                "type": const("allowed_tools"),
                "mode": _ALLOWED_MODES,
                "tools": array(ref("ResponsesNamedTool"), minItems=1),
            }
        ),
    ),
    "ResponsesFormat": any_of(
        *_PLAIN_FORMATS, obj({"type": const("json_schema"), **_SCHEMA_FIELDS}, ("name", "strict", "description"))
    ),
    "ResponsesInputItem": any_of(
        obj(
            {
                "type": nullable(const("message")),
                "role": enum("user", "assistant", "system", "developer"),
                "content": any_of(STRING, array(obj({"type": enum("input_text", "output_text"), "text": STRING}))),
            },
            ("type",),
        ),
        obj({"type": const("function_call"), "call_id": STRING, **_CALL_FUNCTION["properties"], "name": STRING}),
        obj({"type": const("function_call_output"), "call_id": STRING, "output": STRING}),
        obj(
            {
                "type": const("reasoning"),
                "content": nullable(array(obj({"type": const("reasoning_text"), "text": STRING}))),
                "summary": nullable(array(obj({"type": const("summary_text"), "text": STRING}))),
                "encrypted_content": nullable(STRING),
            },
            ("summary", "content", "encrypted_content"),
        ),
        obj({"type": const("custom_tool_call"), "call_id": STRING, "name": STRING, "input": STRING}),
        obj({"type": const("custom_tool_call_output"), "call_id": STRING, "output": STRING}),
        obj({"type": const("compaction"), "encrypted_content": STRING}),
        obj({"type": const("item_reference"), "id": STRING}),
        description="A message, a tool call or its output, reasoning, a compaction, or a reference to a stored item.",
    ),
    **MESSAGES_COMPONENTS,
}

# Rules over several fields.
BODY_RULES: dict[str, Schema] = {
    "TokenizeBody": any_of(
        obj({"prompt": STRING, "messages": NULL}, ("messages",)),
        obj({"messages": array(OBJECT), "prompt": NULL}, ("prompt",)),
    )
}

_THINKING = obj(
    {
        "type": enum("enabled", "disabled", "adaptive", "auto"),
        "budget_tokens": nullable({"type": "integer", "minimum": 0}),
    },
    ("budget_tokens",),
)
_REASONING = obj({"effort": nullable(STRING)}, ("effort",))

# Replace msgspec's schemas; "*" matches every body.
FIELD_SCHEMAS: dict[tuple[str, str], Schema] = {
    ("*", "messages"): array(ref("ChatMessage"), minItems=1),
    ("*", "tools"): array(ref("Tool")),
    ("*", "tool_choice"): ref("ToolChoice"),
    ("*", "response_format"): ref("ResponseFormat"),
    ("*", "guided_json"): _GUIDED_JSON,
    ("*", "logit_bias"): {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    ("*", "documents"): array(OBJECT),
    ("*", "thinking"): any_of(BOOLEAN, _THINKING),
    ("*", "prompt"): _PROMPT,
    ("TokenizeBody", "prompt"): STRING,
    ("EmbeddingBody", "input"): _PROMPT,
    ("StructuredOutputs", "json"): _GUIDED_JSON,
    ("ResponsesText", "format"): ref("ResponsesFormat"),
    ("ResponsesBody", "input"): any_of(_TEXT, array(ref("ResponsesInputItem"), minItems=1)),
    ("ResponsesBody", "tools"): array(ref("ResponsesTool")),
    ("ResponsesBody", "tool_choice"): ref("ResponsesToolChoice"),
    ("ResponsesBody", "reasoning"): _REASONING,
    ("ResponsesBody", "conversation"): nullable(any_of(STRING, obj({"id": STRING}))),
    ("CompactBody", "input"): any_of(_TEXT, array(ref("ResponsesInputItem"), minItems=1)),
    ("ConversationBody", "items"): array(ref("ResponsesInputItem"), maxItems=20),
    ("ConversationItemsBody", "items"): array(ref("ResponsesInputItem"), minItems=1, maxItems=20),
    **MESSAGES_FIELD_SCHEMAS,
}


FIELD_DESCRIPTIONS: dict[str, str] = {
    "model": "A model or an adapter that GET /v1/models lists.",
    "ModelBody.model": "A model of this server; MODEL@ENGINE selects it on a fallback engine.",
    "AdapterBody.model": "The adapter's base model.",
    "AdapterNameBody.model": "The model that has the adapter.",
    "messages": "The conversation so far.",
    "max_tokens": "Generate at most this many tokens. Default: up to the end of the model's context, which -1 also means.",
    "CompletionBody.max_tokens": "Generate at most this many tokens. Default: 16, or the configured value. -1: up to the end of the model's context.",
    "max_completion_tokens": "The newer name of max_tokens.",
    "max_output_tokens": "Generate at most this many tokens. Default: up to the end of the model's context, which -1 also means.",
    "logprobs": "Return the log probabilities of the output tokens.",
    "CompletionBody.logprobs": "Return the log probabilities of the output tokens, each with this many alternatives.",
    "tools": "Functions that the model may call.",
    "tool_choice": "auto: the model decides. none: no calls. required: at least one call. Or name the function or the allowed functions.",
    "parallel_tool_calls": "Whether the model may make several calls. Enforced only with required calls.",
    "reasoning_effort": "How much to think: none, minimal, low, medium, high, xhigh or max. Set in the chat template, or ignored if it has no switch.",
    "enable_thinking": "Whether to think. Set in the chat template, or ignored if it has no switch.",
    "thinking": "The same as enable_thinking; as an object, its budget_tokens is the same as max_reasoning_tokens.",
    "max_reasoning_tokens": "End the thought after this many tokens, and answer. 0: no thought.",
    "chat_template_kwargs": "Variables for the model's chat template, such as enable_thinking.",
    "documents": "Documents for templates that support them.",
    "add_generation_prompt": "Whether the template opens the assistant's turn. Default: true.",
    "continue_final_message": "Continue the last message instead of answering it.",
    "prompt": "A string, token ids, or a list of either.",
    "TokenizeBody.prompt": "The text. Send this or messages.",
    "TokenizeBody.messages": "A conversation, rendered with the model's template. Send this or prompt.",
    "echo": "Start the output with the prompt.",
    "do_sample": "false: greedy decoding, regardless of the temperature.",
    "stop": "Stop before any of these strings.",
    "stop_token_ids": "Stop at any of these tokens.",
    "ignore_eos": "Continue after the end-of-sequence token.",
    "early_stopping": "For beam search.",
    "logit_bias": "Maps token ids to biases: -100 bans a token, 100 nearly forces it.",
    "response_format": "Plain text, any JSON object, or JSON that matches a schema.",
    "structured_outputs": "A constraint on the output: one of json, regex, grammar and choice.",
    "guided_json": "The output is JSON that matches this schema.",
    "guided_regex": "The output matches this regular expression.",
    "guided_grammar": "The output follows this grammar (GBNF).",
    "guided_choice": "The output is one of these strings.",
    "json": "The output is JSON that matches this schema.",
    "regex": "The output matches this regular expression.",
    "grammar": "The output follows this grammar (GBNF).",
    "choice": "The output is one of these strings.",
    "truncate_prompt_tokens": "Keep only the last k tokens of the prompt; x-enginebay-truncated reports how many were dropped.",
    "EmbeddingBody.truncate_prompt_tokens": "Keep only the first k tokens of each input; x-enginebay-truncated reports how many were dropped.",
    "stream": "Stream server-sent events, one per token.",
    "stream_options": "Only with stream.",
    "include_usage": "Send the token usage in a last event.",
    "include_timing": "Send the last event with the request's timing in `usage.enginebay`.",
    "include_energy": "Report the request's share of the joules above idle in `usage.enginebay`.",
    "ResponsesBody.metadata": "Returned with the response.",
    "ResponsesBody.user": "Returned with the response.",
    "ResponsesBody.safety_identifier": "Returned with the response.",
    "return_token_ids": "Return prompt_token_ids, and token_ids of each choice.",
    "prompt_cache_key": "Requests with the same key go to the same replica of the model while load allows; a session header overrides it.",
    "EmbeddingBody.input": "A string, token ids, or a list of either.",
    "encoding_format": "float: a list of numbers. base64: 32-bit floats, little-endian.",
    "dimensions": "Keep this many dimensions and normalize the vector.",
    "add_special_tokens": "Whether to add special tokens such as the beginning of a text. Default: true for a prompt, false for messages.",
    "return_token_strs": "Also return each token as text.",
    "tokens": "Token ids.",
    "ResponsesBody.input": "A string, or items. After previous_response_id or a conversation, only what is new.",
    "instructions": "A system message in front of the input.",
    "include": "message.output_text.logprobs adds log probabilities; reasoning.encrypted_content adds the encoded thought to reasoning items.",
    "text": "The format of the output text.",
    "format": "Plain text, any JSON object, or JSON that matches a schema.",
    "background": "Return at once, and generate in the background: poll the response, or cancel it. Requires store.",
    "previous_response_id": "Continue this stored response: its items come first. Its instructions do not.",
    "conversation": "A stored conversation, or its id: its items come first, and this turn is added to it.",
    "ResponsesBody.store": "Store the response for this API key. Default: true, unless server.state is off.",
    "CompactBody.input": "What to summarize: a string or items, after those of previous_response_id.",
    "items": "Items to add, up to 20.",
    "ConversationBody.metadata": "Up to 16 pairs of strings, returned with the conversation.",
    "ConversationUpdateBody.metadata": "Up to 16 pairs of strings, returned with the conversation.",
    "reasoning": "effort: how much to think. Set in the chat template, or ignored if it has no switch.",
    **MESSAGES_FIELD_DESCRIPTIONS,
}

INPUT_COMPONENTS |= OLLAMA_COMPONENTS
FIELD_SCHEMAS |= OLLAMA_FIELD_SCHEMAS
FIELD_DESCRIPTIONS |= OLLAMA_FIELD_DESCRIPTIONS

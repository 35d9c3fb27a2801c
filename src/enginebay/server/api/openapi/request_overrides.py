"""What clients put into bodies, beyond what the structs say: messages, tools, formats; and what each field means."""

from __future__ import annotations

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

_TEXT_PART = obj({"type": const("text"), "text": STRING})
_CONTENT = any_of(STRING, array(any_of(_TEXT_PART, STRING), minItems=1))
_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
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
_PLAIN_FORMATS = (obj({"type": const("text")}), obj({"type": const("json_object")}))
_CHOICES = enum("none", "auto", "required")
_ALLOWED_MODES = enum("auto", "required")
_CALL_FUNCTION = obj({"name": _NAME, "arguments": describe(STRING, 'JSON text, such as {"city": "Paris"}')})

_GUIDED_JSON = any_of(ref("JsonSchema"), describe(STRING, "The same as JSON text."))
_INNER = any_of(OBJECT, BOOLEAN)  # again a schema; said once, it stays readable
_TYPE = enum("string", "number", "integer", "boolean", "object", "array", "null")
# What is looked at of a JSON schema; other keywords are the engine's to understand.
_SCHEMA_KEYWORDS = {
    "type": any_of(_TYPE, array(_TYPE, minItems=1)),
    "properties": {"type": "object", "additionalProperties": _INNER},
    "required": array(STRING),
    "additionalProperties": _INNER,
    "items": _INNER,
    "enum": array({}, minItems=1),
    "anyOf": array(_INNER),
    "$ref": describe({"type": "string", "pattern": "^#(/.*)?$"}, "Within the schema, such as #/$defs/NAME."),
    "$defs": {"type": "object", "additionalProperties": _INNER},
}

INPUT_COMPONENTS: dict[str, Schema] = {
    "JsonSchema": describe(
        obj(_SCHEMA_KEYWORDS, tuple(_SCHEMA_KEYWORDS)), "A JSON schema. Its size and depth are limited."
    ),
    "ParametersSchema": describe(
        obj({**_SCHEMA_KEYWORDS, "type": const("object")}, tuple(_SCHEMA_KEYWORDS)), "A JSON schema of an object."
    ),
    "ChatMessage": any_of(
        obj({"role": enum("system", "developer", "user"), "content": _CONTENT}),
        obj({"role": const("assistant"), "content": _CONTENT}),
        obj(
            {
                "role": const("assistant"),
                "content": nullable(_CONTENT),
                "tool_calls": array(ref("ToolCall"), minItems=1),
            },
            ("content",),
        ),
        obj({"role": const("tool"), "content": _CONTENT, "tool_call_id": STRING}, ("tool_call_id",)),
        description="One message. Content is a text, or a list of text parts.",
    ),
    "ToolCall": obj({"id": STRING, "type": const("function"), "function": _CALL_FUNCTION}),
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
    "ResponsesTool": obj({"type": const("function"), **_FUNCTION_FIELDS}, _OPTIONAL),
    "ResponsesNamedTool": obj({"type": const("function"), "name": _NAME}),
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
                "type": const("message"),
                "role": enum("user", "assistant", "system", "developer"),
                "content": any_of(
                    STRING, array(obj({"type": enum("input_text", "output_text"), "text": STRING}), minItems=1)
                ),
            },
            ("type",),
        ),
        obj({"type": const("function_call"), "call_id": STRING, **_CALL_FUNCTION["properties"]}),
        obj({"type": const("function_call_output"), "call_id": STRING, "output": STRING}),
        description="A message, a call that the model has made, or what came of it.",
    ),
}

# Rules over several fields.
BODY_RULES: dict[str, Schema] = {
    "TokenizeBody": any_of(
        obj({"prompt": STRING, "messages": NULL}, ("messages",)),
        obj({"messages": array(OBJECT), "prompt": NULL}, ("prompt",)),
    ),
}

# In place of what msgspec makes of the struct; "*" stands for every body.
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
    ("*", "modalities"): const(["text"]),
    ("*", "service_tier"): enum("auto", "default"),
    ("*", "store"): const(False),
    ("*", "reasoning_effort"): NULL,
    ("*", "chat_template"): NULL,
    ("*", "suffix"): const(""),
    ("*", "prompt"): _PROMPT,
    ("TokenizeBody", "prompt"): STRING,
    ("EmbeddingBody", "input"): _PROMPT,
    ("StructuredOutputs", "json"): _GUIDED_JSON,
    ("ResponsesText", "format"): ref("ResponsesFormat"),
    ("ResponsesText", "verbosity"): const("medium"),
    ("ResponsesStreamOptions", "include_obfuscation"): const(False),
    ("ResponsesBody", "input"): any_of(_TEXT, array(ref("ResponsesInputItem"), minItems=1)),
    ("ResponsesBody", "tools"): array(ref("ResponsesTool")),
    ("ResponsesBody", "tool_choice"): ref("ResponsesToolChoice"),
    ("ResponsesBody", "truncation"): const("disabled"),
    ("ResponsesBody", "background"): const(False),
    ("ResponsesBody", "previous_response_id"): NULL,
    ("ResponsesBody", "conversation"): NULL,
    ("ResponsesBody", "prompt"): NULL,
    ("ResponsesBody", "reasoning"): OBJECT | {"additionalProperties": NULL},
    ("ResponsesBody", "context_management"): NULL,
    ("*", "prompt_cache_retention"): enum("in_memory", "in-memory"),
    ("*", "prompt_cache_options"): NULL,
    ("*", "moderation"): NULL,
    ("ChatBody", "verbosity"): const("medium"),
    ("ChatBody", "prediction"): NULL,
    ("ChatBody", "audio"): NULL,
    ("ChatBody", "web_search_options"): NULL,
    ("ChatBody", "functions"): NULL,
    ("ChatBody", "function_call"): const("auto"),
}

_STATELESS = "Not taken: nothing is stored here. Send the whole conversation as input."
_ACCOUNT_FIELD = "For your own books; it shapes nothing."

FIELD_DESCRIPTIONS: dict[str, str] = {
    "model": "A model of this server, or one of its adapters; GET /v1/models lists them.",
    "ModelBody.model": "A model of this server; MODEL@ENGINE is one on an engine that it falls back to.",
    "AdapterBody.model": "The model that the adapter was made for.",
    "AdapterNameBody.model": "The model that has the adapter.",
    "messages": "The conversation so far.",
    "max_tokens": "No more than this many tokens. Unset: up to the end of the model's context.",
    "CompletionBody.max_tokens": "No more than this many tokens. Unset: 16, or what the configuration says.",
    "max_completion_tokens": "The newer name of max_tokens.",
    "max_output_tokens": "No more than this many tokens. Unset: up to the end of the model's context.",
    "logprobs": "Log probabilities of the tokens in the answer.",
    "CompletionBody.logprobs": "Log probabilities of the tokens, each with this many alternatives.",
    "tools": "Functions that the model may call.",
    "tool_choice": "auto: the model decides. none: no calls. required: at least one call. Or name the function, or those that are allowed.",
    "parallel_tool_calls": "Whether required calls may be more than one.",
    "modalities": "Text is all there is.",
    "reasoning_effort": "Not taken: use the template's own switch in chat_template_kwargs.",
    "chat_template": "Not taken: templates are programs, and only the model's own is run.",
    "chat_template_kwargs": "Variables for the model's chat template, such as enable_thinking.",
    "documents": "Documents for templates that show them.",
    "add_generation_prompt": "Whether the template opens the assistant's turn. On by default.",
    "continue_final_message": "Go on with the last message instead of answering it.",
    "prompt": "A text, token ids, or a list of either.",
    "TokenizeBody.prompt": "The text. Give this or messages.",
    "TokenizeBody.messages": "A conversation, rendered with the model's template. Give this or prompt.",
    "ResponsesBody.prompt": "Not taken: there are no stored prompts.",
    "echo": "Begin the answer with the prompt.",
    "suffix": "Not taken: text cannot be inserted.",
    "do_sample": "False is greedy, whatever the temperature.",
    "stop": "The answer ends before any of these texts.",
    "stop_token_ids": "The answer ends at any of these tokens.",
    "ignore_eos": "Go on behind the end that the model sees.",
    "early_stopping": "Of beam search.",
    "logit_bias": "Token id to bias: -100 forbids the token, 100 all but forces it.",
    "response_format": "Plain text, any JSON object, or JSON by a schema.",
    "structured_outputs": "A constraint on the output: one of json, regex, grammar and choice.",
    "guided_json": "The output is JSON by this schema.",
    "guided_regex": "The output matches this regular expression.",
    "guided_grammar": "The output follows this grammar (GBNF).",
    "guided_choice": "The output is one of these texts.",
    "json": "The output is JSON by this schema.",
    "regex": "The output matches this regular expression.",
    "grammar": "The output follows this grammar (GBNF).",
    "choice": "The output is one of these texts.",
    "truncate_prompt_tokens": "Keep only the last k tokens of the prompt; x-enginebay-truncated says what was left out.",
    "EmbeddingBody.truncate_prompt_tokens": "Keep only the first k tokens of each input; x-enginebay-truncated says so.",
    "stream": "Answer with server-sent events, one for each token.",
    "stream_options": "Only with stream.",
    "include_usage": "One more event with the token counts.",
    "include_timing": "The same event, and in its usage how long the request took here, as `enginebay`.",
    "include_energy": "Tell with the usage, as `enginebay`, the request's share of the joules above idle.",
    "user": _ACCOUNT_FIELD,
    "metadata": _ACCOUNT_FIELD,
    "ResponsesBody.metadata": "Given back with the response.",
    "safety_identifier": _ACCOUNT_FIELD,
    "prompt_cache_key": "Prompts are cached by what they say, so this changes nothing.",
    "prompt_cache_retention": "Cached prompts are kept in memory.",
    "prompt_cache_options": "Not taken: what is cached cannot be chosen.",
    "moderation": "Not taken: nothing is moderated here.",
    "context_management": "Not taken: nothing is cut unless truncate_prompt_tokens says so.",
    "prediction": "Not taken: a predicted output is not used.",
    "audio": "Not taken: only text comes out.",
    "web_search_options": "Not taken: give the model a tool that searches.",
    "functions": "Not taken: the older form of tools.",
    "function_call": "Not taken: the older form of tool_choice.",
    "continuous_usage_stats": "There are no running counts: include_usage gives them at the end, and x-enginebay-translated says so.",
    "service_tier": "There is one tier.",
    "store": "Nothing is stored.",
    "EmbeddingBody.input": "A text, token ids, or a list of either.",
    "encoding_format": "float: a list of numbers. base64: 32-bit floats, little-endian.",
    "dimensions": "Keep the first so many dimensions, and bring the vector back to length 1.",
    "add_special_tokens": "Whether tokens such as the beginning of a text are added. Default: yes for a prompt, no for messages.",
    "return_token_strs": "Give each token as text, too.",
    "tokens": "Token ids.",
    "ResponsesBody.input": "A text, or the whole conversation as items.",
    "instructions": "A system message in front of the input.",
    "include": "message.output_text.logprobs adds log probabilities; the others have nothing to add here.",
    "text": "The form of the output's text.",
    "format": "Plain text, any JSON object, or JSON by a schema.",
    "verbosity": "Cannot be set.",
    "include_obfuscation": "Events are not padded.",
    "truncation": "Nothing is cut unless truncate_prompt_tokens says so.",
    "background": "Responses are made while you wait.",
    "previous_response_id": _STATELESS,
    "conversation": _STATELESS,
    "reasoning": "Not taken: use the template's own switch in chat_template_kwargs.",
}

"""The table of fields: which fields of each body are translated, ignored or refused. All others are honoured.

Checks, headers, the OpenAPI document and the table in docs/server.md follow from it. A dialect adds its bodies here.
"""

from __future__ import annotations

from enginebay.server.api.fields.field_rules import (
    NO_RULES,
    FieldRule,
    RuleSet,
    ignore,
    refuse,
    rename,
    translate,
)

_CUT = "beyond the context, and -1: cut to what is left of it"
_THINKING = "passed to the chat template as enable_thinking"
_NO_SWITCH = "this model's chat template has no such switch"
_STATELESS = "the server stores nothing: send the whole conversation as input"
_HOSTED = "hosted tools, such as web_search, are left out"

_ACCOUNT = (
    ignore("user", "nothing depends on it"),
    ignore("safety_identifier", "nothing depends on it"),
    ignore("metadata", "nothing is stored"),
)
_GENERATION = (
    ignore("store", "nothing is stored", neutral=(False,)),
    ignore("service_tier", "there is one tier", neutral=("auto", "default")),
    ignore("prompt_cache_retention", "prompts are cached in memory while there is room", neutral=("in_memory", "in-memory")),
    ignore("prompt_cache_options", "the engine decides what it caches"),
    ignore("cache_prompt", "the engine decides what it caches", neutral=(True,)),
    ignore("keep_alive", "the configuration decides how long a model stays loaded"),
    ignore("priority", "the weight of the API key decides", neutral=(0,)),
    ignore("return_token_ids", "responses have no token ids; /tokenize returns them", neutral=(False,)),
    translate("skip_special_tokens", "control tokens are always left out of the text", neutral=(True,)),
    rename("repeat_penalty", "repetition_penalty"),
)  # fmt: skip
_COMPLETIONS = (
    *_ACCOUNT,
    *_GENERATION,
    rename("n_predict", "max_tokens"),
    rename("grammar", "guided_grammar"),
    rename("regex", "guided_regex"),
    rename("json_schema", "guided_json"),
    translate("max_tokens", _CUT, depends=True),
    translate(
        "stream_options.continuous_usage_stats",
        "not continuous; include_usage adds usage at the end",
        neutral=(False,),
    ),
    refuse(
        "stream_options.include_obfuscation", "obfuscation is not supported", "remove include_obfuscation",
        neutral=(False,),
    ),
)  # fmt: skip

_CHAT = (
    *_COMPLETIONS,
    rename("max_output_tokens", "max_tokens"),
    translate("max_completion_tokens", _CUT, depends=True),
    ignore("verbosity", "ask for the length in a message", neutral=("medium",)),
    ignore("prediction", "it would only save time"),
    ignore("web_search_options", "there is no web search; give the model a search tool"),
    ignore("tools", _HOSTED, depends=True),
    ignore("reasoning_effort", _NO_SWITCH, depends=True),
    ignore("max_reasoning_tokens", _NO_SWITCH, depends=True),
    translate("enable_thinking", _THINKING, depends=True),
    translate("thinking", _THINKING, depends=True),
    refuse("chat_template", "custom chat templates are not allowed: a template is code", "remove chat_template"),
    refuse("modalities", "only text output is supported", "remove modalities", neutral=(["text"],)),
    refuse("audio", "only text output is supported", "remove audio"),
    refuse("moderation", "moderation is not supported", "remove moderation"),
    refuse("functions", "functions and function_call are not supported", "use tools and tool_choice"),
    refuse(
        "function_call", "functions and function_call are not supported", "use tools and tool_choice", neutral=("auto",)
    ),
)

_COMPLETION = (*_COMPLETIONS, refuse("suffix", "suffix is not supported", "remove suffix", neutral=("",)))

_FORMAT_HINT = "use text.format, or /v1/chat/completions"
_RESPONSES = (
    *_GENERATION,
    rename("max_tokens", "max_output_tokens"),
    rename("max_completion_tokens", "max_output_tokens"),
    translate("max_output_tokens", _CUT, depends=True),
    ignore("client_metadata", "nothing depends on it"),
    ignore("max_tool_calls", "it counts hosted tools, and there are none"),
    ignore("text.verbosity", "ask for the length in the instructions", neutral=("medium",)),
    ignore("tools", _HOSTED, depends=True),
    ignore("include", "only message.output_text.logprobs adds something", depends=True),
    ignore("reasoning", _NO_SWITCH, depends=True),
    refuse("previous_response_id", "previous responses are not stored", _STATELESS),
    refuse("conversation", "conversations are not stored", _STATELESS),
    refuse("prompt", "stored prompts are not supported", "send the text as instructions and input"),
    refuse("moderation", "moderation is not supported", "remove moderation"),
    refuse(
        "context_management",
        "context management is not supported",
        "remove context_management, or use truncate_prompt_tokens",
    ),
    refuse(
        "background", "background responses are not supported",
        "remove background, or set stream to true to see progress", neutral=(False,),
    ),
    refuse(
        "truncation", "automatic truncation is not supported", "remove truncation, and set truncate_prompt_tokens",
        neutral=("disabled",),
    ),
    refuse(
        "stream_options.include_obfuscation", "obfuscation is not supported", "remove include_obfuscation",
        neutral=(False,),
    ),
    *(
        refuse(name, f"{name} is a field of other endpoints", _FORMAT_HINT)
        for name in (
            "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice",
        )
    ),
)  # fmt: skip

FIELD_TABLE: dict[str, RuleSet] = {
    "ChatBody": RuleSet(_CHAT),
    "CompletionBody": RuleSet(_COMPLETION),
    "ResponsesBody": RuleSet(_RESPONSES),
    "EmbeddingBody": RuleSet((ignore("user", "nothing depends on it"),)),
}

# An unknown field of these is refused in any case: without it the output would not be constrained.
STRICT_OBJECTS = frozenset({"StructuredOutputs"})


def find_rules(body_name: str) -> RuleSet:
    return FIELD_TABLE.get(body_name, NO_RULES)


def find_rule(body_name: str, field: str) -> FieldRule | None:
    return find_rules(body_name).rules.get(field)

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

_CUT = "beyond what is left of the context, or -1: capped at that"
_SWITCH = "sets the chat template's own switch; ignored if it has none"
_THOUGHT = "ends the thought after this many tokens; ignored if the model has no reasoning format"
_HOSTED = "hosted tools, such as web_search, are left out"

_ACCOUNT = (
    ignore("user", "the server does not use it"),
    ignore("safety_identifier", "the server does not use it"),
    ignore("metadata", "nothing is stored"),
)
_COMPACT = (
    ignore("service_tier", "there is one tier", neutral=("auto", "default")),
    ignore("prompt_cache_retention", "prompts are cached in memory while there is room", neutral=("in_memory", "in-memory")),
    ignore("prompt_cache_options", "the engine decides what it caches"),
)  # fmt: skip
_GENERATION = (
    *_COMPACT,
    ignore("cache_prompt", "the engine decides what it caches", neutral=(True,)),
    ignore("keep_alive", "the configuration decides how long a model stays loaded"),
    ignore("priority", "the weight of the API key decides", neutral=(0,)),
    translate("skip_special_tokens", "control tokens are always left out of the text", neutral=(True,)),
    rename("repeat_penalty", "repetition_penalty"),
)  # fmt: skip
_COMPLETIONS = (
    *_ACCOUNT,
    ignore("store", "only /v1/responses stores responses", neutral=(False,)),
    *_GENERATION,
    ignore("return_token_ids", "only for a model of a remote server, whose token ids are not known", depends=True),
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
    ignore("prediction", "it only affects speed"),
    ignore("web_search_options", "there is no web search; give the model a search tool"),
    ignore("tools", _HOSTED, depends=True),
    translate("reasoning_effort", _SWITCH, depends=True),
    translate("enable_thinking", _SWITCH, depends=True),
    translate("thinking", _SWITCH, depends=True),
    translate("max_reasoning_tokens", _THOUGHT, depends=True),
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
    ignore("return_token_ids", "responses have no token ids; /tokenize returns them", neutral=(False,)),
    rename("max_tokens", "max_output_tokens"),
    rename("max_completion_tokens", "max_output_tokens"),
    translate("max_output_tokens", _CUT, depends=True),
    ignore("client_metadata", "the server does not use it"),
    ignore("max_tool_calls", "it counts hosted tools, and there are none"),
    ignore("text.verbosity", "ask for the length in the instructions", neutral=("medium",)),
    ignore("tools", _HOSTED, depends=True),
    ignore("include", "only message.output_text.logprobs and reasoning.encrypted_content are supported", depends=True),
    translate("reasoning", f"effort: {_SWITCH}", depends=True),
    translate("enable_thinking", _SWITCH, depends=True),
    translate("thinking", _SWITCH, depends=True),
    translate("max_reasoning_tokens", _THOUGHT, depends=True),
    refuse("prompt", "stored prompts are not supported", "send the text as instructions and input"),
    refuse("moderation", "moderation is not supported", "remove moderation"),
    refuse(
        "context_management",
        "context management is not supported",
        "remove context_management, or use truncate_prompt_tokens",
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

_MESSAGES_PROMPT = (
    ignore("cache_control", "the engine decides what it caches"),
    ignore("container", "there are no containers"),
    ignore("context_management", "the client manages the context"),
    ignore("diagnostics", "nothing is stored"),
    ignore("inference_geo", "the model runs where the server is"),
    ignore("service_tier", "there is one tier"),
    ignore("speed", "there is one speed"),
    ignore("user_profile_id", "the server does not use it"),
    ignore("workspace_id", "the server does not use it"),
    ignore("betas", "the server does not use it"),
    ignore("tools", "Anthropic's server tools, such as web_search, are left out", depends=True),
    translate("thinking", _SWITCH, depends=True),
    translate("output_config", f"effort: {_SWITCH}", depends=True),
    refuse(
        "mcp_servers", "the server does not connect to MCP servers", "connect from the client, and send their tools",
        neutral=([],),
    ),
)  # fmt: skip
_MESSAGES = (
    *_MESSAGES_PROMPT,
    translate("max_tokens", "beyond what is left of the context: capped at that", depends=True),
)

_UNFIT = "a prompt that does not fit the context is refused"
_OLLAMA = (
    ignore("truncate", _UNFIT, neutral=(False,)),
    ignore("shift", _UNFIT, neutral=(False,)),
    translate("think", _SWITCH, depends=True),
)
_OLLAMA_GENERATE = (
    *_OLLAMA,
    refuse("suffix", "suffix is not supported", "remove suffix, or put both parts into a raw prompt", neutral=("",)),
    refuse(
        "template", "custom templates are not allowed: a template is code",
        "remove template, or render the prompt yourself and set raw", neutral=("",),
    ),
    refuse("context", "context is not supported", "send the conversation as messages to /api/chat", neutral=([],)),
)  # fmt: skip

FIELD_TABLE: dict[str, RuleSet] = {
    "ChatBody": RuleSet(_CHAT),
    "CompletionBody": RuleSet(_COMPLETION),
    "ResponsesBody": RuleSet(_RESPONSES),
    "CompactBody": RuleSet(_COMPACT),
    "MessagesBody": RuleSet(_MESSAGES),
    "CountTokensBody": RuleSet(_MESSAGES_PROMPT),
    "OllamaChatBody": RuleSet(_OLLAMA),
    "OllamaGenerateBody": RuleSet(_OLLAMA_GENERATE),
    "EmbeddingBody": RuleSet((ignore("user", "the server does not use it"),)),
}

# An unknown field of these is refused in any case: without it the output would not be constrained.
STRICT_OBJECTS = frozenset({"StructuredOutputs"})


def find_rules(body_name: str) -> RuleSet:
    return FIELD_TABLE.get(body_name, NO_RULES)


def find_rule(body_name: str, field: str) -> FieldRule | None:
    return find_rules(body_name).rules.get(field)

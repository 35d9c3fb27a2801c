"""The Ollama API in the OpenAPI document: operations, and schemas of its request fields."""

from __future__ import annotations

from typing import Any

from enginebay.server.api.openapi.schema_builders import (
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

OLLAMA_TAG = "Ollama"
_GENERATES = {"tag": OLLAMA_TAG, "error": "OllamaError", "names_model": True, "generates": True}
_QUERY = {"tag": OLLAMA_TAG, "error": "OllamaError"}
_REFUSED = {**_QUERY, "hidden": True}
_HELLO = [{"role": "user", "content": "Say hello in five words."}]
_SHORT = {"options": {"num_predict": 32}}

# Fields of each `Operation`.
OLLAMA_OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/api/chat"): {
        **_GENERATES, "operation_id": "ollamaChat", "summary": "Answer a conversation",
        "description": "Streams lines of JSON unless `stream` is false. Without messages it loads the model; "
        "with keep_alive 0 it unloads it instead, which needs an admin key if the server has keys.",
        "body": "OllamaChatBody", "response": "OllamaChat", "lines": "OllamaChat",
        "examples": {
            "streamed": {"messages": _HELLO, **_SHORT},
            "one object": {"messages": _HELLO, "stream": False, **_SHORT},
        },
    },
    ("POST", "/api/generate"): {
        **_GENERATES, "operation_id": "ollamaGenerate", "summary": "Answer a prompt",
        "description": "Streams lines of JSON unless `stream` is false. Without a prompt it loads the model; "
        "with keep_alive 0 it unloads it instead, which needs an admin key if the server has keys.",
        "body": "OllamaGenerateBody", "response": "OllamaGenerate", "lines": "OllamaGenerate",
        "examples": {
            "streamed": {"prompt": "Why is the sky blue?", **_SHORT},
            "raw": {"prompt": "Once upon a time", "raw": True, "stream": False, **_SHORT},
        },
    },
    ("POST", "/api/embed"): {
        **_QUERY, "operation_id": "ollamaEmbed", "summary": "Embed texts", "names_model": True,
        "description": "For embedding models; others return 400. The vectors are normalized to length 1.",
        "body": "OllamaEmbedBody", "response": "OllamaEmbed",
        "examples": {"text": {"input": "The quick brown fox"}, "several": {"input": ["one text", "another text"]}},
    },
    ("POST", "/api/embeddings"): {
        **_QUERY, "operation_id": "ollamaEmbeddings", "summary": "Embed one text (older endpoint)", "names_model": True,
        "body": "OllamaEmbeddingsBody", "response": "OllamaEmbeddings",
        "examples": {"text": {"prompt": "The quick brown fox"}},
    },
    ("GET", "/api/tags"): {
        **_QUERY, "operation_id": "ollamaTags", "summary": "List models and their adapters", "response": "OllamaModels",
    },
    ("POST", "/api/show"): {
        **_QUERY, "operation_id": "ollamaShow", "summary": "Describe one model", "names_model": True,
        "body": "OllamaShowBody", "response": "OllamaShow", "examples": {"model": {}},
    },
    ("GET", "/api/ps"): {
        **_QUERY, "operation_id": "ollamaPs", "summary": "List loaded models", "response": "OllamaRunningModels",
    },
    ("POST", "/api/pull"): {
        **_QUERY, "operation_id": "ollamaPull", "summary": "Download a model into the store",
        "description": "A name from `bay models list`, or hf:org/name. Reports progress as lines of JSON unless `stream` is false. "
        "The model is served once the configuration lists it. Needs the same rights as /admin.",
        "body": "OllamaPullBody", "response": "OllamaProgress", "lines": "OllamaProgress",
        "examples": {"a model of the catalogue": {"model": "smollm2"}},
    },
    ("GET", "/api/version"): {
        **_QUERY, "operation_id": "ollamaVersion", "summary": "The version of the Ollama API", "response": "OllamaVersion",
    },
    ("POST", "/api/copy"): {**_REFUSED, "operation_id": "ollamaCopy", "summary": "Not supported"},
    ("POST", "/api/create"): {**_REFUSED, "operation_id": "ollamaCreate", "summary": "Not supported"},
    ("POST", "/api/push"): {**_REFUSED, "operation_id": "ollamaPush", "summary": "Not supported"},
    ("DELETE", "/api/delete"): {**_REFUSED, "operation_id": "ollamaDelete", "summary": "Not supported"},
}  # fmt: skip

_ARGUMENTS = describe(nullable(any_of(OBJECT, STRING)), "An object, or its JSON as text.")
_CALLS = array(
    obj({"id": nullable(STRING), "function": obj({"name": STRING, "arguments": _ARGUMENTS}, ("arguments",))}, ("id",))
)
OLLAMA_COMPONENTS: dict[str, Schema] = {
    "OllamaTool": obj(
        {"type": const("function"), "function": {"$ref": "#/components/schemas/Tool/properties/function"}}, ("type",)
    ),
    "OllamaInputMessage": obj(
        {
            "role": enum("system", "user", "assistant", "tool"),
            "content": STRING,
            "thinking": nullable(STRING),
            "images": describe(nullable(array(STRING)), "Base64, for models that take images."),
            "tool_calls": nullable(_CALLS),
            "tool_name": describe(nullable(STRING), "The tool that the result is from."),
            "tool_call_id": nullable(STRING),
        },
        ("thinking", "images", "tool_calls", "tool_name", "tool_call_id"),
    ),
}

_BODIES_WITH_OPTIONS = ("OllamaChatBody", "OllamaGenerateBody", "OllamaEmbedBody", "OllamaEmbeddingsBody")
_KEEP_ALIVE = any_of({"type": "number"}, {"type": "string", "pattern": r"^[+-]?\d{1,9}(\.\d{1,9})?(ms|s|m|h)?$"})

OLLAMA_FIELD_SCHEMAS: dict[tuple[str, str], Schema] = {
    ("OllamaChatBody", "messages"): array(ref("OllamaInputMessage")),
    ("OllamaChatBody", "tools"): array(ref("OllamaTool")),
    ("OllamaGenerateBody", "prompt"): STRING,
    ("OllamaEmbeddingsBody", "prompt"): STRING,
    **{(body, "keep_alive"): _KEEP_ALIVE for body in _BODIES_WITH_OPTIONS},
    ("OllamaChatBody", "format"): any_of(enum("", "json"), ref("JsonSchema")),
    ("OllamaGenerateBody", "format"): any_of(enum("", "json"), ref("JsonSchema")),
    **{(body, "options"): ref("OllamaOptions") for body in _BODIES_WITH_OPTIONS},
    ("OllamaGenerateBody", "images"): nullable(array(STRING)),
}

OLLAMA_FIELD_DESCRIPTIONS: dict[str, str] = {
    "options": "Sampling parameters. Other Ollama options are ignored, and named in x-enginebay-ignored.",
    "keep_alive": "How long the model stays loaded after the request: seconds, or a duration such as 5m; 0: unload it when idle, "
    "-1: keep it. Ignored without an admin key if the server has keys.",
    "think": "Whether the model thinks first, or how much.",
    **dict.fromkeys(("OllamaChatBody.format", "OllamaGenerateBody.format"), "json: any JSON object. Or a JSON schema."),
    **dict.fromkeys(("OllamaChatBody.stream", "OllamaGenerateBody.stream"), "Stream lines of JSON, one per token. Default: true."),
    "OllamaPullBody.stream": "Report progress as lines of JSON. Default: true.",
    "OllamaChatBody.messages": "The conversation so far. Empty: only load the model.",
    "OllamaGenerateBody.prompt": "The user's message; with raw the whole prompt. Empty: only load the model.",
    "OllamaEmbeddingsBody.prompt": "The text. Empty: only load the model.",
    "system": "A system message in front of the prompt.",
    "raw": "Send the prompt to the model unchanged, without a chat template.",
    "images": "Base64, for models that take images.",
    "suffix": "Not supported.",
    "OllamaEmbedBody.truncate": "Truncate texts that do not fit the context. Default: true.",
    "OllamaEmbedBody.input": "A text, or a list of texts. Empty: only load the model.",
    "OllamaPullBody.model": "A model of the catalogue, or hf:org/name.",
    "name": "The older name of model.",
    "verbose": "Accepted; has no effect.",
    "insecure": "Accepted; has no effect.",
}  # fmt: skip

"""The OpenAPI operation of each route: summary, body, responses and working examples."""

from __future__ import annotations

from enginebay.server.api.openapi.ollama_operations import OLLAMA_OPERATIONS
from enginebay.server.api.openapi.operation import Operation
from enginebay.server.api.openapi.state_operations import STATE_OPERATIONS
from enginebay.server.telemetry.prometheus_text import CONTENT_TYPE

HTML = "text/html; charset=utf-8"


_GENERATION = "Generation"
_MODELS = "Models and tokens"
_SERVER = "Server"
_ADMIN = "Administration"

_CHAT = {"messages": [{"role": "user", "content": "Say hello in five words."}], "max_tokens": 32}
_TIME = {
    "name": "get_time",
    "description": "The time in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        operation_id="createChatCompletion", tag=_GENERATION, summary="Answer a conversation",
        description="OpenAI's chat completions, with more sampling parameters and output constraints. "
        "Parameters that the model's engine does not support are refused with 400; translated and ignored ones are listed in the headers "
        "x-enginebay-translated and x-enginebay-ignored.",
        body="ChatBody", response="ChatCompletion", event="ChatCompletionChunk", names_model=True, generates=True,
        examples={
            "chat": _CHAT,
            "streamed": {**_CHAT, "stream": True, "stream_options": {"include_usage": True}},
            "JSON schema": {
                "messages": [{"role": "user", "content": "Name a city."}], "max_tokens": 64,
                "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": _CITY}},
            },
            "tools": {
                "messages": [{"role": "user", "content": "What time is it in Paris?"}], "max_tokens": 128,
                "tools": [{"type": "function", "function": _TIME}], "tool_choice": "auto",
            },
        },
    ),
    ("POST", "/v1/completions"): Operation(
        operation_id="createCompletion", tag=_GENERATION, summary="Continue a text",
        description="The prompt goes to the model unchanged, without a chat template.",
        body="CompletionBody", response="Completion", event="Completion", names_model=True, generates=True,
        examples={
            "text": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.7},
            "streamed": {"prompt": "Once upon a time", "max_tokens": 32, "stream": True},
        },
    ),
    ("POST", "/v1/responses"): Operation(
        operation_id="createResponse", tag=_GENERATION, summary="Answer a conversation with the Responses API",
        description="The response is stored for this API key, unless `store` is false: continue it with previous_response_id, "
        "or collect turns in a conversation.",
        body="ResponsesBody", response="Response", event="ResponseEvent", names_model=True, generates=True,
        examples={
            "text": {"input": "Say hello in five words.", "max_output_tokens": 32},
            "streamed": {"input": "Say hello in five words.", "max_output_tokens": 32, "stream": True},
            "in the background": {"input": "Say hello in five words.", "max_output_tokens": 32, "background": True},
        },
    ),
    ("POST", "/v1/messages"): Operation(
        operation_id="createMessage", tag=_GENERATION, summary="Answer a conversation with Anthropic's Messages API",
        description="For Anthropic's SDKs and Claude Code. The key may come in x-api-key. Ignored fields are "
        "listed in the header x-enginebay-ignored. With the header anthropic-version, GET /v1/models answers in "
        "Anthropic's format.",
        body="MessagesBody", response="Message", event="MessageEvent", names_model=True, generates=True,
        error="AnthropicError",
        examples={
            "text": _CHAT,
            "streamed": {**_CHAT, "stream": True},
            "tools": {
                "messages": [{"role": "user", "content": "What time is it in Paris?"}], "max_tokens": 128,
                "tools": [{"name": "get_time", "description": "The time in a city", "input_schema": _CITY}],
                "tool_choice": {"type": "auto"},
            },
        },
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        operation_id="countMessageTokens", tag=_MODELS, summary="Count the tokens of a request to /v1/messages",
        body="CountTokensBody", response="TokenCount", names_model=True, error="AnthropicError",
        examples={"text": {"messages": [{"role": "user", "content": "Say hello in five words."}]}},
    ),
    **STATE_OPERATIONS,
    ("POST", "/v1/embeddings"): Operation(
        operation_id="createEmbedding", tag=_GENERATION, summary="Embed texts",
        description="For embedding models; others return 400.",
        body="EmbeddingBody", response="EmbeddingList", names_model=True,
        examples={"text": {"input": "The quick brown fox"}, "several": {"input": ["one text", "another text"]}},
    ),
    ("GET", "/v1/models"): Operation(
        operation_id="listModels", tag=_MODELS, summary="List models and their adapters", response="ModelList"
    ),
    ("GET", "/v1/models/{id}"): Operation(
        operation_id="getModel", tag=_MODELS, summary="Describe one model",
        description="Its capabilities for each request parameter, and its effective settings next to the configured ones.",
        response="ModelDescription", names_model=True,
    ),
    ("POST", "/tokenize"): Operation(
        operation_id="tokenize", tag=_MODELS, summary="Tokenize a text or a conversation", body="TokenizeBody",
        response="Tokenized", names_model=True,
        examples={
            "text": {"prompt": "Hello, world"},
            "conversation": {"messages": [{"role": "user", "content": "Hello"}], "return_token_strs": True},
        },
    ),
    ("POST", "/detokenize"): Operation(
        operation_id="detokenize", tag=_MODELS, summary="Detokenize token ids", body="DetokenizeBody", response="Detokenized",
        names_model=True, examples={"tokens": {"tokens": [72, 105]}},
    ),
    ("GET", "/health"): Operation(
        operation_id="health", tag=_SERVER, summary="The same as /health/ready", response="Readiness",
        extra_responses={503: ("Not ready, with the reasons.", "Readiness")},
    ),
    ("GET", "/health/live"): Operation(
        operation_id="live", tag=_SERVER, summary="Check that the server is running", response="Live",
    ),
    ("GET", "/health/ready"): Operation(
        operation_id="ready", tag=_SERVER, summary="Check that models can serve requests",
        description="Probes each loaded engine that has not produced a token lately. `models` lists the healthy models. "
        "A failing model that loads on use is listed in `failing`; the server stays ready while another model is healthy.",
        response="Readiness",
        extra_responses={503: ("Not ready, with the reasons.", "Readiness")},
    ),
    ("GET", "/metrics"): Operation(operation_id="metrics", tag=_SERVER, summary="Prometheus metrics", media=CONTENT_TYPE),
    ("GET", "/admin/ps"): Operation(
        operation_id="ps", tag=_ADMIN, summary="List models with their state, requests and memory", response="Fleet",
    ),
    ("POST", "/admin/load"): Operation(
        operation_id="load", tag=_ADMIN, summary="Load a model",
        description="Returns when it is loaded, which may take minutes. May evict other models. Retries a model in a crash "
        "loop.",
        body="ModelBody", response="FleetModel", names_model=True, examples={"model": {}},
    ),
    ("POST", "/admin/sleep"): Operation(
        operation_id="sleep", tag=_ADMIN, summary="Put a model to sleep",
        description="Waits for its running requests. Frees its GPU memory. The model wakes on the next request. "
        "Returns 400 if the model is not loaded or its engine cannot sleep.",
        body="ModelBody", response="FleetModel", names_model=True, examples={"model": {}},
    ),
    ("POST", "/admin/unload"): Operation(
        operation_id="unload", tag=_ADMIN, summary="Unload a model",
        description="Waits for its running requests. The model loads again on the next request.",
        body="ModelBody", response="FleetModel", names_model=True, examples={"model": {}},
    ),
    ("POST", "/admin/switch"): Operation(
        operation_id="switch", tag=_ADMIN, summary="Replace one loaded model with another",
        description="The first model sleeps if its engine can and memory allows, else it is unloaded.",
        body="SwitchBody", response="FleetModel", names_model=True,
        examples={"two models": {"from": "one-model", "to": "another-model"}},
    ),
    ("GET", "/admin/switches"): Operation(
        operation_id="switches", tag=_ADMIN, summary="List recent loads and wakes by phase", response="Switches",
    ),
    ("GET", "/admin/meters"): Operation(
        operation_id="meters", tag=_ADMIN, summary="Read the meters of the server's host",
        description="GPUs, CPUs, memory, and the share of the server and its workers.", response="Meters",
    ),
    ("GET", "/admin/logs"): Operation(
        operation_id="logs", tag=_ADMIN, summary="Return the last lines of a model's worker log", response="LogLines", names_model=True,
        query=(
            ("model", True, {"description": "A model's name.", "schema": {"type": "string", "minLength": 1}}),
            ("lines", False, {
                "description": "Maximum number of lines.",
                "schema": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100},
            }),
        ),
    ),
    ("POST", "/admin/reload"): Operation(
        operation_id="reload", tag=_ADMIN, summary="Apply configuration changes, all or nothing",
        description="Changed models are replaced once the new ones are ready. API keys are reloaded as well.",
        response="Reloaded",
    ),
    ("POST", "/admin/adapters"): Operation(
        operation_id="addAdapter", tag=_ADMIN, summary="Add a LoRA adapter to a model while it runs",
        description="Lasts until the next reload or restart. To keep an adapter, add it to the configuration.",
        body="AdapterBody", response="FleetModel", names_model=True,
        examples={"adapter": {"name": "my-adapter", "path": "/path/to/adapter"}},
    ),
    ("POST", "/admin/adapters/remove"): Operation(
        operation_id="removeAdapter", tag=_ADMIN, summary="Remove a LoRA adapter from a model", body="AdapterNameBody",
        response="FleetModel", names_model=True, examples={"adapter": {"name": "my-adapter"}},
    ),
    ("POST", "/admin/engines/upgrade"): Operation(
        operation_id="upgradeEngine", tag=_ADMIN, summary="Move an engine's models to another version",
        description="The version must be installed. Each model is replaced once it is ready on the new version.",
        body="UpgradeBody", response="Upgraded", examples={"version": {"engine": "vllm==1.2.3"}},
    ),
    ("GET", "/openapi.json"): Operation(operation_id="openapi", tag=_SERVER, summary="This document", response="OpenApi"),
    ("GET", "/docs"): Operation(operation_id="docs", tag=_SERVER, summary="This document as a web page", media=HTML),
    ("GET", "/"): Operation(operation_id="home", tag=_SERVER, summary="The same page", media=HTML, hidden=True),
    **{route: Operation(**fields) for route, fields in OLLAMA_OPERATIONS.items()},
}  # fmt: skip

"""What the document says about each route: its purpose, its body, its answers, and examples that work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
HTML = "text/html; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Operation:
    operation_id: str
    tag: str
    summary: str
    description: str = ""
    body: str = ""  # the struct
    response: str = ""  # the schema of the answer; without one, `media` says it all
    media: str = JSON
    event: str = ""  # the schema of one event, where the answer can be streamed
    query: tuple[tuple[str, bool, Mapping[str, Any]], ...] = ()  # name, whether it is needed, description and schema
    names_model: bool = False  # and so may name one that is not there
    generates: bool = False
    extra_responses: Mapping[int, tuple[str, str]] = field(
        default_factory=dict
    )  # status: what it means, and its schema
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # title: body without the model
    hidden: bool = False  # the same as another one


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
        description="OpenAI's chat completions, with more ways to sample and to constrain the output. "
        "What the model's engine cannot do is refused with 400; what is done in another way is listed in the header "
        "x-enginebay-translated.",
        body="ChatBody", response="ChatCompletion", event="ChatCompletionChunk", names_model=True, generates=True,
        examples={
            "chat": _CHAT,
            "streamed": {**_CHAT, "stream": True, "stream_options": {"include_usage": True}},
            "JSON by a schema": {
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
        description="The prompt goes to the model as it is, without a chat template.",
        body="CompletionBody", response="Completion", event="Completion", names_model=True, generates=True,
        examples={
            "text": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.7},
            "streamed": {"prompt": "Once upon a time", "max_tokens": 32, "stream": True},
        },
    ),
    ("POST", "/v1/responses"): Operation(
        operation_id="createResponse", tag=_GENERATION, summary="Answer a conversation, in the form of the Responses API",
        description="Stateless: send the whole conversation as input each time.",
        body="ResponsesBody", response="Response", event="ResponseEvent", names_model=True, generates=True,
        examples={
            "text": {"input": "Say hello in five words.", "max_output_tokens": 32},
            "streamed": {"input": "Say hello in five words.", "max_output_tokens": 32, "stream": True},
        },
    ),
    ("POST", "/v1/embeddings"): Operation(
        operation_id="createEmbedding", tag=_GENERATION, summary="Turn texts into vectors",
        description="For models that were loaded to embed; others refuse it with 400.",
        body="EmbeddingBody", response="EmbeddingList", names_model=True,
        examples={"text": {"input": "The quick brown fox"}, "several": {"input": ["one text", "another text"]}},
    ),
    ("GET", "/v1/models"): Operation(
        operation_id="listModels", tag=_MODELS, summary="The models of this server, and their adapters", response="ModelList"
    ),
    ("GET", "/v1/models/{id}"): Operation(
        operation_id="getModel", tag=_MODELS, summary="What one model can do, and how it runs",
        description="Capabilities for each request parameter, and settings next to the ones that were asked for.",
        response="ModelDescription", names_model=True,
    ),
    ("POST", "/tokenize"): Operation(
        operation_id="tokenize", tag=_MODELS, summary="A text or a conversation as token ids", body="TokenizeBody",
        response="Tokenized", names_model=True,
        examples={
            "text": {"prompt": "Hello, world"},
            "conversation": {"messages": [{"role": "user", "content": "Hello"}], "return_token_strs": True},
        },
    ),
    ("POST", "/detokenize"): Operation(
        operation_id="detokenize", tag=_MODELS, summary="Token ids as text", body="DetokenizeBody", response="Detokenized",
        names_model=True, examples={"tokens": {"tokens": [72, 105]}},
    ),
    ("GET", "/health"): Operation(
        operation_id="health", tag=_SERVER, summary="The same as /health/ready, where many tools look for it", response="Readiness",
        extra_responses={503: ("A request might not be answered, and why.", "Readiness")},
    ),
    ("GET", "/health/live"): Operation(
        operation_id="live", tag=_SERVER, summary="The server runs", response="Live",
    ),
    ("GET", "/health/ready"): Operation(
        operation_id="ready", tag=_SERVER, summary="A request would be answered now",
        description="Asks each engine that is loaded, unless it has made a token lately. `models` are those that would "
        "answer. A model that is loaded on use only and would not is in `failing`, and leaves the server ready while "
        "another one answers.",
        response="Readiness",
        extra_responses={503: ("A request might not be answered, and why.", "Readiness")},
    ),
    ("GET", "/metrics"): Operation(operation_id="metrics", tag=_SERVER, summary="Metrics for Prometheus", media=METRICS_TEXT),
    ("GET", "/admin/ps"): Operation(
        operation_id="ps", tag=_ADMIN, summary="Every model: where it is, what it does, what it takes", response="Fleet",
    ),
    ("POST", "/admin/load"): Operation(
        operation_id="load", tag=_ADMIN, summary="Have a model loaded",
        description="Answers when it is, which may take minutes. Others may have to leave for it. One that has failed "
        "too often is tried again.",
        body="ModelBody", response="FleetModel", names_model=True, examples={"model": {}},
    ),
    ("POST", "/admin/sleep"): Operation(
        operation_id="sleep", tag=_ADMIN, summary="Have a model sleep",
        description="After its last answer: none is cut off. On a GPU its memory is free for others, and it wakes when a "
        "request asks for it. 400 for a model that is not loaded or whose engine cannot sleep.",
        body="ModelBody", response="FleetModel", names_model=True, examples={"model": {}},
    ),
    ("POST", "/admin/unload"): Operation(
        operation_id="unload", tag=_ADMIN, summary="Have a model unloaded",
        description="After its last answer: none is cut off. It is loaded again when a request asks for it.",
        body="ModelBody", response="FleetModel", names_model=True, examples={"model": {}},
    ),
    ("POST", "/admin/switch"): Operation(
        operation_id="switch", tag=_ADMIN, summary="Have one model leave and another come",
        description="The one sleeps, if it can and if there is room for both.",
        body="SwitchBody", response="FleetModel", names_model=True,
        examples={"two models": {"from": "one-model", "to": "another-model"}},
    ),
    ("GET", "/admin/switches"): Operation(
        operation_id="switches", tag=_ADMIN, summary="The last times a model was made ready, each by phase", response="Switches",
    ),
    ("GET", "/admin/meters"): Operation(
        operation_id="meters", tag=_ADMIN, summary="What the meters of the server's host read now",
        description="GPUs, processors, memory, and what of it the server and its workers use.", response="Meters",
    ),
    ("GET", "/admin/logs"): Operation(
        operation_id="logs", tag=_ADMIN, summary="The end of the log of a model's worker", response="LogLines", names_model=True,
        query=(
            ("model", True, {"description": "A model's name.", "schema": {"type": "string", "minLength": 1}}),
            ("lines", False, {
                "description": "So many lines at most.",
                "schema": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 100},
            }),
        ),
    ),
    ("POST", "/admin/reload"): Operation(
        operation_id="reload", tag=_ADMIN, summary="Take in the changed configuration, all of it or nothing",
        description="Models that have changed are replaced when the new ones answer. API keys are read again, too.",
        response="Reloaded",
    ),
    ("POST", "/admin/adapters"): Operation(
        operation_id="addAdapter", tag=_ADMIN, summary="Add a LoRA adapter to a model while it runs",
        description="Until the next reload or the server's end: what is to stay belongs into the configuration.",
        body="AdapterBody", response="FleetModel", names_model=True,
        examples={"adapter": {"name": "my-adapter", "path": "/path/to/adapter"}},
    ),
    ("POST", "/admin/adapters/remove"): Operation(
        operation_id="removeAdapter", tag=_ADMIN, summary="Remove a LoRA adapter from a model", body="AdapterNameBody",
        response="FleetModel", names_model=True, examples={"adapter": {"name": "my-adapter"}},
    ),
    ("POST", "/admin/engines/upgrade"): Operation(
        operation_id="upgradeEngine", tag=_ADMIN, summary="Move an engine's models over to another version of it",
        description="The version must be installed. Each model is replaced when it answers on the new version.",
        body="UpgradeBody", response="Upgraded", examples={"version": {"engine": "vllm==1.2.3"}},
    ),
    ("GET", "/openapi.json"): Operation(operation_id="openapi", tag=_SERVER, summary="This document", response="OpenApi"),
    ("GET", "/docs"): Operation(operation_id="docs", tag=_SERVER, summary="This document as a page to browse", media=HTML),
    ("GET", "/"): Operation(operation_id="home", tag=_SERVER, summary="The same page", media=HTML, hidden=True),
}  # fmt: skip

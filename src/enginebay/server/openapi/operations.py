"""What the document says about each route: its purpose, its body, its answers, and examples that work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
EVENTS = "text/event-stream"
HTML = "text/html; charset=utf-8"
METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Operation:
    id: str
    tag: str
    summary: str
    description: str = ""
    body: str = ""  # the struct
    answer: str = ""  # the schema of the answer; without one, `media` says it all
    media: str = JSON
    event: str = ""  # the schema of one event, where the answer can be streamed
    names_model: bool = False  # and so may name one that is not there
    generates: bool = False
    also: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # status: what it means, and its schema
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # title: body without the model
    hidden: bool = False  # the same as another one


_GENERATION = "Generation"
_MODELS = "Models and tokens"
_SERVER = "Server"

_CHAT = {"messages": [{"role": "user", "content": "Say hello in five words."}], "max_tokens": 32}
_TIME = {
    "name": "get_time",
    "description": "The time in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        id="createChatCompletion", tag=_GENERATION, summary="Answer a conversation",
        description="OpenAI's chat completions, with more ways to sample and to constrain the output. "
        "What the model's engine cannot do is refused with 400; what is done in another way is listed in the header "
        "x-enginebay-translated.",
        body="ChatBody", answer="ChatCompletion", event="ChatCompletionChunk", names_model=True, generates=True,
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
        id="createCompletion", tag=_GENERATION, summary="Continue a text",
        description="The prompt goes to the model as it is, without a chat template.",
        body="CompletionBody", answer="Completion", event="Completion", names_model=True, generates=True,
        examples={
            "text": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0.7},
            "streamed": {"prompt": "Once upon a time", "max_tokens": 32, "stream": True},
        },
    ),
    ("POST", "/v1/responses"): Operation(
        id="createResponse", tag=_GENERATION, summary="Answer a conversation, in the form of the Responses API",
        description="Stateless: send the whole conversation as input each time.",
        body="ResponsesBody", answer="Response", event="ResponseEvent", names_model=True, generates=True,
        examples={
            "text": {"input": "Say hello in five words.", "max_output_tokens": 32},
            "streamed": {"input": "Say hello in five words.", "max_output_tokens": 32, "stream": True},
        },
    ),
    ("POST", "/v1/embeddings"): Operation(
        id="createEmbedding", tag=_GENERATION, summary="Turn texts into vectors",
        description="For models that were loaded to embed; others refuse it with 400.",
        body="EmbeddingBody", answer="EmbeddingList", names_model=True,
        examples={"text": {"input": "The quick brown fox"}, "several": {"input": ["one text", "another text"]}},
    ),
    ("GET", "/v1/models"): Operation(
        id="listModels", tag=_MODELS, summary="The models of this server, and their adapters", answer="ModelList"
    ),
    ("GET", "/v1/models/{id}"): Operation(
        id="getModel", tag=_MODELS, summary="What one model can do, and how it runs",
        description="Capabilities for each request parameter, and settings next to the ones that were asked for.",
        answer="ModelDescription", names_model=True,
    ),
    ("POST", "/tokenize"): Operation(
        id="tokenize", tag=_MODELS, summary="A text or a conversation as token ids", body="TokenizeBody",
        answer="Tokenized", names_model=True,
        examples={
            "text": {"prompt": "Hello, world"},
            "conversation": {"messages": [{"role": "user", "content": "Hello"}], "return_token_strs": True},
        },
    ),
    ("POST", "/detokenize"): Operation(
        id="detokenize", tag=_MODELS, summary="Token ids as text", body="DetokenizeBody", answer="Detokenized",
        names_model=True, examples={"tokens": {"tokens": [72, 105]}},
    ),
    ("GET", "/health/live"): Operation(
        id="live", tag=_SERVER, summary="The server runs", answer="Live",
    ),
    ("GET", "/health/ready"): Operation(
        id="ready", tag=_SERVER, summary="A request would be answered now",
        description="Asks each model's engine, unless it has made a token lately.", answer="Readiness",
        also={503: ("A request might not be answered, and why.", "Readiness")},
    ),
    ("GET", "/metrics"): Operation(id="metrics", tag=_SERVER, summary="Metrics for Prometheus", media=METRICS),
    ("GET", "/openapi.json"): Operation(id="openapi", tag=_SERVER, summary="This document", answer="OpenApi"),
    ("GET", "/docs"): Operation(id="docs", tag=_SERVER, summary="This document as a page to browse", media=HTML),
    ("GET", "/"): Operation(id="home", tag=_SERVER, summary="The same page", media=HTML, hidden=True),
}  # fmt: skip

"""Request and response bodies of the Ollama API. Their names, without `Object`, are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from enginebay.server.api.admin.schemas import ModelName
from enginebay.server.api.openai.schema_fields import (
    FrequencyPenalty,
    MinP,
    NonEmptyText,
    PresencePenalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopLogprobs,
    TopP,
)
from enginebay.server.encoding.choice_state import NonNegative, about

JsonObject = dict[str, Any]
KeepAlive = float | str
Think = bool | Literal["low", "medium", "high"]


class OllamaOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """The options that apply to one request. Others are ignored by name."""

    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    num_predict: (
        Annotated[
            int, Meta(ge=-2, le=10_000_000, description="Generate at most this many tokens; 0 and below: no limit")
        ]
        | None
    ) = None
    stop: NonEmptyText | list[NonEmptyText] | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: PresencePenalty | None = None
    frequency_penalty: FrequencyPenalty | None = None
    num_ctx: Annotated[int, Meta(ge=0, description="Ignored: the configuration sets the context")] | None = None


class OllamaBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of every endpoint that runs a model."""

    model: ModelName
    options: JsonObject | None = None
    keep_alive: KeepAlive | None = None


class OllamaOutputBody(OllamaBody, forbid_unknown_fields=True, kw_only=True):
    """The fields of /api/chat and /api/generate."""

    stream: bool | None = None
    format: str | JsonObject | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    # A prompt that does not fit is refused, so these change nothing.
    truncate: bool | None = None
    shift: bool | None = None


class OllamaChatBody(OllamaOutputBody, forbid_unknown_fields=True, kw_only=True):
    """POST /api/chat"""

    messages: list[JsonObject] | None = None
    tools: list[JsonObject] | None = None


class OllamaGenerateBody(OllamaOutputBody, forbid_unknown_fields=True, kw_only=True):
    """POST /api/generate"""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    # Not supported: refused unless the value asks for nothing.
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbedBody(OllamaBody, forbid_unknown_fields=True, kw_only=True):
    """POST /api/embed"""

    input: str | list[str]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None


class OllamaEmbeddingsBody(OllamaBody, forbid_unknown_fields=True, kw_only=True):
    """POST /api/embeddings"""

    prompt: str | None = None


class OllamaShowBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /api/show"""

    model: ModelName | None = None
    name: ModelName | None = None
    verbose: bool | None = None


class OllamaPullBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /api/pull"""

    model: ModelName | None = None
    name: ModelName | None = None
    stream: bool | None = None
    insecure: bool | None = None


# Response bodies


class OllamaErrorObject(Struct):
    error: Annotated[str, about("What is wrong, and what to do.")]


class OllamaFunctionCallObject(Struct):
    index: NonNegative
    name: str
    arguments: dict[str, Any]


class OllamaToolCallObject(Struct):
    id: str
    function: OllamaFunctionCallObject


class OllamaMessageObject(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCallObject] | UnsetType = UNSET


class OllamaTokenLogprobObject(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class OllamaLogprobObject(OllamaTokenLogprobObject):
    top_logprobs: list[OllamaTokenLogprobObject]


class OllamaOutputObject(Struct, kw_only=True):
    """The fields of a response, or of one line of it. Counts and durations are in the last line."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    logprobs: list[OllamaLogprobObject] | UnsetType = UNSET
    total_duration: Annotated[NonNegative | UnsetType, about("Nanoseconds since the request was received.")] = UNSET
    load_duration: Annotated[
        NonNegative | UnsetType,
        about("Nanoseconds until the engine gets the request: loading the model, and queueing."),
    ] = UNSET
    prompt_eval_count: Annotated[NonNegative | UnsetType, about("Prompt tokens, by the engine.")] = UNSET
    prompt_eval_duration: Annotated[NonNegative | UnsetType, about("Nanoseconds until the first token.")] = UNSET
    eval_count: Annotated[NonNegative | UnsetType, about("Output tokens, by the engine.")] = UNSET
    eval_duration: Annotated[NonNegative | UnsetType, about("Nanoseconds from the first token to the last.")] = UNSET


class OllamaChatObject(OllamaOutputObject, kw_only=True):
    message: OllamaMessageObject


class OllamaGenerateObject(OllamaOutputObject, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCallObject] | UnsetType = UNSET


class OllamaEmbedObject(Struct, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: NonNegative
    load_duration: NonNegative
    prompt_eval_count: NonNegative


class OllamaEmbeddingsObject(Struct):
    embedding: list[float]


class OllamaDetailsObject(Struct, kw_only=True):
    parent_model: str = ""
    format: str = ""
    family: str = ""
    families: list[str] | None = None
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaModelObject(Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: Annotated[NonNegative, about("Bytes of its files; 0 if they are not on this host.")]
    digest: Annotated[str, about("Identifies the model on this server. Not a hash of its files.")]
    details: OllamaDetailsObject


class OllamaModelsObject(Struct):
    models: list[OllamaModelObject]


class OllamaRunningModelObject(Struct, kw_only=True):
    name: str
    model: str
    size: Annotated[NonNegative, about("Bytes of memory that its worker uses.")]
    size_vram: Annotated[NonNegative, about("Bytes of it on GPUs.")]
    digest: str
    details: OllamaDetailsObject
    expires_at: Annotated[str, about("When it will be unloaded if no request comes; the year 2262 or later: never.")]
    context_length: NonNegative


class OllamaRunningModelsObject(Struct):
    models: list[OllamaRunningModelObject]


class OllamaShowObject(Struct, kw_only=True):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetailsObject
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "thinking", "embedding"]]
    modified_at: str


class OllamaProgressObject(Struct, kw_only=True):
    status: str
    digest: str | UnsetType = UNSET
    total: NonNegative | UnsetType = UNSET
    completed: NonNegative | UnsetType = UNSET
    error: str | UnsetType = UNSET


class OllamaVersionObject(Struct):
    version: Annotated[str, about("The version of the Ollama API that this server implements.")]
    enginebay: Annotated[str, about("The version of this server.")]

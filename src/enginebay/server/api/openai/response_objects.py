"""Response bodies of OpenAI's API and of the health endpoints. Their names, without `Object`, are those in the OpenAPI document.

The streaming encoders write chunks and events as bytes, for speed; a test checks every kind of them against these structs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from enginebay.server.encoding.choice_state import NonNegative, UsageExtensionObject, UsageObject, about

Task = Literal["generate", "embed"]
TokenIds = Annotated[list[NonNegative], about("With return_token_ids.")]
FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


# Chat completions and completions


class TokenLogprobObject(Struct):
    token: str
    logprob: float
    bytes: list[NonNegative] | None


class LogprobEntryObject(TokenLogprobObject):
    top_logprobs: list[TokenLogprobObject]


class ChatLogprobsObject(Struct):
    content: list[LogprobEntryObject]
    refusal: str | None = None


class CalledFunctionObject(Struct):
    name: Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,128}$")]
    arguments: Annotated[str, about('JSON text, such as {"city": "Paris"}')]


class MessageToolCallObject(Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionObject


class AssistantMessageObject(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: Annotated[str | UnsetType, about("The model's thought, if it wrote one.")] = UNSET
    reasoning: Annotated[str | UnsetType, about("The same as reasoning_content.")] = UNSET
    tool_calls: list[MessageToolCallObject] | UnsetType = UNSET


class ChatChoiceObject(Struct):
    index: NonNegative
    message: AssistantMessageObject
    logprobs: ChatLogprobsObject | None
    finish_reason: FinishReason
    token_ids: TokenIds | UnsetType = UNSET


class CompletionLogprobsObject(Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[NonNegative]


class CompletionChoiceObject(Struct):
    index: NonNegative
    text: str
    logprobs: CompletionLogprobsObject | None
    finish_reason: FinishReason | None
    prompt_token_ids: TokenIds | UnsetType = UNSET
    token_ids: TokenIds | UnsetType = UNSET


class ChatCompletionObject(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: NonNegative
    model: str
    choices: list[ChatChoiceObject]
    usage: UsageObject
    system_fingerprint: str
    prompt_token_ids: TokenIds | UnsetType = UNSET


class CompletionObject(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: NonNegative
    model: str
    choices: list[CompletionChoiceObject]
    usage: UsageObject | UnsetType | None = UNSET
    system_fingerprint: str


class FunctionDeltaObject(Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDeltaObject(Struct):
    index: NonNegative
    function: FunctionDeltaObject
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class DeltaObject(Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDeltaObject] | UnsetType = UNSET


class ChunkChoiceObject(Struct):
    index: NonNegative
    delta: DeltaObject
    logprobs: ChatLogprobsObject | None
    finish_reason: FinishReason | None
    token_ids: TokenIds | UnsetType = UNSET


class ChatCompletionChunkObject(Struct):
    id: str
    object: Literal["chat.completion.chunk"]
    created: NonNegative
    model: str
    system_fingerprint: str
    choices: list[ChunkChoiceObject]
    usage: UsageObject | UnsetType | None = UNSET
    prompt_token_ids: TokenIds | UnsetType = UNSET


# Embeddings, models and tokens


class EmbeddingObject(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: NonNegative
    embedding: list[float] | str


class EmbeddingUsageObject(Struct):
    prompt_tokens: NonNegative
    total_tokens: NonNegative


class EmbeddingListObject(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsageObject


class ModelObject(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: NonNegative
    owned_by: str = "enginebay"
    max_model_len: Annotated[NonNegative | None, about("Its context length. Null before its first load.")]
    parent: Annotated[str | UnsetType, about("For an adapter: its model.")] = UNSET


class ModelListObject(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelObject]


class CapabilityObject(Struct):
    support: str
    detail: str | None


class SettingObject(Struct):
    effective: Any
    asked: Any


class ModelDetailsObject(Struct, kw_only=True):
    """Before the model's first load, only the fields that the configuration gives."""

    state: str
    engine: str
    fallback: Annotated[list[str], about("Fallback engines, in order.")]
    task: Task
    adapters: list[str]
    version: str | UnsetType = UNSET
    context_length: NonNegative | UnsetType = UNSET
    max_batch: NonNegative | UnsetType = UNSET
    memory_bytes: NonNegative | UnsetType = UNSET
    load_s: float | UnsetType = UNSET
    capabilities: Annotated[
        dict[str, CapabilityObject] | UnsetType,
        about("For each request parameter: honours, translates or refuses, and how."),
    ] = UNSET
    settings: Annotated[
        dict[str, SettingObject] | UnsetType, about("Effective settings next to the configured ones.")
    ] = UNSET
    sampling_defaults: dict[str, Any] | UnsetType = UNSET
    tool_format: str | UnsetType = UNSET
    reasoning_format: str | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ModelDescriptionObject(ModelObject, kw_only=True):
    enginebay: ModelDetailsObject


class TokenizedObject(Struct):
    count: NonNegative
    max_model_len: NonNegative
    tokens: tuple[NonNegative, ...]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizedObject(Struct):
    prompt: str


# Health


class LiveObject(Struct):
    status: Literal["live"] = "live"


class ReadinessObject(Struct):
    status: Literal["ready", "not ready"]
    models: Annotated[list[str] | UnsetType, about("Models that would serve a request. Missing without a key.")] = UNSET
    reasons: Annotated[list[str] | UnsetType, about("Why the server is not ready.")] = UNSET
    failing: Annotated[list[str] | UnsetType, about("Failing models that load on use.")] = UNSET


# Responses


class OutputTextObject(Struct, tag="output_text"):
    text: str
    logprobs: list[LogprobEntryObject]
    annotations: list[dict[str, Any]] = []


class MessageItemObject(Struct, tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputTextObject]
    role: Literal["assistant"] = "assistant"


class FunctionCallItemObject(Struct, tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class ReasoningTextObject(Struct, tag="reasoning_text"):
    text: str


class ReasoningItemObject(Struct, tag="reasoning"):
    id: str
    status: ItemStatus
    content: list[ReasoningTextObject]
    summary: list[dict[str, Any]] = []
    encrypted_content: Annotated[
        str | UnsetType | None, about("The content, encoded, if `include` has reasoning.encrypted_content.")
    ] = UNSET


class CustomToolCallItemObject(Struct, tag="custom_tool_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


ItemObject = MessageItemObject | FunctionCallItemObject | CustomToolCallItemObject | ReasoningItemObject


class ConversationReferenceObject(Struct):
    id: str


class ResponseErrorObject(Struct):
    code: str
    message: str


class IncompleteDetailsObject(Struct):
    reason: str


class InputTokensDetailsObject(Struct):
    cached_tokens: NonNegative
    cache_write_tokens: NonNegative = 0


class OutputTokensDetailsObject(Struct):
    reasoning_tokens: NonNegative = 0


class ResponseUsageObject(Struct):
    input_tokens: NonNegative
    input_tokens_details: InputTokensDetailsObject
    output_tokens: NonNegative
    output_tokens_details: OutputTokensDetailsObject
    total_tokens: NonNegative
    enginebay: Annotated[UsageExtensionObject | UnsetType, about("With include_energy.")] = UNSET


class ReasoningObject(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ResponseObject(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: NonNegative
    status: ResponseStatus
    background: bool = False
    completed_at: NonNegative | None = None
    error: ResponseErrorObject | None = None
    incomplete_details: IncompleteDetailsObject | None = None
    model: str
    output: list[ItemObject]
    previous_response_id: str | None = None
    conversation: ConversationReferenceObject | None = None
    reasoning: ReasoningObject = ReasoningObject()
    store: bool = False
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsageObject | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    prompt_cache_key: str | None
    safety_identifier: str | None
    service_tier: Literal["default"]
    presence_penalty: float
    frequency_penalty: float
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: NonNegative
    top_p: float
    user: str | None


class ResponseEventObject(Struct):
    type: Annotated[
        str, about("OpenAI's event types: response.created, response.output_text.delta, response.completed and so on")
    ]
    sequence_number: NonNegative

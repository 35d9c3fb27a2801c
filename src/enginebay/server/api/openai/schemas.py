"""Request bodies of the OpenAI API, one struct per endpoint. Their names are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from enginebay.server.api.openai.schema_fields import (
    AllowSpecialTokens,
    GenerationFields,
    MaxReasoningTokens,
    MaxTokens,
    NonEmptyText,
    SamplingFields,
    TokenId,
    TopLogprobs,
)

JsonObject = dict[str, Any]


class ChatBody(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions"""

    messages: Annotated[list[JsonObject], Meta(min_length=1)]
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    modalities: Any = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking: bool | JsonObject | None = None
    max_reasoning_tokens: MaxReasoningTokens | None = None
    chat_template: Any = None
    chat_template_kwargs: JsonObject | None = None
    documents: list[JsonObject] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    max_output_tokens: MaxTokens | None = None  # /v1/responses: max_tokens
    # Ignored or refused: see `fields.field_table`.
    verbosity: Any = None
    prediction: Any = None
    web_search_options: Any = None
    audio: Any = None
    moderation: Any = None
    functions: Any = None
    function_call: Any = None

    @property
    def has_thinking_switch(self) -> bool:
        return not (
            self.reasoning_effort is None
            and self.enable_thinking is None
            and self.thinking is None
            and self.max_reasoning_tokens is None
        )


class CompletionBody(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions"""

    prompt: NonEmptyText | Annotated[list[Any], Meta(min_length=1)]
    max_tokens: MaxTokens | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    suffix: Any = None


class EmbeddingBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/embeddings"""

    model: str
    input: NonEmptyText | Annotated[list[Any], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None


class TokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize"""

    model: str
    prompt: str | None = None
    messages: list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    add_special_tokens: bool | None = None
    allow_special_tokens: AllowSpecialTokens | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize"""

    model: str
    tokens: list[TokenId]


class ResponsesText(Struct, forbid_unknown_fields=True, kw_only=True):
    """The text format of a response."""

    format: JsonObject | None = None
    verbosity: Any = None


class ResponsesStreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    include_energy: bool | None = None  # an extension
    include_obfuscation: bool | None = None


class ResponsesBody(SamplingFields, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/responses"""

    input: NonEmptyText | Annotated[list[JsonObject], Meta(min_length=1)] | None = None
    instructions: str | None = None
    max_output_tokens: MaxTokens | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[str] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    text: ResponsesText | None = None
    stream_options: ResponsesStreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | JsonObject | None = None
    prompt: JsonObject | None = None
    reasoning: JsonObject | None = None
    enable_thinking: bool | None = None
    thinking: bool | JsonObject | None = None
    max_reasoning_tokens: MaxReasoningTokens | None = None
    metadata: dict[str, str] | None = None
    moderation: JsonObject | None = None
    context_management: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None
    # Names of the other endpoints.
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    # Ignored or refused: see `fields.field_table`.
    client_metadata: Any = None
    return_token_ids: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_grammar: Any = None
    guided_choice: Any = None

    @property
    def wants_energy(self) -> bool:
        return bool(self.include_energy or (self.stream_options and self.stream_options.include_energy))

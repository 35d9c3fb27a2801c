"""Response bodies of the Messages API. Their names, without `Object`, are those in the OpenAPI document.

The streaming encoder writes text deltas as bytes, for speed; a test checks every kind of event against these structs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from enginebay.server.encoding.choice_state import NonNegative, about

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
# Those that Anthropic's SDKs know, and `request_too_large`.
ErrorType = Literal[
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large",
    "rate_limit_error", "api_error", "timeout_error", "overloaded_error",
]  # fmt: skip


class TextBlockObject(Struct, kw_only=True):
    type: Literal["text"] = "text"
    text: str
    citations: None = None


class ThinkingBlockObject(Struct, kw_only=True):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: Annotated[str, about("Opaque. Send the block back as it is.")]


class ToolUseBlockObject(Struct, kw_only=True):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


ContentBlockObject = dict[str, Any]  # one of the three: msgspec takes no untagged union of structs


class ThinkingTokensObject(Struct):
    thinking_tokens: Annotated[NonNegative, about("Tokens of the thought, with its tags.")]


class MessageUsageObject(Struct, kw_only=True):
    """Counted by the engine. The whole prompt is the sum of the three kinds of input tokens."""

    input_tokens: Annotated[NonNegative, about("Prompt tokens that were computed.")]
    cache_creation_input_tokens: Annotated[NonNegative, about("Always 0: prompt caching is automatic.")] = 0
    cache_read_input_tokens: Annotated[NonNegative, about("Prompt tokens whose KV cache was reused.")] = 0
    output_tokens: NonNegative
    output_tokens_details: Annotated[
        ThinkingTokensObject | UnsetType, about("For a model with a reasoning format.")
    ] = UNSET


class MessageObject(Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: Annotated[list[ContentBlockObject], about("Blocks of type text, thinking or tool_use.")]
    stop_reason: StopReason | None = None
    stop_sequence: Annotated[str | None, about("The stop sequence that ended the response.")] = None
    stop_details: None = None
    container: None = None
    usage: MessageUsageObject


class MessageEventObject(Struct):
    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "ping", "error",
    ]  # fmt: skip


class TokenCountObject(Struct):
    input_tokens: Annotated[NonNegative, about("The tokens of system prompt, tools and messages.")]


class AnthropicErrorDetailObject(Struct):
    type: ErrorType
    message: Annotated[str, about("What is wrong, and what to do.")]
    param: Annotated[str | None, about("The field that the error is about.")]


class AnthropicErrorObject(Struct, kw_only=True):
    type: Literal["error"] = "error"
    error: AnthropicErrorDetailObject
    request_id: str | None


class AnthropicModelObject(Struct, kw_only=True):
    type: Literal["model"] = "model"
    id: str
    display_name: str
    created_at: Annotated[str, about("When the server started to serve it (RFC 3339).")]
    max_input_tokens: Annotated[int | None, about("The context length. Null until the model is loaded.")]
    max_tokens: Annotated[int | None, about("The longest output. Null until the model is loaded.")]
    lifecycle: Literal["active"] = "active"
    line: None = None
    capabilities: None = None
    deprecated_at: None = None
    retires_at: None = None


class AnthropicModelListObject(Struct, kw_only=True):
    data: list[AnthropicModelObject]
    has_more: bool
    first_id: str | None
    last_id: str | None

"""Request bodies of the Messages API, one struct per endpoint. Their names are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from enginebay.server.api.openai.schema_fields import MaxTokens, NonEmptyText, Temperature, TopK, TopP

JsonObject = dict[str, Any]


class MessagesPrompt(Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that the prompt consists of, and those that cannot change the response."""

    model: str
    messages: Annotated[list[JsonObject], Meta(min_length=1)]
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    thinking: JsonObject | None = None
    output_config: JsonObject | None = None
    output_format: JsonObject | None = None
    mcp_servers: list[JsonObject] | None = None
    # Ignored, and named in x-enginebay-ignored.
    cache_control: JsonObject | None = None
    container: str | JsonObject | None = None
    context_management: JsonObject | None = None
    diagnostics: JsonObject | None = None
    inference_geo: str | None = None
    service_tier: str | None = None
    speed: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None
    betas: list[str] | None = None


class MessagesBody(MessagesPrompt, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages"""

    max_tokens: MaxTokens
    stop_sequences: list[NonEmptyText] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: JsonObject | None = None


class CountTokensBody(MessagesPrompt, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages/count_tokens"""

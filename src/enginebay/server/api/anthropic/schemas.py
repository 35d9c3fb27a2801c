"""Request bodies of the Messages API, one struct per endpoint. Their names are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from enginebay.server.api.openai.schema_fields import NonEmptyText, Temperature, TopK, TopP

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
    # Ignored or refused: see `fields.field_table`.
    mcp_servers: Any = None
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    service_tier: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None
    betas: Any = None


class MessagesBody(MessagesPrompt, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages"""

    max_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1, description="Generate at most this many tokens")]
    stop_sequences: list[NonEmptyText] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: JsonObject | None = None


class CountTokensBody(MessagesPrompt, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/messages/count_tokens"""

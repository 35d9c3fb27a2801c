"""Bodies of the stateful endpoints: requests, and responses with the suffix `Object`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from enginebay.server.api.openai.response_objects import ResponseUsageObject
from enginebay.server.api.openai.schema_fields import NonEmptyText
from enginebay.server.encoding.choice_state import NonNegative, about

MAX_ADDED_ITEMS = 20
_Items = Annotated[list[dict[str, Any]], Meta(max_length=MAX_ADDED_ITEMS, description="Up to 20 items.")]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16, description="Up to 16 pairs of strings, returned with the conversation."),
]


class ConversationBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/conversations"""

    items: _Items | None = None
    metadata: Metadata | None = None


class ConversationUpdateBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/conversations/{conversation_id}"""

    metadata: Metadata | None


class ConversationItemsBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/conversations/{conversation_id}/items"""

    items: Annotated[
        list[dict[str, Any]], Meta(min_length=1, max_length=MAX_ADDED_ITEMS, description="Up to 20 items.")
    ]


class CompactBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/responses/compact"""

    model: str
    input: NonEmptyText | Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None


class ConversationObject(Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: NonNegative
    metadata: dict[str, str]


class ConversationDeletedObject(Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class ResponseDeletedObject(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemListObject(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredItemObject(Struct, kw_only=True):
    """An item of a conversation; its other fields depend on its type."""

    id: str
    type: str


class InputTokensObject(Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: NonNegative


class CompactionObject(Struct, kw_only=True):
    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: NonNegative
    status: Annotated[
        Literal["completed", "incomplete"], about("incomplete: the summary was cut at its maximum length, or is empty.")
    ]
    output: Annotated[list[dict[str, Any]], about("The user's messages, then one compaction item.")]
    usage: ResponseUsageObject

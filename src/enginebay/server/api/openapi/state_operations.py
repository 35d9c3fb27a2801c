"""The OpenAPI operations of stored responses and conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.server.api.openapi.operation import Operation

_STATE = "Responses and conversations"
_MESSAGE = {"type": "message", "role": "user", "content": "Remember the number 7."}

_PAGE: tuple[tuple[str, bool, Mapping[str, Any]], ...] = (
    ("limit", False, {
        "description": "Maximum number of items.", "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    }),
    ("order", False, {
        "description": "Oldest or newest first.", "schema": {"enum": ["asc", "desc"], "type": "string", "default": "desc"},
    }),
    ("after", False, {"description": "The last_id of the previous page.", "schema": {"type": "string"}}),
)  # fmt: skip
_STREAM: tuple[tuple[str, bool, Mapping[str, Any]], ...] = (
    ("stream", False, {
        "description": "Stream the events of a background response that was created with stream.", "schema": {"type": "boolean"},
    }),
    ("starting_after", False, {
        "description": "Only events after this sequence number.", "schema": {"type": "integer", "minimum": 0, "maximum": 10**9},
    }),
)  # fmt: skip

STATE_OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/responses/input_tokens"): Operation(
        operation_id="countInputTokens", tag=_STATE, summary="Count the input tokens of a response",
        body="ResponsesBody", response="InputTokens", names_model=True,
        examples={"text": {"input": "Say hello in five words."}},
    ),
    ("POST", "/v1/responses/compact"): Operation(
        operation_id="compactResponse", tag=_STATE, summary="Summarize a conversation to shorten it",
        description="Send the output as the input of the next response.",
        body="CompactBody", response="Compaction", names_model=True, generates=True,
        examples={"conversation": {"input": [_MESSAGE]}},
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(
        operation_id="getResponse", tag=_STATE, summary="Return a stored response", response="Response", event="ResponseEvent",
        query=_STREAM, names_state=True,
    ),
    ("DELETE", "/v1/responses/{response_id}"): Operation(
        operation_id="deleteResponse", tag=_STATE, summary="Delete a stored response", response="ResponseDeleted", names_state=True,
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(
        operation_id="cancelResponse", tag=_STATE, summary="Cancel a background response", response="Response",
        names_state=True,
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        operation_id="listInputItems", tag=_STATE, summary="List the input items of a response", response="ItemList", query=_PAGE,
        names_state=True,
    ),
    ("POST", "/v1/conversations"): Operation(
        operation_id="createConversation", tag=_STATE, summary="Create a conversation",
        description="Pass its id as `conversation` of a response: its items come first, and the turn is added to it.",
        body="ConversationBody", body_required=False, response="Conversation", names_state=True,
        examples={"empty": {}, "with an item": {"items": [_MESSAGE], "metadata": {"topic": "numbers"}}},
    ),
    ("GET", "/v1/conversations/{conversation_id}"): Operation(
        operation_id="getConversation", tag=_STATE, summary="Return a conversation", response="Conversation", names_state=True,
    ),
    ("POST", "/v1/conversations/{conversation_id}"): Operation(
        operation_id="updateConversation", tag=_STATE, summary="Replace the metadata of a conversation",
        body="ConversationUpdateBody", response="Conversation", names_state=True,
        examples={"metadata": {"metadata": {"topic": "numbers"}}},
    ),
    ("DELETE", "/v1/conversations/{conversation_id}"): Operation(
        operation_id="deleteConversation", tag=_STATE, summary="Delete a conversation with its items and responses",
        response="ConversationDeleted", names_state=True,
    ),
    ("GET", "/v1/conversations/{conversation_id}/items"): Operation(
        operation_id="listConversationItems", tag=_STATE, summary="List the items of a conversation", response="ItemList",
        query=_PAGE, names_state=True,
    ),
    ("POST", "/v1/conversations/{conversation_id}/items"): Operation(
        operation_id="createConversationItems", tag=_STATE, summary="Add items to a conversation", body="ConversationItemsBody",
        response="ItemList", names_state=True, examples={"item": {"items": [_MESSAGE]}},
    ),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        operation_id="getConversationItem", tag=_STATE, summary="Return an item of a conversation", response="StoredItem",
        names_state=True,
    ),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}"): Operation(
        operation_id="deleteConversationItem", tag=_STATE, summary="Delete an item of a conversation", response="Conversation",
        names_state=True,
    ),
}  # fmt: skip

"""What the OpenAPI document says of one route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
NDJSON_MEDIA = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Operation:
    operation_id: str
    tag: str
    summary: str
    description: str = ""
    body: str = ""  # the struct's name
    body_required: bool = True
    response: str = ""  # the schema's name; empty for text
    media: str = JSON
    event: str = ""  # the schema's name, if the response can be streamed
    lines: str = ""  # the schema's name, if it can be streamed as lines of JSON
    error: str = "Error"  # the schema of its errors
    query: tuple[tuple[str, bool, Mapping[str, Any]], ...] = ()  # name, required, description and schema
    names_model: bool = False  # so it can return 404
    names_state: bool = False  # stored responses and conversations: can return 404, and 503 if they cannot be read
    generates: bool = False
    extra_responses: Mapping[int, tuple[str, str]] = field(default_factory=dict)  # status: description and schema
    examples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by title; without the model
    hidden: bool = False  # an alias of another operation

"""Response schemas: msgspec's schemas of the structs that the encoders fill."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from enginebay.server.api.admin import schemas as admin
from enginebay.server.api.anthropic import message_objects as anthropic
from enginebay.server.api.ollama import schemas as ollama
from enginebay.server.api.openai import response_objects as openai
from enginebay.server.api.openai.responses_api import state_schemas as state
from enginebay.server.api.openapi.schema_builders import Schema
from enginebay.server.encoding import error_responses

_SUFFIX = "Object"
_BODIES: tuple[Any, ...] = (
    error_responses.ErrorObject,
    openai.ChatCompletionObject, openai.ChatCompletionChunkObject, openai.CompletionObject,
    openai.EmbeddingListObject, openai.ModelListObject, openai.ModelDescriptionObject, openai.TokenizedObject,
    openai.DetokenizedObject, openai.LiveObject, openai.ReadinessObject, openai.ResponseObject,
    openai.ResponseEventObject,
    anthropic.AnthropicErrorObject, anthropic.MessageObject, anthropic.MessageEventObject, anthropic.TokenCountObject,
    anthropic.TextBlockObject, anthropic.ThinkingBlockObject, anthropic.ToolUseBlockObject,
    anthropic.AnthropicModelListObject,
    state.InputTokensObject, state.CompactionObject, state.ResponseDeletedObject, state.ItemListObject, state.StoredItemObject,
    state.ConversationObject, state.ConversationDeletedObject,
    admin.FleetObject, admin.SwitchesObject, admin.MetersObject, admin.LogLinesObject, admin.ReloadedObject,
    admin.UpgradedObject,
    ollama.OllamaErrorObject, ollama.OllamaChatObject, ollama.OllamaGenerateObject, ollama.OllamaEmbedObject,
    ollama.OllamaEmbeddingsObject, ollama.OllamaModelsObject, ollama.OllamaRunningModelsObject, ollama.OllamaShowObject,
    ollama.OllamaProgressObject, ollama.OllamaVersionObject,
)  # fmt: skip


def build_response_schemas() -> dict[str, Schema]:
    """Return all response schemas by name. A field is required unless it can be unset: encoders write all others."""
    _, components = msgspec.json.schema_components(_BODIES, ref_template="#/components/schemas/{name}")
    for name, schema in components.items():
        fields: dict[str, Schema] = schema["properties"]
        required = [field for field in fields if field in schema["required"] or "default" in fields[field]]
        schema |= {"title": name.removesuffix(_SUFFIX), "required": required}
        for field in fields.values():
            field.pop("default", None)
    text = msgspec.json.encode({name.removesuffix(_SUFFIX): schema for name, schema in components.items()}).decode()
    renamed: dict[str, Schema] = msgspec.json.decode(re.sub(rf'(#/components/schemas/\w+){_SUFFIX}"', r'\1"', text))
    return renamed

"""A model that this server process answers for, and the names clients know models by."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from enginebay.config.server import Limits
from enginebay.contract import Support
from enginebay.errors import UnknownModel
from enginebay.fleet.model_client import ModelClient
from enginebay.server.admission import Gate
from enginebay.server.metrics import Metrics
from enginebay.text.tools import FORMATS, ToolFormat, detect_format

_PATH = re.compile(r"(?<![\w:/.])~?/[^\s,;:'\"]+")  # of a file; not the slash in "tokens/s", nor an address


class ServedModel:
    """One model's session, queue and counters. Counters are bound once: a request only adds to them."""

    def __init__(self, client: ModelClient, limits: Limits, metrics: Metrics, share: int = 1) -> None:
        resident, facts = client.resident, client.facts
        self.client = client
        self.limits = limits
        self.name = resident.model
        self.engine = f"{facts.kind} {facts.version}"
        self.engine_header = f"x-enginebay-engine: {self.engine}\r\n".encode("ascii", "replace")
        self.created = int(time.time())
        self.heard_at = float("-inf")  # when the engine last made a token for us
        self.probe: asyncio.Future[str] | None = None  # a question to the engine whether it still answers
        self.gate = Gate(max(1, limits.running // share), limits.queue // share, limits.queue_timeout_s)
        self.defaults = {name: value for name, value in resident.sampling.items() if self.does(name)}
        self.tool_format = _tool_format(client)
        self.markers = self._marker_ids()
        self._call_ids = itertools.count(1)
        self._call_prefix = f"call_{secrets.token_hex(6)}"
        labels = (self.name, facts.kind)
        self.labels = labels
        self.ttft = metrics.time_to_first_token.child(*labels)
        self.inter_token = metrics.inter_token_latency.child(*labels)
        self.queue_time = metrics.queue_time.child(*labels)
        self.duration = metrics.request_duration.child(*labels)
        self.prompt_tokens = metrics.prompt_tokens.child(*labels)
        self.cached_tokens = metrics.cached_tokens.child(*labels)
        self.completion_tokens = metrics.completion_tokens.child(*labels)
        self.running = metrics.requests_running.child(*labels)
        self.waiting = metrics.requests_waiting.child(*labels)

    def call_id(self) -> str:
        """A name for one call of a tool, unlike all others."""
        return f"{self._call_prefix}{next(self._call_ids):04x}"

    def does(self, parameter: str) -> bool:
        """Whether the engine takes this parameter, at its version and with this model."""
        declared = self.client.spec.request.get(parameter)
        refused = declared is None or declared.support is Support.REFUSES
        return not refused and parameter not in self.client.facts.refused

    def marked(self, text: str, token_ids: Sequence[int]) -> str:
        """The text of some tokens with the markers of tool calls, which engines leave out as special tokens."""
        markers = self.markers
        if not markers or not any(token in markers for token in token_ids):
            return text
        if len(token_ids) == 1:
            return markers[token_ids[0]] + text
        # Where in the text the markers belong, only the tokens tell.
        raw = self.client.prompts.token_bytes
        return b"".join(raw(token) for token in token_ids).decode("utf-8", "replace")

    def _marker_ids(self) -> dict[int, str]:
        """Special tokens that begin or end a tool call: engines leave them out of the text."""
        tokenizer = self.client.prompts.tokenizer
        if tokenizer is None:
            return {}
        found = {marker: tokenizer.raw.token_to_id(marker) for marker in self.tool_format.markers}
        return {number: marker for marker, number in found.items() if number in tokenizer.special_ids}


class Catalogue:
    """Models and their adapters by name."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.models = {model.name: model for model in models}
        self._adapters = {
            lora: model
            for model in self.models.values()
            for lora in model.client.resident.loras
            if lora not in self.models
        }

    def find(self, name: str) -> tuple[ServedModel, str | None]:
        """The model of this name, and the adapter if the name is an adapter's."""
        model = self.models.get(name)
        if model is not None:
            return model, None
        model = self._adapters.get(name)
        if model is not None:
            return model, name
        known = ", ".join([*self.models, *self._adapters])
        raise UnknownModel(f"there is no model {name[:100]!r}", f"this server has: {known}", param="model")

    def listed(self) -> list[dict[str, Any]]:
        models = [self.entry(name) for name in self.models]
        return models + [self.entry(name) for name in self._adapters]

    def entry(self, name: str) -> dict[str, Any]:
        model, lora = self.find(name)
        found: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "enginebay",
            "max_model_len": model.client.facts.context_length,
        }
        return {**found, "parent": model.name} if lora else found

    def described(self, name: str) -> dict[str, Any]:
        """What this model can do and how it runs, next to what was asked for."""
        model, _ = self.find(name)
        facts, resident = model.client.facts, model.client.resident
        capabilities = {
            parameter: {"support": capability.support.value, "detail": capability.detail}
            for parameter, capability in model.client.spec.request.items()
        }
        for parameter, why in facts.refused.items():
            capabilities[parameter] = {"support": Support.REFUSES.value, "detail": why}
        shown_settings = {
            setting: {"effective": facts.effective.get(setting), "asked": facts.asked.get(setting)}
            for setting in sorted({*facts.effective, *facts.asked})
        }
        return {
            **self.entry(name),
            "enginebay": {
                "engine": facts.kind,
                "version": facts.version,
                "task": resident.task,
                "context_length": facts.context_length,
                "max_batch": facts.max_batch,
                "memory_bytes": facts.memory_bytes,
                "load_s": facts.load_s,
                "capabilities": capabilities,
                "settings": without_paths(shown_settings),
                "sampling_defaults": model.defaults,
                "tool_format": model.tool_format.name,
                "adapters": list(resident.loras),
                "warnings": without_paths(facts.warnings),
            },
        }


def _tool_format(client: ModelClient) -> ToolFormat:
    """The one the configuration names, else the one that the model's chat template speaks of."""
    named = client.resident.tool_format
    return FORMATS[detect_format(client.prompts.template) if named == "auto" else named]


def without_paths(value: Any) -> Any:
    """Settings and warnings may name files of this host: those stay here."""
    if isinstance(value, str):
        return _PATH.sub("(a path)", value)
    if isinstance(value, Mapping):
        return {name: without_paths(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(one) for one in value]
    return value

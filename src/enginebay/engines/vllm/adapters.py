"""LoRA adapters by name: those listed at load, and those added or removed at runtime."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.engines.vllm import model_checks
from enginebay.errors import InvalidRequest, ModelInvalid

_PEFT_HINT = "set the directory of a PEFT adapter, with adapter_config.json and adapter_model.safetensors"


class VllmAdapters:
    """Maps adapter names to vLLM's LoRARequests. Changed by one thread at a time, read by any.

    `max_rank` and `max_adapters` are the engine's limits. With rank 0 it has no adapters.
    """

    def __init__(self, model: str, adapters: Mapping[str, str], max_rank: int, max_adapters: int | None = None) -> None:
        self._model = model
        self._max_rank = max_rank
        self._max_adapters = max_adapters
        self._numbers = itertools.count(1)
        self._draining: set[int] = set()
        self._requests = {name: self._make_request(name, path) for name, path in adapters.items()}

    @property
    def enabled(self) -> bool:
        return self._max_rank > 0

    @property
    def has_draining(self) -> bool:
        """Whether requests still run on a removed adapter."""
        return bool(self._draining)

    def all(self) -> dict[str, Any]:
        return dict(self._requests)

    def find(self, name: str | None) -> Any:
        """Return vLLM's LoRARequest for the adapter; None means the base model."""
        if name is None:
            return None
        request = self._requests.get(name)
        if request is None:
            known = ", ".join(self._requests) or "none"
            raise InvalidRequest(f"unknown LoRA adapter {name!r}", f"available: {known}", param="lora")
        return request

    def prepare(self, name: str, path: str) -> Any:
        """Check a new adapter and return its LoRARequest; None if it is already loaded."""
        if not self.enabled:
            raise InvalidRequest(
                f"{self._model} was loaded without adapter support",
                "load it with lora.enabled: true, and set lora.max_rank if an adapter's rank is above 16",
                param="lora",
            )
        present = self._requests.get(name)
        if present is not None:
            if present.lora_path == path:
                return None
            raise InvalidRequest(
                f"adapter {name} is already loaded from {present.lora_path}", "remove it first, or use another name",
                param="lora",
            )  # fmt: skip
        self._check_files(name, path)
        if self._max_adapters is not None and len(self._requests) + len(self._draining) >= self._max_adapters:
            raise InvalidRequest(
                f"{self._model} supports at most {self._max_adapters} adapters",
                "raise lora.max_loras, or remove one",
                param="lora",
            )
        return self._make_request(name, path)

    def add(self, name: str, request: Any) -> None:
        self._requests[name] = request

    def remove(self, name: str) -> Any:
        """Hide the adapter from new requests. Call `forget_removed` once vLLM has unloaded it."""
        request = self.find(name)
        del self._requests[name]
        self._draining.add(request.lora_int_id)
        return request

    def forget_removed(self, request: Any) -> None:
        self._draining.discard(request.lora_int_id)

    def _check_files(self, name: str, path: str) -> None:
        if not Path(path).is_dir():
            raise InvalidRequest(f"adapter {name}: {path} is not a directory", _PEFT_HINT, param="lora")
        try:
            rank = model_checks.read_lora_ranks({name: path})[name]
        except ModelInvalid as error:
            raise InvalidRequest(error.message, error.hint, param="lora") from None
        if rank > self._max_rank:
            raise InvalidRequest(
                f"adapter {name} has rank {rank}, but {self._model} was loaded for ranks up to {self._max_rank}",
                f"load it with lora.max_rank: {rank}",
                param="lora",
            )

    def _make_request(self, name: str, path: str) -> Any:
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        # vLLM keys cached prefixes by adapter name: a new adapter must not reuse those of an old one with its name.
        return LoRARequest(f"{name}#{number}", number, path)

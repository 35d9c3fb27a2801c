"""vLLM's LoRA adapters by name: those of the load, and those that come and go while it runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.engines.vllm import model_checks
from enginebay.errors import InvalidRequest, ModelInvalid

_PEFT_HINT = "give the directory of a PEFT adapter, with adapter_config.json and adapter_model.safetensors"


class VllmAdapters:
    """Names, and the request that vLLM wants for each. Changed by one thread at a time, read by any.

    `max_rank` and `room` are what the engine was started for; rank 0: it was started without adapters.
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
        """Are there adapters whose last requests still run?"""
        return bool(self._draining)

    def all(self) -> dict[str, Any]:
        return dict(self._requests)

    def find(self, name: str | None) -> Any:
        """vLLM's request for the adapter of a generation; None stands for the plain model."""
        if name is None:
            return None
        found = self._requests.get(name)
        if found is None:
            known = ", ".join(self._requests) or "none"
            raise InvalidRequest(f"{self._model} has no adapter {name!r}", f"known adapters: {known}", param="lora")
        return found

    def prepare(self, name: str, path: str) -> Any:
        """The request for a new adapter, once all that can be known beforehand fits; None if it is there already."""
        if not self.enabled:
            raise InvalidRequest(
                f"{self._model} was loaded without room for adapters",
                "load it with lora.enabled: true, and lora.max_rank where an adapter's rank is above 16",
                param="lora",
            )
        present = self._requests.get(name)
        if present is not None:
            if present.lora_path == path:
                return None
            raise InvalidRequest(
                f"adapter {name} is loaded from {present.lora_path}", "remove it first, or use another name",
                param="lora",
            )  # fmt: skip
        self._check_files(name, path)
        if self._max_adapters is not None and len(self._requests) + len(self._draining) >= self._max_adapters:
            raise InvalidRequest(
                f"{self._model} has room for {self._max_adapters} adapters",
                "raise lora.max_loras, or remove one",
                param="lora",
            )
        return self._make_request(name, path)

    def add(self, name: str, request: Any) -> None:
        self._requests[name] = request

    def remove(self, name: str) -> Any:
        """No new request finds the adapter any more; `gone` says when vLLM has forgotten it."""
        found = self.find(name)
        del self._requests[name]
        self._draining.add(found.lora_int_id)
        return found

    def forget_removed(self, request: Any) -> None:
        self._draining.discard(request.lora_int_id)

    def _check_files(self, name: str, path: str) -> None:
        if not Path(path).is_dir():
            raise InvalidRequest(f"adapter {name}: {path} is no directory", _PEFT_HINT, param="lora")
        try:
            rank = model_checks.read_lora_ranks({name: path})[name]
        except ModelInvalid as error:
            raise InvalidRequest(error.message, error.hint, param="lora") from None
        if rank > self._max_rank:
            raise InvalidRequest(
                f"adapter {name} has rank {rank}, and {self._model} was loaded for ranks up to {self._max_rank}",
                f"load it with lora.max_rank: {rank}",
                param="lora",
            )

    def _make_request(self, name: str, path: str) -> Any:
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        # vLLM finds cached prefixes by the adapter's name: a new adapter under an old name must not find the old one's.
        return LoRARequest(f"{name}#{number}", number, path)

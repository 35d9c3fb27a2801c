"""vLLM's LoRA adapters by name: those of the load, and those that come and go while it runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.engines.vllm import model_files
from enginebay.errors import InvalidRequest, ModelInvalid

_WANTED = "give the directory of a PEFT adapter, with adapter_config.json and adapter_model.safetensors"


class Adapters:
    """Names, and the request that vLLM wants for each. Changed by one thread at a time, read by any.

    `max_rank` and `room` are what the engine was started for; rank 0: it was started without adapters.
    """

    def __init__(self, model: str, listed: Mapping[str, str], max_rank: int, room: int | None = None) -> None:
        self._model = model
        self._max_rank = max_rank
        self._room = room
        self._numbers = itertools.count(1)
        self._leaving: set[int] = set()
        self._known = {name: self._request(name, path) for name, path in listed.items()}

    @property
    def enabled(self) -> bool:
        return self._max_rank > 0

    @property
    def leaving(self) -> bool:
        """Are there adapters whose last requests still run?"""
        return bool(self._leaving)

    def all(self) -> dict[str, Any]:
        return dict(self._known)

    def find(self, name: str | None) -> Any:
        """vLLM's request for the adapter of a generation; None stands for the plain model."""
        if name is None:
            return None
        found = self._known.get(name)
        if found is None:
            known = ", ".join(self._known) or "none"
            raise InvalidRequest(f"{self._model} has no adapter {name!r}", f"known adapters: {known}", param="lora")
        return found

    def checked(self, name: str, path: str) -> Any:
        """The request for a new adapter, once all that can be known beforehand fits; None if it is there already."""
        if not self.enabled:
            raise InvalidRequest(
                f"{self._model} was loaded without room for adapters",
                "load it with lora.enabled: true, and lora.max_rank where an adapter's rank is above 16",
                param="lora",
            )
        present = self._known.get(name)
        if present is not None:
            if present.lora_path == path:
                return None
            raise InvalidRequest(
                f"adapter {name} is loaded from {present.lora_path}", "remove it first, or use another name",
                param="lora",
            )  # fmt: skip
        self._check_files(name, path)
        if self._room is not None and len(self._known) + len(self._leaving) >= self._room:
            raise InvalidRequest(
                f"{self._model} has room for {self._room} adapters", "raise lora.max_loras, or remove one", param="lora"
            )
        return self._request(name, path)

    def put(self, name: str, request: Any) -> None:
        self._known[name] = request

    def drop(self, name: str) -> Any:
        """No new request finds the adapter any more; `gone` says when vLLM has forgotten it."""
        found = self.find(name)
        del self._known[name]
        self._leaving.add(found.lora_int_id)
        return found

    def gone(self, request: Any) -> None:
        self._leaving.discard(request.lora_int_id)

    def _check_files(self, name: str, path: str) -> None:
        if not Path(path).is_dir():
            raise InvalidRequest(f"adapter {name}: {path} is no directory", _WANTED, param="lora")
        try:
            rank = model_files.lora_ranks({name: path})[name]
        except ModelInvalid as error:
            raise InvalidRequest(error.message, error.hint, param="lora") from None
        if rank > self._max_rank:
            raise InvalidRequest(
                f"adapter {name} has rank {rank}, and {self._model} was loaded for ranks up to {self._max_rank}",
                f"load it with lora.max_rank: {rank}",
                param="lora",
            )

    def _request(self, name: str, path: str) -> Any:
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        # vLLM finds cached prefixes by the adapter's name: a new adapter under an old name must not find the old one's.
        return LoRARequest(f"{name}#{number}", number, path)

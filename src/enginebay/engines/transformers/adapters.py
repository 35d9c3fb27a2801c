"""LoRA adapters by name, through the library's peft integration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.errors import LoadFailed

NO_ADAPTER = None


class Adapters:
    """All adapters of a model stay loaded; at most one is in use, for the whole of a forward pass."""

    def __init__(self, model: Any, paths: Mapping[str, str]) -> None:
        self._model = model
        self.names = frozenset(paths)
        self._numbers = {name: f"adapter_{i}" for i, name in enumerate(sorted(paths))}  # peft takes no dots in names
        self._current: str | None = NO_ADAPTER
        for name, path in paths.items():
            try:
                model.load_adapter(path, adapter_name=self._numbers[name])
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise LoadFailed(f"LoRA adapter {name} cannot be loaded: {str(error).splitlines()[0]}", path) from None
        if paths:
            model.disable_adapters()

    def use(self, name: str | None) -> None:
        if name == self._current:
            return
        if name is None:
            self._model.disable_adapters()
        else:
            self._model.enable_adapters()
            self._model.set_adapter(self._numbers[name])
        self._current = name

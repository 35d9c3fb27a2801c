"""LoRA adapters by name, through the PEFT integration of transformers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.errors import InvalidRequest, LoadFailed
from enginebay.util.text_format import summarize_error

NO_ADAPTER = None
_REQUIRED_FILES = ("adapter_config.json", "adapter_model.safetensors")


class PeftAdapters:
    """The loaded adapters of a model. At most one is active during a forward pass.

    New requests cannot use a withdrawn adapter; `delete` it once no running request uses it.
    Methods that touch the model run in the step thread; `names`, `is_loaded` and `withdraw` are thread-safe.
    """

    def __init__(self, model: Any, paths: Mapping[str, str]) -> None:
        self._model = model
        self._peft_names = (f"adapter_{i}" for i in itertools.count())  # PEFT forbids dots in names
        self._loaded: dict[str, tuple[str, str]] = {}  # name -> PEFT name, path
        self._active: str | None = NO_ADAPTER
        self.names: frozenset[str] = frozenset()
        for name, path in paths.items():
            self.load(name, path)

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    def load(self, name: str, path: str) -> None:
        """Load an adapter. On failure, raise `LoadFailed` and leave the model unchanged."""
        missing = [file for file in _REQUIRED_FILES if not (Path(path) / file).is_file()]
        if missing:
            raise LoadFailed(f"LoRA adapter {name} has no {missing[0]}: {path}", "use a PEFT adapter directory")
        key = next(self._peft_names)
        try:
            self._model.load_adapter(path, adapter_name=key)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            with contextlib.suppress(Exception):  # it may be partly loaded
                self._model.delete_adapter(key)
            raise LoadFailed(f"LoRA adapter {name} cannot be loaded: {summarize_error(error)}", path) from None
        finally:
            self._deactivate_all()
        self._loaded[name] = (key, path)
        self.names |= {name}

    def add(self, name: str, path: str) -> None:
        """Load an adapter while the model runs. Raises `InvalidRequest`."""
        if name in self.names:
            if self._loaded[name][1] == path:
                return
            raise InvalidRequest(
                f"adapter {name} is already loaded from {self._loaded[name][1]}", "remove it first, or use another name",
                param="lora",
            )  # fmt: skip
        if self.is_loaded(name):
            raise InvalidRequest(f"requests still use the old adapter {name}", "try again later", param="lora")
        try:
            self.load(name, path)
        except LoadFailed as error:
            raise InvalidRequest(error.message, error.hint, param="lora") from None

    def withdraw(self, name: str) -> None:
        if name not in self.names:
            known = ", ".join(sorted(self.names)) or "none"
            raise InvalidRequest(f"unknown LoRA adapter {name!r}", f"available: {known}", param="lora")
        self.names -= {name}

    def delete(self, name: str) -> None:
        self.activate(NO_ADAPTER)
        key, _ = self._loaded.pop(name)
        self._model.delete_adapter(key)

    def activate(self, name: str | None) -> None:
        if name == self._active:
            return
        if name is None:
            self._model.disable_adapters()
        else:
            self._model.enable_adapters()
            self._model.set_adapter(self._loaded[name][0])
        self._active = name

    def _deactivate_all(self) -> None:
        """Disable all adapters: PEFT activates a newly loaded one."""
        with contextlib.suppress(ValueError):  # no adapter is loaded
            self._model.disable_adapters()
        self._active = NO_ADAPTER

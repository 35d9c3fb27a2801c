"""LoRA adapters by name, through the PEFT integration of transformers."""

from __future__ import annotations

import contextlib
import itertools
import json
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
            check_ranks(Path(path))
            self._model.load_adapter(path, adapter_name=key)
        except Exception as error:  # PEFT and safetensors raise many kinds
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


def check_ranks(folder: Path) -> None:
    """Raise `ValueError` if a rank exceeds every dimension of the weights: PEFT would allocate matrices of that size."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError("adapter_config.json is not a JSON object")
    largest = _read_largest_dimension(folder / "adapter_model.safetensors")
    for rank in (config.get("r", 1), *(config.get("rank_pattern") or {}).values()):
        if not isinstance(rank, int) or not 1 <= rank <= largest:
            raise ValueError(f"its rank is {str(rank)[:40]}, but its weights have at most {largest} rows")


def _read_largest_dimension(file: Path) -> int:
    """Read the shapes in the header of a safetensors file."""
    with file.open("rb") as weights:
        size = int.from_bytes(weights.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError("adapter_model.safetensors is cut off")
        header = json.loads(weights.read(size))
    tensors = header.values() if isinstance(header, dict) else ()
    return max((length for tensor in tensors for length in tensor.get("shape", ())), default=0)

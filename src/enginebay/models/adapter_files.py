"""LoRA adapters as files: their format, and whether an engine reads it."""

from __future__ import annotations

from pathlib import Path

from enginebay.contract import EngineSpec
from enginebay.errors import ConfigError, ModelInvalid

_ADVICE = {
    "gguf": "convert it with llama.cpp's convert_lora_to_gguf.py, or run the model on an engine that reads PEFT adapters",
    "safetensors": "use the adapter as a PEFT directory, or run the model on an engine that reads GGUF adapters",
}
_NAMES = {"gguf": "a GGUF file", "safetensors": "a PEFT directory"}


def check_adapter(spec: EngineSpec, name: str, path: Path) -> None:
    """Raise `ConfigError` if an adapter is missing, and `ModelInvalid` if the engine cannot read its format."""
    readable = [form for form in spec.formats if form in _NAMES]
    if not readable:
        return
    if not path.exists():
        raise ConfigError(f"LoRA adapter {name} not found: {path}", "check its path under the model's loras")
    form = "safetensors" if path.is_dir() else "gguf"
    if form not in readable:
        expected = " or ".join(_NAMES[other] for other in readable)
        raise ModelInvalid(
            f"LoRA adapter {name} is {_NAMES[form]}, but {spec.kind} reads {expected}: {path}", _ADVICE[readable[0]]
        )

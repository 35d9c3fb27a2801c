"""What a model directory holds, read without vLLM. Refuses what must not or cannot be loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.errors import LoadFailed, ModelInvalid

_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_ADAPTER_WEIGHTS = "adapter_model.safetensors"  # the one file that vLLM prefers to pickles


def check_model(path: str, load_format: str | None = None) -> dict[str, Any]:
    """The model's config.json. Raises `LoadFailed` or `ModelInvalid` with what to do."""
    model = Path(path)
    if model.suffix == ".gguf" or (
        model.is_dir() and any(model.glob("*.gguf")) and not any(model.glob("*.safetensors"))
    ):
        raise LoadFailed(f"vLLM cannot read GGUF: {path}", "use engine llamacpp, or a model with safetensors files")
    if not model.is_dir():
        raise ModelInvalid(
            f"{path} is not a model directory", "vLLM needs a directory with config.json and safetensors files"
        )
    if load_format != "dummy":
        _refuse_pickles(model, path)
        if not any(model.glob("*.safetensors")):
            raise ModelInvalid(f"{path} holds no safetensors file", "fetch the model again: bay models pull")
    return _read_json(model / "config.json")


def check_draft_model(settings: Mapping[str, Any]) -> None:
    """Refuse a draft model of pickle files. One that is no directory here is vLLM's to find."""
    path = settings.get("speculative.model")
    if path is None or settings.get("speculative.method") == "ngram" or settings.get("load_format") == "dummy":
        return
    if Path(path).is_dir():
        _refuse_pickles(Path(path), f"speculative.model {path}")


def _refuse_pickles(model: Path, label: str, weights: str = "*.safetensors") -> None:
    """Where `weights` are missing, vLLM would read the pickle files beside them."""
    if not any(model.glob(weights)) and any(found for pattern in _PICKLE_PATTERNS for found in model.glob(pattern)):
        raise ModelInvalid(
            f"{label} holds pickle files only, which can run code when they are read",
            "convert it to safetensors first",
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ModelInvalid(f"{path} is missing", "fetch the model again: bay models pull") from None
    except ValueError:
        raise ModelInvalid(f"{path} is not valid JSON", "fetch the model again: bay models pull") from None
    if not isinstance(found, dict):
        raise ModelInvalid(f"{path} does not hold a JSON object", "fetch the model again: bay models pull")
    return found


def read_lora_ranks(loras: Mapping[str, str]) -> dict[str, int]:
    """Adapter name -> rank, from each adapter's own config."""
    found: dict[str, int] = {}
    for name, path in loras.items():
        if Path(path).suffix == ".gguf":
            raise ModelInvalid(
                f"adapter {name} is a GGUF file, which vLLM cannot read", "give a PEFT adapter directory"
            )
        _refuse_pickles(Path(path), f"adapter {name}", _ADAPTER_WEIGHTS)
        found[name] = int(_read_json(Path(path) / "adapter_config.json").get("r", 16))
    return found


def build_rope_overrides(
    config: Mapping[str, Any], scaling: Mapping[str, Any] | None, theta: float | None
) -> dict[str, Any]:
    """Overrides of the model's config for RoPE; the whole dict is replaced there, so it must be complete."""
    if not scaling and theta is None:
        return {}
    stored = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base: float = theta or stored.get("rope_theta") or config.get("rope_theta") or 10000.0
    found = dict(scaling) if scaling else stored
    found["rope_type"] = found.pop("type", None) or found.get("rope_type") or "default"
    found["rope_theta"] = float(theta or found.get("rope_theta") or base)
    overrides: dict[str, Any] = {"rope_parameters": found}
    if found["rope_type"] == "yarn":
        original = found.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 4096))
        # For yarn the model's own length counts as already stretched; for the other kinds vLLM stretches it.
        overrides["max_position_embeddings"] = int(original * found.get("factor", 1.0))
    return overrides

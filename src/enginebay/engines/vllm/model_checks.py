"""Checks of a model directory before the load, without vLLM. Reject files that vLLM cannot or must not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebay.errors import LoadFailed, ModelInvalid

_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_ADAPTER_WEIGHTS = "adapter_model.safetensors"  # vLLM prefers this file to pickles


def check_model(path: str, load_format: str | None = None) -> dict[str, Any]:
    """Check the model's files and return its config.json. Raises `LoadFailed` or `ModelInvalid`."""
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
            raise ModelInvalid(f"{path} has no safetensors file", "pull the model again: bay models pull")
    return _read_json(model / "config.json")


def check_draft_model(settings: Mapping[str, Any]) -> None:
    """Reject a draft model of pickle files. vLLM resolves one that is not a local directory."""
    path = settings.get("speculative.model")
    if path is None or settings.get("speculative.method") == "ngram" or settings.get("load_format") == "dummy":
        return
    if Path(path).is_dir():
        _refuse_pickles(Path(path), f"speculative.model {path}")


def _refuse_pickles(model: Path, label: str, weights: str = "*.safetensors") -> None:
    """Raise `ModelInvalid` if there are pickle files and no `weights`: vLLM would read the pickles."""
    if not any(model.glob(weights)) and any(file for pattern in _PICKLE_PATTERNS for file in model.glob(pattern)):
        raise ModelInvalid(
            f"{label} has only pickle files, which can run code when loaded",
            "convert it to safetensors first",
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise ModelInvalid(f"{path} is missing", "pull the model again: bay models pull") from None
    except ValueError:
        raise ModelInvalid(f"{path} is not valid JSON", "pull the model again: bay models pull") from None
    if not isinstance(content, dict):
        raise ModelInvalid(f"{path} is not a JSON object", "pull the model again: bay models pull")
    return content


def read_lora_ranks(loras: Mapping[str, str]) -> dict[str, int]:
    """Return the rank of each adapter, from its adapter_config.json."""
    ranks: dict[str, int] = {}
    for name, path in loras.items():
        if Path(path).suffix == ".gguf":
            raise ModelInvalid(f"adapter {name} is a GGUF file, which vLLM cannot read", "set a PEFT adapter directory")
        _refuse_pickles(Path(path), f"adapter {name}", _ADAPTER_WEIGHTS)
        rank = _read_json(Path(path) / "adapter_config.json").get("r", 16)
        if not isinstance(rank, int):
            raise ModelInvalid(f"adapter {name} has the rank {str(rank)[:40]!r}", "set r to an integer in its config")
        ranks[name] = rank
    return ranks


def build_rope_overrides(
    config: Mapping[str, Any], scaling: Mapping[str, Any] | None, theta: float | None
) -> dict[str, Any]:
    """Return config overrides for RoPE. They replace the whole dict, so it must be complete."""
    if not scaling and theta is None:
        return {}
    stored = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base: float = theta or stored.get("rope_theta") or config.get("rope_theta") or 10000.0
    rope = dict(scaling) if scaling else stored
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    rope["rope_theta"] = float(theta or rope.get("rope_theta") or base)
    overrides: dict[str, Any] = {"rope_parameters": rope}
    if rope["rope_type"] == "yarn":
        original = rope.setdefault("original_max_position_embeddings", config.get("max_position_embeddings", 4096))
        # For yarn vLLM expects the already scaled length; for other types it scales the length.
        overrides["max_position_embeddings"] = int(original * rope.get("factor", 1.0))
    return overrides

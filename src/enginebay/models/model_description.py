"""Reads a model's architecture, size and precision from its files, and checks that they are complete.

Reads only file headers, never weights. Raises `ModelInvalid` for files that are truncated, of the wrong kind, or
pickle only.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginebay.errors import ModelInvalid
from enginebay.models.file_selection import build_no_weights_error, select_files
from enginebay.models.model_sources import list_split_files
from enginebay.text.gguf.gguf_reader import is_gguf, read_gguf
from enginebay.util.atomic_file import read_json_object

# GGUF architecture -> class name in config.json, by which engines know it.
ARCHITECTURE_CLASSES = {
    "bert": "BertModel",
    "deepseek2": "DeepseekV2ForCausalLM",
    "falcon": "FalconForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi2": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
}
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")


@dataclass(frozen=True, slots=True)
class ModelDescription:
    format: str  # "gguf" or "safetensors"
    path: Path  # what engines load: the (first) GGUF file, or the directory
    files: tuple[Path, ...]  # all files of the model
    architecture: str  # the class name of config.json, if known
    context_length: int | None
    parameters: int
    quantisation: str

    @property
    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def describe_model(path: Path) -> ModelDescription:
    """Describe a GGUF file or a model directory. Raises `ModelInvalid`."""
    if path.is_dir():
        return _describe_directory(path)
    if not path.exists():
        raise ModelInvalid(f"file not found: {path}", "check the path")
    if not is_gguf(path):
        if path.suffix == ".gguf":
            read_gguf(path)  # raises with the reason
        raise build_no_weights_error([path.name], str(path))
    return _describe_gguf(path)


def _describe_gguf(path: Path) -> ModelDescription:
    files = [path.with_name(name) for name in list_split_files(path.name)]
    parts = [read_gguf(file) for file in files]
    first = parts[0]
    if first.split_count != len(files):
        raise ModelInvalid(
            f"{path} is split into {first.split_count} files, but its name says {len(files)}",
            "keep the original file names",
        )
    return ModelDescription(
        format="gguf",
        path=files[0],
        files=tuple(files),
        architecture=ARCHITECTURE_CLASSES.get(first.architecture, first.architecture),
        context_length=first.context_length,
        parameters=sum(part.parameter_count for part in parts),
        quantisation=first.quantisation,
    )


def _describe_directory(folder: Path) -> ModelDescription:
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    selected = select_files(names, None, str(folder), with_code=True)
    if selected[0].endswith(".gguf"):
        return _describe_gguf(folder / selected[0])
    config = _read_object(folder / "config.json")
    weights = [name for name in selected if name.endswith(".safetensors")]
    _check_index(folder, weights)
    headers = [read_safetensors_header(folder / name) for name in weights]
    architectures = config.get("architectures") or [str(config.get("model_type", ""))]
    text = config.get("text_config") or {}
    return ModelDescription(
        format="safetensors",
        path=folder,
        files=tuple(folder / name for name in selected),
        architecture=str(architectures[0]),
        context_length=next(
            (value for key in CONTEXT_KEYS if isinstance(value := config.get(key, text.get(key)), int)), None
        ),
        parameters=sum(math.prod(tensor["shape"]) for header in headers for tensor in header.values()),
        quantisation=_detect_precision(config, headers),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        raise ModelInvalid(f"{path.parent} has no config.json", "add it to the model directory") from None
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"{path} cannot be read: {error}", "fetch the model again") from error


def _check_index(folder: Path, weights: list[str]) -> None:
    """Raise `ModelInvalid` if a file of a split model's index is missing."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    weight_map = _read_object(index).get("weight_map") or {}
    missing = sorted(set(weight_map.values()) - set(weights))
    if missing:
        raise ModelInvalid(f"{folder} lacks {missing[0]}, listed in {index.name}", "fetch the model again")


def read_safetensors_header(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tensors that a safetensors file declares. Raises `ModelInvalid` if the file is incomplete."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size - 8:
                raise ModelInvalid(f"{path} is truncated: its header is longer than the file", "fetch the model again")
            header = json.loads(file.read(length))
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelInvalid(f"{path} is not a safetensors file", "fetch the model again") from error
    if 8 + length + end != size:
        raise ModelInvalid(
            f"{path} has {size} bytes, but its header declares {8 + length + end}", "fetch the model again"
        )
    return tensors


def _detect_precision(config: dict[str, Any], headers: list[dict[str, dict[str, Any]]]) -> str:
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method:
        return str(method)
    sizes: dict[str, int] = {}
    for header in headers:
        for tensor in header.values():
            sizes[tensor["dtype"]] = sizes.get(tensor["dtype"], 0) + math.prod(tensor["shape"])
    return max(sizes, key=lambda dtype: sizes[dtype], default="unknown")

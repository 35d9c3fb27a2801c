"""Read a GGUF file, with this engine's error hints."""

from __future__ import annotations

from pathlib import Path

from enginebay.errors import ModelInvalid
from enginebay.text.gguf.gguf_reader import GgufFile, is_gguf, read_gguf


def read_gguf_model(path: Path) -> GgufFile:
    """Read the file's metadata. Raises `ModelInvalid` if it is missing, truncated, corrupt or not a GGUF file."""
    if not path.exists():
        raise ModelInvalid(f"model file not found: {path}", "check the path, or pull the model again")
    if not is_gguf(path):
        raise ModelInvalid(
            f"{path} is not a GGUF file (it does not start with 'GGUF')",
            "llama.cpp only runs GGUF files; use engine transformers or vllm for other formats",
        )
    return read_gguf(path)


def get_model_number(file: GgufFile, name: str) -> int:
    """Return a number under the architecture's prefix, such as `block_count`; 0 if it is missing.

    Returns the largest if the model has one per layer.
    """
    value = file.metadata.get(f"{file.architecture}.{name}")
    if isinstance(value, tuple):
        value = max((number for number in value if isinstance(number, int)), default=0)
    return value if isinstance(value, int) else 0

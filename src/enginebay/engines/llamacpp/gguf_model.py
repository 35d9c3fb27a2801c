"""The GGUF file as this engine needs it: read by `enginebay.text.gguf.gguf_reader`, with this engine's hints."""

from __future__ import annotations

from pathlib import Path

from enginebay.errors import ModelInvalid
from enginebay.text.gguf.gguf_reader import GgufFile, is_gguf, read_gguf


def read_gguf_model(path: Path) -> GgufFile:
    """What the file says about itself. Raises `ModelInvalid` when it is no GGUF file, cut short or corrupt."""
    if not path.exists():
        raise ModelInvalid(f"there is no model file {path}", "check the path, or pull the model again")
    if not is_gguf(path):
        raise ModelInvalid(
            f"{path} is not a GGUF file (it does not begin with 'GGUF')",
            "llama.cpp runs GGUF files only; use the transformers or vllm engine for other formats",
        )
    return read_gguf(path)


def get_model_number(file: GgufFile, name: str) -> int:
    """A number below the architecture's own prefix, such as `block_count`; 0 where there is none.

    Some models give one for each layer: then the largest.
    """
    value = file.metadata.get(f"{file.architecture}.{name}")
    if isinstance(value, tuple):
        value = max((one for one in value if isinstance(one, int)), default=0)
    return value if isinstance(value, int) else 0

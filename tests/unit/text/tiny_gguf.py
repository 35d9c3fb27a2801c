"""Write small GGUF files for tests: any metadata and tensors, or a whole tiny Llama that engines really load."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ALIGNMENT = 32
F32 = 0
_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]


def list_byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes for the 256 bytes, in byte order."""
    spare = iter(range(256, 512))
    return [chr(byte) if byte in _BYTES else chr(next(spare)) for byte in range(256)]


Tensors = Mapping[str, tuple[Sequence[int], bytes]]


def build_gguf(metadata: Mapping[str, Any], tensors: Tensors, kind: int = F32) -> bytes:
    """A GGUF file, version 3. Tensors are shape (fastest dimension first) and data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_encode_text(key) + _encode_typed(value) for key, value in metadata.items())
    body = b""
    for name, (shape, data) in tensors.items():
        head += _encode_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(body))
        body += _pad(data)
    return _pad(head) + body


def build_tiny_vocabulary() -> dict[str, Any]:
    """Byte-level BPE of 256 bytes, a few merges and three control tokens."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ċ Ċ", "Ġ Ġ"]
    tokens = [
        "<|end|>",
        "<|im_start|>",
        "<|im_end|>",
        *list_byte_alphabet(),
        *(merge.replace(" ", "") for merge in merges),
    ]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *([1] * (len(tokens) - 3))],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    }


def build_tiny_llama(vocabulary: Mapping[str, Any] | None = None, width: int = 32, **metadata: Any) -> bytes:
    """A Llama of one block with random weights; `metadata` adds to or replaces what the file says."""
    said = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 0,
        "llama.block_count": 1,
        "llama.context_length": 256,
        "llama.embedding_length": width,
        "llama.feed_forward_length": width * 2,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": width // 2,
        **(build_tiny_vocabulary() if vocabulary is None else vocabulary),
        **metadata,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, len(said["tokenizer.ggml.tokens"])),
        "output_norm.weight": (width,),
        **{f"blk.0.{name}_norm.weight": (width,) for name in ("attn", "ffn")},
        **{f"blk.0.attn_{name}.weight": (width, width) for name in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{name}.weight": (width, width * 2) for name in ("gate", "up")},
        "blk.0.ffn_down.weight": (width * 2, width),
    }
    return build_gguf(said, {name: (shape, _draw_weights(shape)) for name, shape in shapes.items()})


def write_tiny_llama(path: Path, **metadata: Any) -> Path:
    path.write_bytes(build_tiny_llama(**metadata))
    return path


def _draw_weights(shape: Sequence[int]) -> bytes:
    count = 1
    for dimension in shape:
        count *= dimension
    row = [random.Random(number).uniform(-0.1, 0.1) for number in range(min(count, 4096))]
    values = (row * (count // len(row) + 1))[:count]
    return struct.pack(f"<{count}f", *values)


def _pad(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)


def _encode_text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encode_typed(value: Any) -> bytes:
    kind, data = _encode_value(value)
    return struct.pack("<I", kind) + data


def _encode_value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _encode_text(value)
    if all(isinstance(item, int) for item in value):
        return 9, struct.pack(f"<IQ{len(value)}i", 5, len(value), *value)
    kind = _encode_value(value[0])[0]
    return 9, struct.pack("<IQ", kind, len(value)) + b"".join(_encode_value(item)[1] for item in value)

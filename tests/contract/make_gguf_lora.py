"""Make a small GGUF LoRA adapter that visibly changes the output of SmolLM2-135M: python make_gguf_lora.py OUT.gguf.

Random low-rank updates of the attention projections, large enough to change greedy output. Needs numpy and gguf.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

RANK = 8
STRENGTH = 0.15  # standard deviation of each factor; with ALPHA it changes the output and keeps values finite
ALPHA = 16.0


@dataclass(frozen=True)
class Shape:
    """Dimensions of the base model; default: SmolLM2-135M."""

    architecture: str = "llama"
    layers: int = 30
    hidden: int = 576
    kv_width: int = 192


def make(out: Path, shape: Shape | None = None, seed: int = 1) -> Path:
    """Write the adapter file and return its path."""
    base = shape or Shape()
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(out), base.architecture)
    writer.add_string(gguf.Keys.General.TYPE, gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, ALPHA)
    for layer in range(base.layers):
        for target, width in (("attn_q", base.hidden), ("attn_v", base.kv_width)):
            writer.add_tensor(f"blk.{layer}.{target}.weight.lora_a", _make_factor(random, RANK, base.hidden))
            writer.add_tensor(f"blk.{layer}.{target}.weight.lora_b", _make_factor(random, width, RANK))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _make_factor(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return (random.standard_normal((rows, columns)) * STRENGTH).astype(np.float32)


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))

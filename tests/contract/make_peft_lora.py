"""Make a small PEFT adapter that visibly changes the output of a Llama-like model: make_peft_lora.py MODEL OUT.

Random low-rank updates of the attention projections, large enough to change greedy output. Needs numpy and safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TARGETS = ("q_proj", "v_proj")
RANK = 8
STRENGTH = 0.1  # standard deviation of each factor; with ALPHA it changes the output and keeps values finite
ALPHA = 16


def make(model: Path, out: Path, seed: int = 1) -> Path:
    """Write the adapter's two files and return its directory."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden = int(config["hidden_size"])
    heads, kv_heads = (
        int(config["num_attention_heads"]),
        int(config.get("num_key_value_heads", config["num_attention_heads"])),
    )
    width = int(config.get("head_dim") or hidden // heads)
    sizes = {"q_proj": heads * width, "v_proj": kv_heads * width}
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for layer in range(int(config["num_hidden_layers"])):
        for target in TARGETS:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            tensors[f"{name}.lora_A.weight"] = _make_factor(random, RANK, hidden)
            tensors[f"{name}.lora_B.weight"] = _make_factor(random, sizes[target], RANK)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "adapter_model.safetensors")
    (out / "adapter_config.json").write_text(json.dumps(_build_config(model), indent=2), encoding="utf-8")
    return out


def _make_factor(random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return (random.standard_normal((rows, columns)) * STRENGTH).astype(np.float32)


def _build_config(model: Path) -> dict[str, object]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.name,
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": list(TARGETS),
        "modules_to_save": None,
    }


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), Path(sys.argv[2])))

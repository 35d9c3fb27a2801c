"""Quantize a Llama-like model to 8-bit compressed-tensors files (W8A8, dynamic activations): make_int8.py MODEL OUT.

Unlike 4-bit GPTQ, vLLM runs it on every CPU. Needs numpy and safetensors.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file


def make(model: Path, out: Path) -> Path:
    """Write the quantized model with the original's tokenizer, and return its directory."""
    out.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if name.endswith("_proj.weight"):
                scales = np.maximum(np.abs(tensor).max(axis=1, keepdims=True) / 127, 1e-8).astype(np.float32)
                tensors[name] = np.clip(np.rint(tensor / scales), -128, 127).astype(np.int8)
                tensors[name.replace("weight", "weight_scale")] = scales
            else:
                tensors[name] = tensor
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(
        json.dumps({**config, "quantization_config": _build_config()}, indent=2), encoding="utf-8"
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, out / name)
    return out


def _build_config() -> dict[str, object]:
    eight_bits = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**eight_bits, "strategy": "channel", "dynamic": False},
        "input_activations": {**eight_bits, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), Path(sys.argv[2])))

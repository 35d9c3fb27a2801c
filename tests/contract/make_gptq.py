"""Quantize a Llama-like model to 4-bit GPTQ files, plainly: make_gptq.py MODEL OUT.

Rounds to nearest with one scale for each group of inputs, and no calibration: the format is what matters here.
Needs numpy and safetensors.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

BITS = 4
GROUP = 64
_PER_WORD = 32 // BITS
_MIDDLE = 2 ** (BITS - 1)  # the stored number that stands for zero


def make(model: Path, out: Path) -> Path:
    """Write the quantized model with the original's tokenizer, and return its directory."""
    out.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(model.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if name.endswith("_proj.weight"):
                tensors.update({name.replace("weight", part): value for part, value in quantize(tensor).items()})
            else:
                tensors[name] = tensor.astype(np.float16)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config.update(dtype="float16", quantization_config=_config())
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (model / name).exists():
            shutil.copy(model / name, out / name)
    return out


def quantize(weight: np.ndarray) -> dict[str, np.ndarray]:
    """One linear layer, [outputs, inputs], as GPTQ stores it."""
    outputs, inputs = weight.shape
    if inputs % GROUP or outputs % _PER_WORD:
        raise ValueError(f"a layer of {outputs} x {inputs} does not divide into groups of {GROUP}")
    grouped = weight.astype(np.float32).T.reshape(inputs // GROUP, GROUP, outputs)
    scales = np.maximum(np.abs(grouped).max(axis=1) / (_MIDDLE - 1), 1e-6).astype(np.float16)
    levels = np.rint(grouped / scales[:, None, :].astype(np.float32)) + _MIDDLE
    codes = np.clip(levels, 0, 2**BITS - 1).astype(np.uint32).reshape(inputs, outputs)
    zeros = np.full((inputs // GROUP, outputs), _MIDDLE - 1, dtype=np.uint32)  # the format stores zero points less one
    return {
        "qweight": _pack(codes.T).T.copy(),
        "qzeros": _pack(zeros),
        "scales": scales,
        "g_idx": (np.arange(inputs) // GROUP).astype(np.int32),
    }


def _pack(codes: np.ndarray) -> np.ndarray:
    """Eight 4-bit numbers of a row in each 32-bit word, the first in the lowest bits."""
    rows, columns = codes.shape
    shifts = np.arange(_PER_WORD, dtype=np.uint32) * BITS
    words = (codes.reshape(rows, columns // _PER_WORD, _PER_WORD) << shifts).sum(axis=2, dtype=np.uint32)
    return np.ascontiguousarray(words).view(np.int32)


def _config() -> dict[str, object]:
    return {"quant_method": "gptq", "bits": BITS, "group_size": GROUP, "desc_act": False, "sym": True, "lm_head": False}


if __name__ == "__main__":
    print(make(Path(sys.argv[1]), Path(sys.argv[2])))

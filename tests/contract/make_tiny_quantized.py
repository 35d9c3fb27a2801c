"""Quantizes a small model directory to 4 bits by plain rounding, as GPTQ, AWQ or compressed-tensors store it.

    python make_tiny_quantized.py {gptq,awq,compressed-tensors} MODEL_DIR OUT_DIR

Also writes OUT_DIR-dense: the same rounded weights, unpacked. An engine that reads the packed weights correctly gives
the same output for both. Runs in an environment with torch and safetensors.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbours is at each position of a word

CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "checkpoint_format": "gptq",
    },
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": GROUP,
                },
            }
        },
    },
}


def make(method: str, source: Path, out: Path) -> None:
    """Write the packed directory and its dense twin."""
    from safetensors.torch import load_file, save_file

    weights = load_file(str(source / "model.safetensors"))
    packed: dict[str, Any] = {}
    dense: dict[str, Any] = {}
    for name, weight in weights.items():
        if name.endswith("_proj.weight"):
            values, scales = round_weights(weight)
            dense[name] = (values.reshape(*scales.shape, GROUP) * scales[..., None]).reshape(weight.shape).contiguous()
            packed |= pack_layer(method, name.removesuffix(".weight"), values, scales)
        else:
            packed[name] = dense[name] = weight
    twin = out.with_name(f"{out.name}-dense")
    for folder, tensors in ((out, packed), (twin, dense)):
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        for file in source.iterdir():
            if file.suffix != ".safetensors":
                shutil.copy(file, folder / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = CONFIGS[method]
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def round_weights(weight: Any) -> tuple[Any, Any]:
    """Return values from -8 to 7 [out, in], and a scale for each group of inputs [out, groups]."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    scales = (groups.abs().amax(-1) / 7).clamp(min=1e-6)
    scales = scales.half().float()  # as stored
    return (groups / scales[..., None]).round().clamp(-8, 7).int().reshape(weight.shape), scales


def pack_layer(method: str, layer: str, values: Any, scales: Any) -> dict[str, Any]:
    import torch

    unsigned = (values + 8).long()  # 0 to 15
    if method == "compressed-tensors":
        return {
            f"{layer}.weight_packed": pack_words(unsigned),
            f"{layer}.weight_scale": scales,
            f"{layer}.weight_shape": torch.tensor(values.shape),
        }
    out, inputs = values.shape
    groups = inputs // GROUP
    if method == "gptq":
        zeros = torch.full((groups, out), 8 - 1)  # the format stores zero points minus one
        return {
            f"{layer}.qweight": pack_words(unsigned).T.contiguous(),
            f"{layer}.qzeros": pack_words(zeros),
            f"{layer}.scales": scales.T.half().contiguous(),
            f"{layer}.g_idx": (torch.arange(inputs) // GROUP).int(),
        }
    zeros = torch.full((groups, out), 8)
    return {
        f"{layer}.qweight": pack_words(reorder_awq(unsigned.T)),
        f"{layer}.qzeros": pack_words(reorder_awq(zeros)),
        f"{layer}.scales": scales.T.half().contiguous(),
    }


def pack_words(values: Any) -> Any:
    """Pack eight 4-bit values of the last dimension into a 32-bit word, the first in the lowest bits."""
    import torch

    eights = values.reshape(*values.shape[:-1], -1, 8).long()
    total = sum(eights[..., i] << 4 * i for i in range(8))
    return torch.where(total >= 2**31, total - 2**32, total).int().contiguous()


def reorder_awq(values: Any) -> Any:
    eights = values.reshape(*values.shape[:-1], -1, 8)
    return eights[..., list(_AWQ_ORDER)].reshape(values.shape)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

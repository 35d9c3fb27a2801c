"""Unpacks GPTQ and AWQ checkpoints to dense weights at load, without their kernel library.

The library requires gptqmodel for both, which pins its own torch version. Unpacked weights use the memory of a dense
model, but run on any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from enginebay.errors import LoadFailed

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position of each of eight neighbours in AWQ's packing


def get_quantization_method(config: Any) -> str | None:
    """Return the quantization method in a model's config, or None."""
    quantization = getattr(config, "quantization_config", None)
    method = (
        quantization.get("quant_method")
        if isinstance(quantization, dict)
        else getattr(quantization, "quant_method", None)
    )
    return None if method is None else str(getattr(method, "value", method))


def load_dense_weights(path: Path, config: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """Load and unpack all weights of a GPTQ or AWQ directory."""
    packed: dict[str, Any] = {}
    for file in sorted(path.glob("*.safetensors")):
        packed |= load_file(str(file))
    dtype = torch.float32 if dtype == "auto" else dtype
    awq = str(getattr(config["quant_method"], "value", config["quant_method"])) == "awq"
    bits = int(config.get("bits", config.get("w_bit", 4)))
    if bits not in ((4,) if awq else (2, 4, 8)) or (awq and str(config.get("version", "gemm")).lower() != "gemm"):
        raise LoadFailed(
            f"{config['quant_method']} with {bits} bits in this layout cannot be unpacked", "use a 4-bit checkpoint"
        )
    offset = 0 if awq or config.get("checkpoint_format") == "gptq_v2" else 1
    dense: dict[str, Any] = {}
    for name, tensor in packed.items():
        layer, _, kind = name.rpartition(".")
        if kind == "qweight":
            parts = {part: packed.get(f"{layer}.{part}") for part in ("qweight", "qzeros", "scales", "g_idx")}
            weight = unpack_awq(parts) if awq else unpack_gptq(parts, bits, offset)
            dense[f"{layer}.weight"] = weight.to(dtype).contiguous()
        elif kind not in ("qzeros", "scales", "g_idx") or f"{layer}.qweight" not in packed:
            dense[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return dense


def unpack_gptq(parts: Mapping[str, Any], bits: int, offset: int) -> Any:
    """Return the weights [out, in] of one GPTQ layer. Version 1 of the format stores zero points minus one."""
    values = _unpack_integers(parts["qweight"].T, bits).T  # packed along the inputs
    zeros = _unpack_integers(parts["qzeros"], bits) + offset  # packed along the outputs
    scales = parts["scales"].float()
    groups = parts["g_idx"]
    if groups is None:
        groups = torch.arange(values.shape[0]) // (values.shape[0] // scales.shape[0])
    groups = groups.long()
    return ((values - zeros[groups]) * scales[groups]).T


def unpack_awq(parts: Mapping[str, Any]) -> Any:
    """Return the weights [out, in] of one AWQ layer."""
    values = _undo_awq_order(_unpack_integers(parts["qweight"], 4))
    zeros = _undo_awq_order(_unpack_integers(parts["qzeros"], 4))
    scales = parts["scales"].float()
    size = values.shape[0] // scales.shape[0]
    return ((values - zeros.repeat_interleave(size, 0)) * scales.repeat_interleave(size, 0)).T


def _unpack_integers(packed: Any, bits: int) -> Any:
    """Unpack small integers from 32-bit words, along the last dimension."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values = (packed[..., None] >> shifts) & (2**bits - 1)
    return values.reshape(*packed.shape[:-1], -1)


def _undo_awq_order(values: Any) -> Any:
    eights = values.reshape(*values.shape[:-1], -1, 8)
    return eights[..., list(_AWQ_ORDER)].reshape(values.shape)

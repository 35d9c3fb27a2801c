"""When `auto` takes the transformers engine, and its presets. Pure data."""

from __future__ import annotations

from enginebay.contract import Preference, Preset

_REASON = "runs any architecture on any device"

PREFERENCES = (
    Preference("gguf", "cpu", 60, _REASON),
    Preference("gguf", "cuda", 50, _REASON),
    Preference("safetensors", "cpu", 60, _REASON),
    Preference("safetensors", "cuda", 50, _REASON),
)

PRESETS = (
    Preset(
        "pytorch-optimized",
        "transformers",
        "Flash Attention and compilation",
        "Flash Attention kernels and a compiled forward pass. Needs an Ampere GPU or newer and the package flash-attn. "
        "The first requests wait for compilation.",
        {"attn_implementation": "flash_attention_2", "torch_compile": "reduce-overhead"},
    ),
    Preset(
        "pytorch-speculative",
        "transformers",
        "assisted generation",
        "Prompt lookup drafts five tokens, which are verified in one step. With "
        "transformers.assisted_generation.model, a small model of the same family drafts instead.",
        {"assisted_generation": {"num_tokens": 5}},
    ),
    Preset(
        "pytorch-compatible",
        "transformers",
        "runs anywhere",
        "Eager attention and no compilation: slowest but least demanding. For new models, unusual hardware, and as a "
        "reference for the answers of other settings.",
        {"attn_implementation": "eager", "torch_compile": False},
    ),
)

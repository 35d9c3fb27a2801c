"""Presets: named settings for common purposes. The config file overrides them. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from enginebay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of one engine for one purpose."""

    name: str
    engine: str  # a kind
    purpose: str
    explanation: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, as in the engine's block

    @property
    def config(self) -> dict[str, Any]:
        """The preset as a config file."""
        return {"engine": self.engine, self.engine: dict(self.settings)}


_BUILT_IN = (
    Preset(
        "vllm-throughput",
        "vllm",
        "high throughput",
        "Large batches, chunked prefill mixed with decoding, and prefix caching. Each single answer takes longer.",
        {"max_num_seqs": 512, "enable_chunked_prefill": True, "enable_prefix_caching": True},
    ),
    Preset(
        "vllm-speculative",
        "vllm",
        "speculative decoding",
        "N-gram lookup drafts five tokens, which are verified in one step; no draft model is needed. "
        "Pays off where answers repeat their prompts: summaries, code, retrieval.",
        {"speculative": {"method": "ngram", "num_tokens": 5}},
    ),
    Preset(
        "vllm-memory-efficient",
        "vllm",
        "more context in the same memory",
        "An fp8 KV cache, prefix caching, and 95% of GPU memory. "
        "Needs a GPU with fp8 (Ada, Hopper or newer). Answers may differ slightly.",
        {"kv_cache_dtype": "fp8", "enable_prefix_caching": True, "gpu_memory_utilization": 0.95},
    ),
    Preset(
        "vllm-low-latency",
        "vllm",
        "low latency",
        "Small batches, and no CUDA graph capture, so that it starts sooner. On many GPUs CUDA graphs "
        "speed up decoding: compare with vllm.enforce_eager: false.",
        {"max_num_seqs": 32, "enforce_eager": True},
    ),
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
    Preset(
        "llamacpp-throughput",
        "llamacpp",
        "high throughput",
        "Batches of up to 128 requests, steps of up to 512 tokens, and prompt caching. "
        "Each single answer takes longer, and so does cancelling.",
        {"max_batch": 128, "batch_size": 512, "prompt_cache": True},
    ),
    Preset(
        "llamacpp-low-latency",
        "llamacpp",
        "low latency",
        "At most four concurrent requests, others queue. Short steps, and a warm-up run before the first request.",
        {"max_batch": 4, "batch_size": 128, "warmup": True},
    ),
    Preset(
        "llamacpp-compatible",
        "llamacpp",
        "runs anywhere",
        "CPU only, no flash attention, and a 16-bit KV cache. A reference for the answers of other settings.",
        {"gpu_layers": 0, "flash_attention": False, "cache_type_k": "f16", "cache_type_v": "f16"},
    ),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _BUILT_IN}


def find_preset(name: str) -> Preset:
    """Return the preset of this name. Raises `ConfigError`."""
    if name in PRESETS:
        return PRESETS[name]
    near = get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"available: {', '.join(PRESETS)}"
    raise ConfigError(f"unknown preset {name!r}", hint, param="preset")

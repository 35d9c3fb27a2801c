"""Settings for common purposes, by name. A preset lies below the config file, whose own values win. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from enginebay.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings of one engine, and what they are for."""

    name: str
    engine: str  # a kind
    purpose: str
    explanation: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # nested, as in the engine's block

    @property
    def config(self) -> dict[str, Any]:
        """As it would stand in a config file."""
        return {"engine": self.engine, self.engine: dict(self.settings)}


_BUILT_IN = (
    Preset(
        "vllm-throughput",
        "vllm",
        "high throughput",
        "Many sequences are computed together, pieces of long prompts are mixed with decoding, and equal prompt "
        "beginnings are computed once. Each single answer takes longer.",
        {"max_num_seqs": 512, "enable_chunked_prefill": True, "enable_prefix_caching": True},
    ),
    Preset(
        "vllm-speculative",
        "vllm",
        "speculative decoding",
        "Five tokens are guessed at a time from repeats in the text, and checked in one step; it needs no draft model. "
        "It pays where answers repeat their prompts: summaries, code, retrieval.",
        {"speculative": {"method": "ngram", "num_tokens": 5}},
    ),
    Preset(
        "vllm-memory-efficient",
        "vllm",
        "more context in the same memory",
        "The KV cache has 8 bits a value, equal prompt beginnings are kept once, and 95% of the GPU's memory is used. "
        "It needs a GPU with fp8 (Ada, Hopper or newer), and answers may differ a little.",
        {"kv_cache_dtype": "fp8", "enable_prefix_caching": True, "gpu_memory_utilization": 0.95},
    ),
    Preset(
        "vllm-low-latency",
        "vllm",
        "low latency",
        "Few sequences share a step, and no CUDA graphs are captured, so that it is ready sooner. On many GPUs graphs "
        "make single tokens faster: compare it with vllm.enforce_eager: false.",
        {"max_num_seqs": 32, "enforce_eager": True},
    ),
    Preset(
        "pytorch-optimized",
        "transformers",
        "Flash Attention and compilation",
        "The fastest kernels and a compiled forward pass. It needs an Ampere GPU or newer and the package flash-attn; "
        "the first requests wait for the compiler.",
        {"attn_implementation": "flash_attention_2", "torch_compile": "reduce-overhead"},
    ),
    Preset(
        "pytorch-speculative",
        "transformers",
        "assisted generation",
        "Five tokens are guessed at a time from the prompt, and checked in one step. With "
        "transformers.assisted_generation.model a small model of the same family guesses instead.",
        {"assisted_generation": {"num_tokens": 5}},
    ),
    Preset(
        "pytorch-compatible",
        "transformers",
        "runs anywhere",
        "Plain attention and no compilation: the slowest and the least demanding, for new models, odd hardware and "
        "as a reference for what other settings answer.",
        {"attn_implementation": "eager", "torch_compile": False},
    ),
    Preset(
        "llamacpp-throughput",
        "llamacpp",
        "high throughput",
        "Up to 128 requests are computed together, in steps of up to 512 tokens, and equal prompt beginnings are "
        "computed once. Each single answer takes longer, and so does a cancel.",
        {"max_batch": 128, "batch_size": 512, "prompt_cache": True},
    ),
    Preset(
        "llamacpp-low-latency",
        "llamacpp",
        "low latency",
        "At most four requests share the processor, others wait their turn; steps are short, and the model is run once "
        "before the first request.",
        {"max_batch": 4, "batch_size": 128, "warmup": True},
    ),
    Preset(
        "llamacpp-compatible",
        "llamacpp",
        "runs anywhere",
        "On the CPU alone, plain attention, and a KV cache of 16 bits a value: as a reference for what other settings "
        "answer.",
        {"gpu_layers": 0, "flash_attention": False, "cache_type_k": "f16", "cache_type_v": "f16"},
    ),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _BUILT_IN}


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises `ConfigError` when there is none."""
    if name in PRESETS:
        return PRESETS[name]
    near = get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known presets: {', '.join(PRESETS)}"
    raise ConfigError(f"there is no preset called {name!r}", hint, param="preset")

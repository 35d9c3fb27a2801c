"""When `auto` takes the llamacpp engine, and its presets. Pure data."""

from __future__ import annotations

from enginebay.contract import Preference, Preset

PREFERENCES = (
    Preference("gguf", "cpu", 80, "reads GGUF directly, and is best on a CPU"),
    Preference("gguf", "cuda", 70, "reads GGUF directly"),
)

PRESETS = (
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

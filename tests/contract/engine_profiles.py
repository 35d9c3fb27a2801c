"""Engine settings of the contract suite, and prompts that make each model behave as a check needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def is_on_cuda() -> bool:
    """Return whether the engines run on CUDA here; ENGINEBAY_TEST_CUDA=0 or 1 overrides."""
    override = os.environ.get("ENGINEBAY_TEST_CUDA")
    return Path("/dev/nvidia0").exists() if override is None else override == "1"


def build_vllm_memory(gib: float) -> dict[str, Any]:
    """Return the settings for a KV cache of this size. In bytes on a GPU too: free memory changes while others load."""
    if not is_on_cuda():
        return {"cpu_kvcache_space_gib": gib}
    return {"gpu_memory_utilization": 0.02, "extra": {"kv_cache_memory_bytes": int(gib * 1024**3)}}


# Tensor parallel needs a device per shard; on a CPU the shards share the cores.
ONE_GPU = is_on_cuda() and len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2
# On a GPU, vLLM's adapters and 8-bit kernels do not support float32; float16 rounds less than bfloat16.
VLLM_DTYPE = "float16" if is_on_cuda() else "float32"

# Nor do the 8-bit kernels of CPUs with AMX.
_AMX = Path("/proc/cpuinfo").exists() and "amx_int8" in Path("/proc/cpuinfo").read_text()
VLLM_INT8_DTYPE = "bfloat16" if _AMX and not is_on_cuda() else VLLM_DTYPE


@dataclass(frozen=True)
class EngineProfile:
    name: str
    kind: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    long: str = "Once upon a time, in a small village by the sea, there lived"  # continues for at least 64 tokens
    # The continuation is certain: engines whose arithmetic depends on the batch still agree on it.
    certain: str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,"
    also_certain: str = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,"
    short: str = "<|im_start|>user\nSay yes.<|im_end|>\n<|im_start|>assistant\n"  # ends within 30 tokens
    short_sampling: Mapping[str, Any] = field(default_factory=dict)
    repeats: str = "la la la la la la la la la la la la la la la la la la la la"  # keeps repeating
    more: tuple[str, ...] = (
        "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    )
    unicode: str = (
        "🌍🎉 日本語 ü 🌍🎉 日本語 ü 🌍🎉 日本語 ü 🌍🎉"  # makes the model generate characters of several tokens
    )
    lora: str = "tiny"


_FAKE_PROMPTS = {
    "long": "hello",
    "certain": "hello",
    "also_certain": "other",
    "short": "hello",
    "short_sampling": {"logit_bias": {256: 6.0}},
    "repeats": "bg",
    "more": ("some", "other", "words"),
}

PROFILES: dict[str, EngineProfile] = {
    profile.name: profile
    for profile in (
        EngineProfile("fake", "fake", "toy", {"step_s": 0.002}, **_FAKE_PROMPTS),
        EngineProfile(
            "echo", "echo", "toy", {"step_s": 0.002}, short="Say yes.", repeats="abababab", more=("some", "other")
        ),
        # One thread: of two that wait for each other at every layer, one stands still while another test has its core.
        EngineProfile("llamacpp", "llamacpp", "smollm2", {"context_length": 512, "max_batch": 32, "threads": 1}),
        EngineProfile(
            "transformers",
            "transformers",
            "smollm2",
            {"context_length": 512, "dtype": "float32", "batching.batch_size": 32},
        ),
        EngineProfile(
            "vllm",
            "vllm",
            "smollm2",
            {
                "max_model_len": 512,
                "dtype": VLLM_DTYPE,
                "max_num_seqs": 32,
                "enforce_eager": True,
                **build_vllm_memory(2),
            },
        ),
    )
}

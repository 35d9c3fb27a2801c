"""When `auto` takes the vllm engine, its presets and bundle profiles. Pure data."""

from __future__ import annotations

from enginebay.contract import Preference, Preset, TrimProfile

_BLACKWELL = "kernels for Blackwell, which Hopper cannot run"
_CUTE = "CuTe DSL kernels for flash-attention 4, DeepSeek V4 and gated delta nets; other models do not use them"
_MEDIA = "decodes images and video; not needed for text"

PREFERENCES = (
    Preference("gguf", "cuda", 90, "installed, and fastest on this GPU"),
    Preference("gguf", "cpu", 40, "installed, and runs on the CPU"),
    Preference("safetensors", "cuda", 90, "installed, and fastest on this GPU"),
    Preference("safetensors", "cpu", 40, "installed, and runs on the CPU"),
)

PRESETS = (
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
)

# Tested: vLLM 0.26 works without these on an H200, with the host's torch, triton and transformers.
_SM90 = TrimProfile(
    name="sm90",
    engine="vllm",
    distribution="vllm",
    files={
        "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so": "flash-attention 2: Hopper uses flash-attention 3",
        "vllm/third_party/fmha_sm100/*": _BLACKWELL,
        "vllm/vllm-rs": "vLLM's own server; bay replaces it",
        "vllm/third_party/deep_gemm/_C.cpython-*": "for another Python",
    },
    packages={
        "nvidia-cutlass-dsl": _CUTE,
        "quack-kernels": _CUTE,
        "tokenspeed-mla": _BLACKWELL,
        "flashinfer-python": "replaced by flash-attention 3 and vLLM's own sampler",
        "nvidia-cudnn-frontend": "vLLM uses it only in benchmarks",
        "tilelang": "kernels for models with hyper-connections, compiled on the host",
        "humming-kernels": "one of several kernel sets for quantised weights, compiled on the host",
        "fastsafetensors": "an alternative weight loader, not the default",
        "ninja": "compiles kernels on the host, which needs the CUDA toolkit",
        "opencv-python-headless": _MEDIA,
        "pynvvideocodec": _MEDIA,
        "torchaudio": "decodes audio; not needed for text",
        "torchcodec": _MEDIA,
    },
    variables={"VLLM_USE_FLASHINFER_SAMPLER": "0"},
)

TRIMS = (_SM90,)

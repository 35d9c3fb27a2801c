"""Load settings of the llamacpp engine, and the library's name of each."""

from __future__ import annotations

from enginebay.contract import Setting, refuses, translates
from enginebay.text.gguf.ggml_types import TENSOR_TYPES

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
SPLIT_MODES = ("none", "layer", "row", "tensor")
ROPE_TYPES = ("none", "linear", "yarn", "longrope")
POOLING_TYPES = ("mean", "cls", "last")
NUMA = ("disabled", "distribute", "isolate", "numactl", "mirror")
SPECULATION = ("ngram", "draft")
STRATEGIES = ("continuous", "static", "dynamic", "sorted_static", "sorted_dynamic")

DEFAULT_CONTEXT = 8192
DEFAULT_BATCH = 32
DEFAULT_CACHE_BYTES = 2**30  # KV cache in main memory when no size is set
CACHE_TYPE_BYTES = {kind.name.lower(): kind.block_bytes / kind.block_size for kind in TENSOR_TYPES.values()}
STEP_TOKENS_GPU, STEP_TOKENS_CPU = 512, 128

_ANOTHER_FILE = refuses("a GGUF file with the precision you want")
_SPLIT = refuses("split_mode and tensor_split")

_SIZE = {
    "context_length": Setting(
        "int",
        "Maximum tokens of prompt and output together per request; "
        f"unset: the model's trained length, at most {DEFAULT_CONTEXT}",
        minimum=16,
        native="n_ctx",
        aliases=("n_ctx", "num_ctx", "ctx_size", "max_model_len"),
    ),
    "max_batch": Setting(
        "int", f"Maximum requests in one batch; unset: {DEFAULT_BATCH}", minimum=1, maximum=256, native="n_parallel",
        aliases=("n_parallel", "parallel"), tune=(4, 8, 16, 32),
    ),
    "kv_cache_tokens": Setting(
        "int",
        "KV cache tokens for all running requests; a request waits until its tokens fit. "
        "Unset: context_length x max_batch, capped at half of the free memory, "
        "or at 1 GiB of main memory if no size is set",
        minimum=16,
        native="kv_unified",
    ),
    "batch_size": Setting(
        "int",
        "Maximum tokens in one step; a cancel waits for one step. "
        f"Unset: {STEP_TOKENS_GPU} on a GPU, else {STEP_TOKENS_CPU}",
        minimum=1,
        native="n_batch",
        aliases=("n_batch", "num_batch"),
        tune=(64, 128, 256, 512),
    ),
    "ubatch_size": Setting(
        "int", "Maximum tokens computed at once within a step; unset: 512, or batch_size if lower", minimum=1,
        native="n_ubatch", aliases=("n_ubatch",),
    ),
    "cache_type_k": Setting(
        "str", "Precision of cached keys; unset: f16", choices=CACHE_TYPES, native="cache_type_k", aliases=("type_k", "ctk")
    ),
    "cache_type_v": Setting(
        "str", "Precision of cached values; quantized types need flash_attention. Unset: f16", choices=CACHE_TYPES,
        native="cache_type_v", aliases=("type_v", "ctv"),
    ),
    "prompt_cache": Setting("bool", "Reuse the KV cache of shared prefixes", default=True, native="cache_prompt"),
    "prompt_cache_mib": Setting(
        "int", "Memory for cached prefixes of finished requests, in MiB", default=0, minimum=0,
        native="cache_ram_mib",
    ),
    "swa_full": Setting("bool", "Keep the full cache of sliding-window layers", native="swa_full"),
}  # fmt: skip

_PROCESSOR = {
    "threads": Setting(
        "int", "CPU threads for decoding; unset: all allowed cores", minimum=1, native="cpuparams",
        aliases=("n_threads", "num_thread"),
    ),
    "threads_batch": Setting(
        "int", "CPU threads for prefill; unset: same as threads", minimum=1, native="cpuparams_batch",
        aliases=("n_threads_batch",),
    ),
    "busy_wait": Setting(
        "bool",
        "Let CPU threads spin while they wait: faster on idle cores, far slower on shared ones",
        default=False,
    ),
    "numa": Setting("str", "NUMA strategy", choices=NUMA, native="numa"),
    "flash_attention": Setting(
        "bool|str", "Flash attention; unset: auto", choices=("auto", True, False), native="flash_attn_type",
        aliases=("flash_attn",),
    ),
    "gpu_layers": Setting(
        "int", "Layers on the GPU; unset or -1: as many as fit, if the library has GPU support", minimum=-1,
        native="n_gpu_layers", aliases=("n_gpu_layers", "ngl", "num_gpu"),
    ),
    "main_gpu": Setting("int", "The GPU for tensors that are not split", minimum=0, native="main_gpu"),
    "split_mode": Setting("str", "How the model is split over GPUs", choices=SPLIT_MODES, native="split_mode"),
    "tensor_split": Setting("list", "Share of the model for each GPU, such as [3, 1]", native="tensor_split"),
    "kv_offload": Setting("bool", "Keep the KV cache on the GPU", native="no_kv_offload", aliases=("offload_kqv",)),
}  # fmt: skip

_LOADING = {
    "mmap": Setting(
        "bool", "Map the file into memory instead of reading it; unset: yes", native="load_mode", aliases=("use_mmap",)
    ),
    "mlock": Setting(
        "bool", "Lock the weights in memory, so they are not swapped out", native="load_mode", aliases=("use_mlock",)
    ),
    "check_tensors": Setting("bool", "Check the weights for invalid numbers while loading", native="check_tensors"),
    "warmup": Setting("bool", "Run one empty batch at load, so that the first request is not slow", native="warmup"),
    "pooling": Setting(
        "str", "Pooling of token embeddings; unset: from the model, else mean", choices=POOLING_TYPES,
        native="pooling_type",
    ),
    "extra": Setting(
        "map", "Additional attributes of xllamacpp.CommonParams, by dotted name, set unchanged",
        sensitive="may name files and URLs",
    ),
}  # fmt: skip

_ROPE = {
    "rope_scaling.type": Setting(
        "str",
        "RoPE scaling",
        choices=ROPE_TYPES,
        native="rope_scaling_type",
        aliases=("rope_scaling", "rope_scaling_type"),
    ),
    "rope_scaling.freq_base": Setting("float", "RoPE base frequency", minimum=0, native="rope_freq_base"),
    "rope_scaling.freq_scale": Setting(
        "float", "RoPE frequency scale; 1/N extends the context N times", native="rope_freq_scale"
    ),
    "rope_scaling.yarn_ext_factor": Setting("float", "YaRN extrapolation mix", native="yarn_ext_factor"),
    "rope_scaling.yarn_attn_factor": Setting("float", "YaRN attention magnitude", native="yarn_attn_factor"),
    "rope_scaling.yarn_beta_fast": Setting("float", "YaRN low correction dim", native="yarn_beta_fast"),
    "rope_scaling.yarn_beta_slow": Setting("float", "YaRN high correction dim", native="yarn_beta_slow"),
    "rope_scaling.yarn_orig_ctx": Setting("int", "YaRN original context", minimum=0, native="yarn_orig_ctx"),
}

_GPU = {
    "gpu_memory_fraction": Setting(
        "float",
        "Fraction of GPU memory that the model may plan with; the KV cache gets at most half of it",
        minimum=0.01,
        maximum=1,
    ),
}

_SPECULATIVE = {
    "speculative.method": Setting(
        "str", "Speculative decoding: from repeated n-grams, or with a draft model", choices=SPECULATION,
        native="speculative", aliases=("speculative",),
    ),
    "speculative.model": Setting("str", "GGUF file of the draft model", native="speculative"),
    "speculative.num_tokens": Setting("int", "Speculative tokens per step", minimum=1, maximum=64, native="speculative"),
    "speculative.ngram_max": Setting(
        "int", "Length of the n-gram to look up; unset: 12", minimum=1, native="speculative"
    ),
}  # fmt: skip

_UNIVERSAL = {
    "batching.batch_size": Setting("int", "Maximum requests in one batch", translates("max_batch"), minimum=1),
    "batching.strategy": Setting(
        "str", "Batching strategy; always continuous", refuses("remove it: batching is always continuous"),
        default="continuous", choices=STRATEGIES,
    ),
    "fp_precision": Setting("str", "Precision of the weights", _ANOTHER_FILE),
    "quantization.load_in_4bit": Setting("bool", "Quantize while loading", _ANOTHER_FILE),
    "quantization.load_in_8bit": Setting("bool", "Quantize while loading", _ANOTHER_FILE),
    "sharding.strategy": Setting("str", "How the model is split", _SPLIT, default="none"),
    "sharding.num_shards": Setting("int", "Number of shards", _SPLIT, minimum=1, default=1),
}  # fmt: skip

SETTINGS: dict[str, Setting] = {**_SIZE, **_PROCESSOR, **_LOADING, **_ROPE, **_GPU, **_SPECULATIVE, **_UNIVERSAL}

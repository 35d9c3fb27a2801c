"""Load settings of the llamacpp engine, with the library's own names beside them."""

from __future__ import annotations

from enginebay.contract import Setting, refuses, translates

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
SPLIT_MODES = ("none", "layer", "row", "tensor")
ROPE_TYPES = ("none", "linear", "yarn", "longrope")
POOLING_TYPES = ("mean", "cls", "last")
NUMA = ("disabled", "distribute", "isolate", "numactl", "mirror")
SPECULATION = ("ngram", "draft")
STRATEGIES = ("continuous", "static", "dynamic", "sorted_static", "sorted_dynamic")

DEFAULT_CONTEXT = 8192
DEFAULT_BATCH = 32
STEP_TOKENS_GPU, STEP_TOKENS_CPU = 512, 128

_ANOTHER_FILE = refuses("a GGUF file of the precision you want: the file fixes it")
_SPLIT = refuses("split_mode and tensor_split")

_SIZE = {
    "context_length": Setting(
        "int",
        "Tokens of prompt and output together that every request may use; "
        f"unset: what the model was made for, at most {DEFAULT_CONTEXT}",
        minimum=16,
        native="n_ctx",
    ),
    "max_batch": Setting(
        "int", f"Requests computed together; unset: {DEFAULT_BATCH}", minimum=1, maximum=256, native="n_parallel"
    ),
    "kv_cache_tokens": Setting(
        "int",
        "Tokens of KV cache that all running requests share; a request waits until its tokens fit. "
        "Unset: context_length for each of max_batch, as far as half of the free memory goes, "
        "or 1 GiB of main memory where no size is set",
        minimum=16,
        native="kv_unified",
    ),
    "batch_size": Setting(
        "int",
        f"Most tokens in one step, which a cancel waits for. Unset: {STEP_TOKENS_GPU} on a GPU, else {STEP_TOKENS_CPU}",
        minimum=1,
        native="n_batch",
    ),
    "ubatch_size": Setting(
        "int", "Most tokens computed at once inside a step; unset: 512, or batch_size if lower", minimum=1,
        native="n_ubatch",
    ),
    "cache_type_k": Setting("str", "Precision of cached keys; unset: f16", choices=CACHE_TYPES, native="cache_type_k"),
    "cache_type_v": Setting(
        "str", "Precision of cached values; quantised ones need flash_attention. Unset: f16", choices=CACHE_TYPES,
        native="cache_type_v",
    ),
    "prompt_cache": Setting("bool", "Reuse the cache of equal prompt beginnings", default=True, native="cache_prompt"),
    "prompt_cache_mib": Setting(
        "int", "Memory for the prompt beginnings of requests that no longer run, in MiB", default=0, minimum=0,
        native="cache_ram_mib",
    ),
    "swa_full": Setting("bool", "Keep the whole cache of sliding-window layers", native="swa_full"),
}  # fmt: skip

_PROCESSOR = {
    "threads": Setting(
        "int", "CPU threads for output tokens; unset: the cores this process may use", minimum=1, native="cpuparams"
    ),
    "threads_batch": Setting("int", "CPU threads for prompts; unset: threads", minimum=1, native="cpuparams_batch"),
    "busy_wait": Setting(
        "bool",
        "CPU threads spin while they wait for each other: faster on idle cores, far slower on shared ones",
        default=False,
    ),
    "numa": Setting("str", "Placement on machines with several memory nodes", choices=NUMA, native="numa"),
    "flash_attention": Setting(
        "bool|str", "Flash attention; unset: auto", choices=("auto", True, False), native="flash_attn_type"
    ),
    "gpu_layers": Setting(
        "int", "Layers on the GPU; unset or -1: as many as fit, where the library has GPU support", minimum=-1,
        native="n_gpu_layers",
    ),
    "main_gpu": Setting("int", "The GPU for what is not split", minimum=0, native="main_gpu"),
    "split_mode": Setting("str", "How the model is split over GPUs", choices=SPLIT_MODES, native="split_mode"),
    "tensor_split": Setting("list", "Share of the model for each GPU, as [3, 1]", native="tensor_split"),
    "kv_offload": Setting("bool", "Keep the KV cache on the GPU", native="no_kv_offload"),
}  # fmt: skip

_LOADING = {
    "mmap": Setting("bool", "Map the file into memory instead of reading it; unset: yes", native="load_mode"),
    "mlock": Setting("bool", "Keep the weights from being swapped out", native="load_mode"),
    "check_tensors": Setting("bool", "Look for invalid numbers in the weights while loading", native="check_tensors"),
    "warmup": Setting("bool", "Run the model once empty, so that the first request is not slow", native="warmup"),
    "pooling": Setting(
        "str", "How an embedding is made of its tokens; unset: as the model says, else mean", choices=POOLING_TYPES,
        native="pooling_type",
    ),
    "extra": Setting("map", "More attributes of xllamacpp.CommonParams, by dotted name, set as they are"),
}  # fmt: skip

_ROPE = {
    "rope_scaling.type": Setting("str", "RoPE scaling", choices=ROPE_TYPES, native="rope_scaling_type"),
    "rope_scaling.freq_base": Setting("float", "RoPE base frequency", minimum=0, native="rope_freq_base"),
    "rope_scaling.freq_scale": Setting("float", "RoPE frequency factor, 1/N for N times", native="rope_freq_scale"),
    "rope_scaling.yarn_ext_factor": Setting("float", "YaRN extrapolation mix", native="yarn_ext_factor"),
    "rope_scaling.yarn_attn_factor": Setting("float", "YaRN attention magnitude", native="yarn_attn_factor"),
    "rope_scaling.yarn_beta_fast": Setting("float", "YaRN low correction dim", native="yarn_beta_fast"),
    "rope_scaling.yarn_beta_slow": Setting("float", "YaRN high correction dim", native="yarn_beta_slow"),
    "rope_scaling.yarn_orig_ctx": Setting("int", "YaRN original context", minimum=0, native="yarn_orig_ctx"),
}

_SPECULATIVE = {
    "speculative.method": Setting(
        "str", "Guess tokens ahead: from repeats in the text, or with a draft model", choices=SPECULATION,
        native="speculative",
    ),
    "speculative.model": Setting("str", "GGUF file of the draft model", native="speculative"),
    "speculative.num_tokens": Setting("int", "Tokens guessed per step", minimum=1, maximum=64, native="speculative"),
    "speculative.ngram_max": Setting(
        "int", "Length of the repeat that is looked for; unset: 12", minimum=1, native="speculative"
    ),
}  # fmt: skip

_UNIVERSAL = {
    "batching.batch_size": Setting("int", "Requests computed together", translates("max_batch"), minimum=1),
    "batching.strategy": Setting(
        "str", "How requests share the model", refuses("leave it out, batching is always continuous"),
        default="continuous", choices=STRATEGIES,
    ),
    "fp_precision": Setting("str", "Precision of the weights", _ANOTHER_FILE),
    "quantization.load_in_4bit": Setting("bool", "Quantize while loading", _ANOTHER_FILE),
    "quantization.load_in_8bit": Setting("bool", "Quantize while loading", _ANOTHER_FILE),
    "sharding.strategy": Setting("str", "How the model is split", _SPLIT, default="none"),
    "sharding.num_shards": Setting("int", "Into how many parts", _SPLIT, minimum=1, default=1),
}  # fmt: skip

SETTINGS: dict[str, Setting] = {**_SIZE, **_PROCESSOR, **_LOADING, **_ROPE, **_SPECULATIVE, **_UNIVERSAL}

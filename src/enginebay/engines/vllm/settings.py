"""Load settings of the vllm engine, and the engine argument behind each."""

from __future__ import annotations

from collections.abc import Iterable

from enginebay.contract import Retired, Setting, refuses, translates
from enginebay.engines.vllm.patches.declarations import PATCHES
from enginebay.errors import ConfigError

DEFAULT_CPU_CACHE_GIB = 4.0  # at most a quarter of the memory
DEFAULT_GPU_UTILIZATION = 0.92
BITSANDBYTES = "quantization=bitsandbytes"  # as the probe lists an available quantization method

_MEMORY = {
    "max_num_seqs": Setting(
        "int",
        "Maximum sequences in one batch",
        minimum=1,
        maximum=1024,
        native="max_num_seqs",
        tune=(64, 128, 256, 512),
    ),
    "max_num_batched_tokens": Setting(
        "int",
        "Maximum tokens in one step",
        minimum=1,
        native="max_num_batched_tokens",
        tune=(2048, 4096, 8192, 16384),
    ),
    "gpu_memory_utilization": Setting(
        "float",
        "Fraction of GPU memory for weights and KV cache; set it low if several models share a GPU",
        minimum=0.01,
        maximum=0.99,
        native="gpu_memory_utilization",
    ),
    "cpu_offload_gb": Setting("float", "Weights to offload to CPU memory, in GiB", minimum=0, native="cpu_offload_gb"),
    "cpu_kvcache_space_gib": Setting(
        "float",
        "KV cache on a CPU host, in GiB; unset: 4, or a quarter of the free memory if less",
        translates("kv_cache_memory_bytes"),
        minimum=0.01,
        native="kv_cache_memory_bytes",
    ),
    "enable_prefix_caching": Setting("bool", "Reuse the KV cache of shared prefixes", native="enable_prefix_caching"),
    "enable_chunked_prefill": Setting(
        "bool", "Split long prompts and batch the chunks with decoding", native="enable_chunked_prefill"
    ),
    "kv_cache_dtype": Setting(
        "str",
        "Precision of the KV cache",
        choices=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        native="kv_cache_dtype",
    ),
    "block_size": Setting(
        "int",
        "Tokens per KV cache block; a multiple of 32 on a CPU",
        choices=(8, 16, 32, 64, 128, 256),
        native="block_size",
    ),
    "max_model_len": Setting(
        "int",
        "Context length",
        minimum=1,
        native="max_model_len",
        aliases=("context_length", "n_ctx", "num_ctx", "ctx_size"),
    ),
    "sleep_mode": Setting(
        "bool|str",
        "Allocate GPU memory that can be freed while the model sleeps; auto: yes on CUDA",
        translates("enable_sleep_mode"),
        choices=("auto", True, False),
        default="auto",
        native="enable_sleep_mode",
        aliases=("enable_sleep_mode",),
    ),
}

_EXECUTION = {
    "enforce_eager": Setting(
        "bool", "Disable CUDA graphs and compilation; unset on a CPU: true", native="enforce_eager"
    ),
    "dtype": Setting(
        "str",
        "Precision of the weights",
        choices=("auto", "float16", "bfloat16", "float32", "half", "float"),
        native="dtype",
    ),
    "fp_precision": Setting(
        "str",
        "Precision of the weights",
        translates("dtype"),
        choices=("float16", "bfloat16", "float32"),
        native="dtype",
    ),
    "tensor_parallel_size": Setting("int", "GPUs to split each layer over", minimum=1, native="tensor_parallel_size"),
    "pipeline_parallel_size": Setting(
        "int", "Pipeline stages: GPUs to spread the layers over", minimum=1, native="pipeline_parallel_size"
    ),
    "sharding.strategy": Setting("str", "How the model is split", translates("tensor or pipeline parallel")),
    "sharding.num_shards": Setting(
        "int", "Number of shards", translates("tensor_parallel_size"), minimum=1, native="tensor_parallel_size"
    ),
    "distributed_backend": Setting(
        "str",
        "Launcher of the parallel processes",
        translates("distributed_executor_backend"),
        choices=("mp", "ray"),
        native="distributed_executor_backend",
        aliases=("distributed_executor_backend",),
        sensitive="may join a Ray cluster",
    ),
    "disable_custom_all_reduce": Setting(
        "bool", "Use NCCL's all-reduce instead of vLLM's kernel", native="disable_custom_all_reduce"
    ),
    "batching.batch_size": Setting(
        "int",
        "Maximum batch size; batching is continuous",
        translates("max_num_seqs"),
        minimum=1,
        native="max_num_seqs",
    ),
    "batching.strategy": Setting(
        "str", "Batching strategy; always continuous", refuses("remove it: batching is always continuous")
    ),
    "attention.backend": Setting(
        "str",
        "Attention backend: auto, FLASH_ATTN, FLASHINFER or any other of the installed version",
        translates("attention_backend"),
        native="attention_backend",
        aliases=("attention", "attention_backend"),
    ),
    "attention.flash_version": Setting(
        "int", "FlashAttention version", translates("attention_config"), choices=(2, 3, 4), native="attention_config"
    ),
    "attention.disable_sliding_window": Setting(
        "bool",
        "Full attention instead of a sliding window",
        translates("disable_sliding_window"),
        native="disable_sliding_window",
        aliases=("disable_sliding_window",),
    ),
    "cpu_threads_bind": Setting(
        "str",
        "CPU cores of each rank, such as 0-3|4-7; unset: all allowed cores, not pinned",
        translates("VLLM_CPU_OMP_THREADS_BIND"),
        native="VLLM_CPU_OMP_THREADS_BIND",
    ),
    "start_method": Setting(
        "str",
        "How to start the engine process; auto forks if that is safe, which is faster",
        choices=("auto", "fork", "spawn"),
        default="auto",
    ),
    **{
        patch.setting: Setting(
            "str", f"{patch.summary}; off: {patch.fallback}", choices=("auto", "off"), default="auto"
        )
        for patch in PATCHES
        if patch.off == "off"
    },
}

_MODEL = {
    "trust_remote_code": Setting(
        "bool", "Run Python code from the model's files", native="trust_remote_code", sensitive="runs code"
    ),
    "seed": Setting("int", "Random seed of the engine", native="seed"),
    "quantization_method": Setting(
        "str",
        "gptq, awq, fp8, ...; unset: from the checkpoint",
        native="quantization",
        aliases=("quantization",),
    ),
    "quantization.load_in_4bit": Setting(
        "bool", "Quantize with bitsandbytes while loading", translates("quantization=bitsandbytes"), native=BITSANDBYTES
    ),
    "quantization.load_in_8bit": Setting(
        "bool", "bitsandbytes 8-bit", refuses("quantization.load_in_4bit, or a GPTQ or AWQ checkpoint")
    ),
    "load_format": Setting(
        "str",
        "Format of the weight files; pt (pickle) and gguf are rejected",
        choices=("auto", "safetensors", "pt", "gguf", "dummy", "sharded_state", "runai_streamer", "fastsafetensors"),
        native="load_format",
    ),
    "rope_scaling": Setting(
        "map", "RoPE scaling, such as rope_type and factor", translates("hf_overrides"), native="hf_overrides"
    ),
    "rope_theta": Setting("float", "RoPE base frequency", translates("hf_overrides"), native="hf_overrides"),
    "speculative.model": Setting(
        "str",
        "Draft model",
        translates("speculative_config"),
        native="speculative_config",
        sensitive="may download files unchecked",
    ),
    "speculative.num_tokens": Setting(
        "int",
        "Speculative tokens per step",
        translates("speculative_config"),
        minimum=1,
        maximum=10,
        native="speculative_config",
    ),
    "speculative.method": Setting(
        "str",
        "ngram, eagle, eagle3, medusa, mlp, or any other of the installed version",
        translates("speculative_config"),
        native="speculative_config",
        aliases=("speculative",),
    ),
    "speculative.ngram_min": Setting(
        "int", "Shortest n-gram to look up", translates("speculative_config"), minimum=1, native="speculative_config"
    ),
    "speculative.ngram_max": Setting(
        "int", "Longest n-gram to look up", translates("speculative_config"), minimum=1, native="speculative_config"
    ),
    "speculative.draft_tp_size": Setting(
        "int",
        "Tensor parallel size of the draft model",
        translates("speculative_config"),
        minimum=1,
        native="speculative_config",
    ),
    "lora.enabled": Setting(
        "bool",
        "Enable LoRA adapters, including ones added at runtime; implied if the model lists any",
        translates("enable_lora"),
        native="enable_lora",
        aliases=("lora", "enable_lora"),
    ),
    "lora.max_loras": Setting(
        "int",
        "Maximum adapters in one batch",
        translates("max_loras"),
        minimum=1,
        native="max_loras",
        aliases=("max_loras",),
    ),
    "lora.max_rank": Setting(
        "int",
        "Highest adapter rank, rounded up to one that vLLM supports",
        translates("max_lora_rank"),
        minimum=1,
        native="max_lora_rank",
        aliases=("max_lora_rank",),
    ),
    "logprobs": Setting("int", "Top logprobs per token", translates("request default"), minimum=1, maximum=20),
    "logit_bias": Setting("map", "Logit bias by token id", translates("request default")),
    "extra": Setting("map", "Additional engine arguments, by vLLM's names", default={}, sensitive="may run code"),
}

SETTINGS: dict[str, Setting] = {**_MEMORY, **_EXECUTION, **_MODEL}

# The first version without each name, from the sources at vLLM's release tags.
RETIRED: dict[str, Retired] = {
    "swap_space": Retired("0.18.0", "remove it; cpu_offload_gb offloads weights to CPU memory"),
    "max_seq_len_to_capture": Retired("0.11.0", "remove it, or set extra: {max_cudagraph_capture_size: N}"),
    "lora.extra_vocab_size": Retired("0.12.0", "remove it: adapters share the model's vocabulary"),
    "best_of": Retired("0.12.0", "best_of in the request or under sampling: keeps the best n by mean logprob"),
    "use_beam_search": Retired("0.6.3", "num_beams with engine transformers, or best_of in the request"),
    "length_penalty": Retired("0.6.3", "length_penalty with num_beams on engine transformers"),
}

# The engine argument of each retired name. Versions that still have it get it.
RETIRED_NATIVE = {
    "swap_space": "swap_space",
    "max_seq_len_to_capture": "max_seq_len_to_capture",
    "lora.extra_vocab_size": "lora_extra_vocab_size",
}

_USE_MODEL = "set the model to load instead: its files are checked first"
_USE_SAMPLING = "set sampling parameters in the request or under sampling instead"
_USE_SPECULATIVE = "use speculative.method, speculative.model and speculative.num_tokens instead"
_USE_LORAS = "list adapters under the model's loras, and use lora.max_loras and lora.max_rank instead"
_USE_TASK = "set the model's task (generate or embed) instead"
_OWN_TOKENIZER = "remove it: prompts are tokenized with the model's own tokenizer"

# Arguments that `extra` must not set, because they would bypass a check, with the hint.
PROTECTED_ARGUMENTS = {
    "model": _USE_MODEL,
    "model_weights": _USE_MODEL,
    "hf_config_path": _USE_MODEL,
    "revision": _USE_MODEL,
    "code_revision": _USE_MODEL,
    "tokenizer": _OWN_TOKENIZER,
    "tokenizer_revision": _OWN_TOKENIZER,
    "skip_tokenizer_init": _OWN_TOKENIZER,
    "trust_remote_code": "set trust_remote_code next to extra, not inside it",
    "load_format": "use the setting load_format instead, which rejects pickle files",
    "hf_overrides": "use rope_scaling and rope_theta instead",
    "speculative_config": _USE_SPECULATIVE,
    "spec_method": _USE_SPECULATIVE,
    "spec_model": _USE_SPECULATIVE,
    "spec_tokens": _USE_SPECULATIVE,
    "enable_lora": _USE_LORAS,
    "max_loras": _USE_LORAS,
    "max_lora_rank": _USE_LORAS,
    "default_mm_loras": _USE_LORAS,
    "runner": _USE_TASK,
    "convert": _USE_TASK,
    "task": _USE_TASK,
    "generation_config": _USE_SAMPLING,
    "override_generation_config": _USE_SAMPLING,
    "logprobs_mode": "remove it: logprobs mean the same on every engine",
}


def reject_protected_arguments(names: Iterable[str]) -> None:
    """Raise `ConfigError` for the first protected name."""
    for name in names:
        if name in PROTECTED_ARGUMENTS:
            raise ConfigError(f"vllm.extra must not set {name}", PROTECTED_ARGUMENTS[name], param=f"extra.{name}")

"""Load settings of the vllm engine: the guide's names, and the engine argument behind each."""

from __future__ import annotations

from enginebay.contract import Retired, Setting, refuses, translates

BITSANDBYTES = "quantization=bitsandbytes"  # as the probe lists a quantization method that the installed version has

_MEMORY = {
    "max_num_seqs": Setting("int", "Sequences computed together", minimum=1, maximum=1024, native="max_num_seqs"),
    "max_num_batched_tokens": Setting("int", "Tokens in one step", minimum=1, native="max_num_batched_tokens"),
    "gpu_memory_utilization": Setting(
        "float",
        "Fraction of GPU memory for weights and KV cache; small where several models share a GPU",
        minimum=0.01,
        maximum=0.99,
        native="gpu_memory_utilization",
    ),
    "cpu_offload_gb": Setting("float", "Weights kept in CPU memory, GiB", minimum=0, native="cpu_offload_gb"),
    "cpu_kvcache_space_gib": Setting(
        "float",
        "KV cache on a CPU host, GiB; unset: 4, or a quarter of the free memory if that is less",
        translates("kv_cache_memory_bytes"),
        minimum=0.01,
        native="kv_cache_memory_bytes",
    ),
    "enable_prefix_caching": Setting("bool", "Reuse the KV cache of equal prefixes", native="enable_prefix_caching"),
    "enable_chunked_prefill": Setting(
        "bool", "Mix pieces of long prompts with decoding", native="enable_chunked_prefill"
    ),
    "kv_cache_dtype": Setting(
        "str",
        "Precision of the KV cache",
        choices=("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"),
        native="kv_cache_dtype",
    ),
    "block_size": Setting(
        "int",
        "Tokens in one KV block; multiples of 32 on a CPU",
        choices=(8, 16, 32, 64, 128, 256),
        native="block_size",
    ),
    "max_model_len": Setting("int", "Context length", minimum=1, native="max_model_len"),
    "sleep_mode": Setting(
        "bool|str",
        "Make GPU memory that can be freed while the model sleeps; auto: yes on CUDA",
        translates("enable_sleep_mode"),
        choices=("auto", True, False),
        default="auto",
        native="enable_sleep_mode",
    ),
}

_EXECUTION = {
    "enforce_eager": Setting("bool", "No CUDA graphs, no compilation; unset on a CPU: true", native="enforce_eager"),
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
    "tensor_parallel_size": Setting("int", "GPUs that share each layer", minimum=1, native="tensor_parallel_size"),
    "pipeline_parallel_size": Setting(
        "int", "GPUs that hold groups of layers", minimum=1, native="pipeline_parallel_size"
    ),
    "sharding.strategy": Setting("str", "How the model is split", translates("tensor or pipeline parallel")),
    "sharding.num_shards": Setting(
        "int", "Into how many parts", translates("tensor_parallel_size"), minimum=1, native="tensor_parallel_size"
    ),
    "distributed_backend": Setting(
        "str",
        "What starts the parallel processes",
        translates("distributed_executor_backend"),
        choices=("mp", "ray"),
        native="distributed_executor_backend",
    ),
    "disable_custom_all_reduce": Setting("bool", "Use NCCL's all-reduce", native="disable_custom_all_reduce"),
    "batching.batch_size": Setting(
        "int", "A hint: batching is continuous", translates("max_num_seqs"), minimum=1, native="max_num_seqs"
    ),
    "batching.strategy": Setting(
        "str", "Batching is always continuous", refuses("leave it out, batching is always continuous")
    ),
    "attention.backend": Setting(
        "str",
        "Attention kernels: auto, FLASH_ATTN, FLASHINFER or another of the installed version",
        translates("attention_backend"),
        native="attention_backend",
    ),
    "attention.flash_version": Setting(
        "int", "FlashAttention version", translates("attention_config"), choices=(2, 3, 4), native="attention_config"
    ),
    "attention.disable_sliding_window": Setting(
        "bool",
        "Full attention instead of a sliding window",
        translates("disable_sliding_window"),
        native="disable_sliding_window",
    ),
    "cpu_threads_bind": Setting(
        "str",
        "CPU cores of each rank, as 0-3|4-7; unset: all cores this process may use, not bound",
        translates("VLLM_CPU_OMP_THREADS_BIND"),
        native="VLLM_CPU_OMP_THREADS_BIND",
    ),
    "start_method": Setting(
        "str",
        "How the engine process starts; auto forks when that is safe, which is faster",
        choices=("auto", "fork", "spawn"),
        default="auto",
    ),
    "stepwise": Setting(
        "str",
        "Collect each step's tokens at once (auto), or use vLLM's generate() (off)",
        choices=("auto", "off"),
        default="auto",
    ),
    "mixed_graphs": Setting(
        "str",
        "On a GPU, run steps that mix prompts and answers as one CUDA graph each",
        choices=("auto", "off"),
        default="auto",
    ),
}

_MODEL = {
    "trust_remote_code": Setting(
        "bool", "Run Python code that comes with the model's files", native="trust_remote_code"
    ),
    "seed": Setting("int", "Seed of the engine", native="seed"),
    "quantization_method": Setting("str", "gptq, awq, fp8, ...; unset: as the checkpoint says", native="quantization"),
    "quantization.load_in_4bit": Setting(
        "bool", "Quantize with bitsandbytes while loading", translates("quantization=bitsandbytes"), native=BITSANDBYTES
    ),
    "quantization.load_in_8bit": Setting(
        "bool", "bitsandbytes 8-bit", refuses("quantization.load_in_4bit, or a GPTQ or AWQ checkpoint")
    ),
    "load_format": Setting(
        "str",
        "Format of the weight files; pt (pickle) and gguf are refused",
        choices=("auto", "safetensors", "pt", "gguf", "dummy", "sharded_state", "runai_streamer", "fastsafetensors"),
        native="load_format",
    ),
    "rope_scaling": Setting(
        "map", "RoPE scaling, as rope_type and factor", translates("hf_overrides"), native="hf_overrides"
    ),
    "rope_theta": Setting("float", "RoPE base", translates("hf_overrides"), native="hf_overrides"),
    "speculative.model": Setting("str", "Draft model", translates("speculative_config"), native="speculative_config"),
    "speculative.num_tokens": Setting(
        "int",
        "Tokens to speculate",
        translates("speculative_config"),
        minimum=1,
        maximum=10,
        native="speculative_config",
    ),
    "speculative.method": Setting(
        "str",
        "ngram, eagle, eagle3, medusa, mlp, or another of the installed version",
        translates("speculative_config"),
        native="speculative_config",
    ),
    "speculative.ngram_min": Setting(
        "int", "Shortest n-gram looked up", translates("speculative_config"), minimum=1, native="speculative_config"
    ),
    "speculative.ngram_max": Setting(
        "int", "Longest n-gram looked up", translates("speculative_config"), minimum=1, native="speculative_config"
    ),
    "speculative.draft_tp_size": Setting(
        "int", "GPUs of the draft model", translates("speculative_config"), minimum=1, native="speculative_config"
    ),
    "lora.enabled": Setting(
        "bool",
        "Adapters, also some that are added later; implied when the model lists any",
        translates("enable_lora"),
        native="enable_lora",
    ),
    "lora.max_loras": Setting("int", "Adapters in one batch", translates("max_loras"), minimum=1, native="max_loras"),
    "lora.max_rank": Setting(
        "int",
        "Highest adapter rank, rounded up to what vLLM allows",
        translates("max_lora_rank"),
        minimum=1,
        native="max_lora_rank",
    ),
    "logprobs": Setting("int", "Top alternatives per token", translates("request default"), minimum=1, maximum=20),
    "logit_bias": Setting("map", "Bias by token id", translates("request default")),
    "extra": Setting("map", "More engine arguments, by vLLM's own names", default={}),
}

SETTINGS: dict[str, Setting] = {**_MEMORY, **_EXECUTION, **_MODEL}

# The first version without each name, read from the sources at vLLM's own release tags.
RETIRED: dict[str, Retired] = {
    "swap_space": Retired("0.18.0", "leave it out; cpu_offload_gb keeps weights in CPU memory"),
    "max_seq_len_to_capture": Retired("0.11.0", "leave it out, or extra: {max_cudagraph_capture_size: N}"),
    "lora.extra_vocab_size": Retired("0.12.0", "leave it out: adapters share the model's vocabulary"),
    "best_of": Retired("0.12.0", "best_of in the request or under sampling: the best n by mean logprob are kept"),
    "use_beam_search": Retired("0.6.3", "num_beams with engine transformers, or best_of in the request"),
    "length_penalty": Retired("0.6.3", "length_penalty with num_beams on engine transformers"),
}

# What each retired name was called as an engine argument: an old version that still takes it gets it.
RETIRED_NATIVE = {
    "swap_space": "swap_space",
    "max_seq_len_to_capture": "max_seq_len_to_capture",
    "lora.extra_vocab_size": "lora_extra_vocab_size",
}

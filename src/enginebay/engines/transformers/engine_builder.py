"""Putting the engine together: what the settings, the device and the model allow."""

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
from enginebay.engines.transformers.continuous.kv_cache_budget import KVCacheBudget
from enginebay.engines.transformers.continuous.model_runner import ModelRunner
from enginebay.engines.transformers.continuous.scheduler import BatchLimits
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
from enginebay.engines.transformers.settings import RETIRED
from enginebay.engines.transformers.static.batch_selection import BatchRules
from enginebay.engines.transformers.static.generate_loop import DraftSource, LibraryGenerator
from enginebay.errors import LoadFailed
from enginebay.util.text_format import summarize_error

_DEFAULT_BATCH_SIZE = {"cpu": 32, "cuda": 256}
_DEFAULT_STEP_TOKENS = {
    "cpu": 512,
    "cuda": 8192,
}  # a CPU computes some hundred prompt tokens in the time of a few answers' steps
_DEFAULT_BATCH_TOKENS = {"cpu": 16_384, "cuda": 131_072}


@dataclass(slots=True)
class EngineComponents:
    """A loaded model and what runs it. For embeddings there is no generator; without a runner, no continuous batching."""

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
    """Load everything and decide how it runs."""
    place = RankInfo.from_environment()
    threads = options.threads or max(1, runtime_info.count_usable_cores() // place.world_size)
    torch.set_num_threads(threads)
    loaded = load_model(load, options, place)
    peers = RankGroup(place)
    kind = loaded.device.type if loaded.device.type in _DEFAULT_BATCH_SIZE else "cpu"
    rows = options.batch_size or _DEFAULT_BATCH_SIZE[kind]
    notes = loaded.warnings + tuple(
        f"{name} is gone since {RETIRED[name].since}: {RETIRED[name].instead}"
        for name in load.settings
        if name in RETIRED
    )
    limits = BatchLimits(
        rows, max(rows, options.tokens_per_batch or _DEFAULT_STEP_TOKENS[kind]), 0, loaded.context_length
    )
    parts = EngineComponents(
        loaded,
        peers,
        PeftAdapters(loaded.model, load.loras),
        limits,
        _build_batch_rules("dynamic", rows, options, kind),
        rows,
    )
    parts.effective = _describe_settings(parts, options, threads)
    parts.refused = runtime_info.find_refused_params()
    if load.task == "embed":
        if not peers.is_single_process:
            raise LoadFailed("embeddings run in one process", "leave sharding.strategy out")
        pooling, normalised = read_pooling(Path(load.path))
        parts.embedder = Embedder(
            loaded.model, loaded.device, loaded.pad_token_id, loaded.context_length, pooling, normalised, rows
        )
        parts.effective |= {"pooling": pooling, "normalised": normalised}
        parts.warnings = notes
        return parts
    parts.refused["embeddings"] = "load the model with task: embed"
    _prepare_generation(parts, load, options, kind, notes)
    return parts


def _prepare_generation(
    parts: EngineComponents, load: Load, options: LoadOptions, kind: str, notes: tuple[str, ...]
) -> None:
    loaded = parts.loaded_model
    draft = (
        DraftSource(load_draft_model(options, loaded.device, load), options.draft_tokens or 5)
        if options.is_assisted
        else None
    )
    parts.generator = LibraryGenerator(
        loaded.model, loaded.hf_tokenizer, parts.adapters, loaded.device, loaded.pad_token_id, options.use_cache, draft
    )
    runner, obstacle = _build_runner(parts, options, load)
    strategy, warning = choose_strategy(options, obstacle)
    parts.warnings = (*notes, *((warning,) if warning else ()))
    parts.effective |= {"batching.strategy": strategy}
    if strategy == "continuous" and runner is not None:
        parts.runner = runner
        budget = runtime_info.compute_kv_cache_bytes(loaded.device, parts.ranks.rank_info.world_size) // max(
            1, runner.bytes_per_token
        )
        parts.limits = BatchLimits(
            parts.limits.max_sequences, parts.limits.max_step_tokens, budget, loaded.context_length
        )
        parts.effective |= {"batching.max_tokens_per_batch": parts.limits.max_step_tokens, "cached_tokens": budget}
        recorder, reason = choose_recorder(loaded, options, parts.ranks.is_single_process)
        if recorder is not None:
            runner.enable_graphs(recorder, KVCacheBudget(budget, parts.limits.max_sequences))
        parts.effective |= {"cuda_graphs": "on" if recorder is not None else f"off: {reason}"}
        parts.effective |= {"decode_attention": "own" if runner.has_kernel else f"library: {runner.fallback_reason}"}
        parts.batch_rules = _build_batch_rules("dynamic", parts.limits.max_sequences, options, kind)
        return
    parts.batch_rules = _build_batch_rules(strategy, parts.limits.max_sequences, options, kind)
    parts.max_batch = 1 if options.is_assisted else parts.batch_rules.size
    parts.effective |= {
        "batching.batch_size": parts.max_batch,
        "batching.max_tokens_per_batch": parts.batch_rules.max_tokens,
    }
    parts.effective |= {"continuous": f"not possible: {obstacle}"} if obstacle else {}
    if options.compile_mode is not None:
        loaded.model.forward = torch.compile(loaded.model.forward, mode=options.compile_mode, dynamic=True)


def _build_runner(parts: EngineComponents, options: LoadOptions, load: Load) -> tuple[ModelRunner | None, str | None]:
    """Continuous batching where settings and model allow it, else the reason why not."""
    obstacle = find_settings_obstacle(options)
    if obstacle is not None or (options.strategy or "continuous") != "continuous":
        return None, obstacle
    loaded = parts.loaded_model
    kernel, reason = load_decode_kernel(loaded, parts.ranks.is_single_process)
    runner = ModelRunner(
        loaded.model, parts.adapters, loaded.context_length, loaded.device, options.compile_mode, kernel, reason
    )
    with translate_load_errors(load.path):
        return runner, runner.find_obstacle()


def load_decode_kernel(loaded: LoadedModel, single_process: bool) -> tuple[DecodeKernel | None, str | None]:
    """Attention of our own for rows that decode, or the reason why there is none."""
    if loaded.device.type != "cuda":
        return None, "the model is not on CUDA"
    if loaded.attention == "eager":
        return None, "attn_implementation is eager"
    if not single_process:
        return None, "several processes have the model"
    try:
        return importlib.import_module("enginebay.engines.transformers.continuous.decode_kernel"), None
    except ImportError as error:  # its compiler comes with PyTorch for CUDA
        return None, summarize_error(error)


def choose_recorder(
    loaded: LoadedModel, options: LoadOptions, single_process: bool
) -> tuple[GraphRecorder | None, str | None]:
    """What records steps on this device, or the reason why nothing does."""
    devices = {str(tensor.device) for tensor in loaded.model.parameters()}
    reason = find_graphs_obstacle(options, devices, single_process, loaded.quantization is not None)
    return (CudaGraphRecorder(loaded.device), None) if reason is None else (None, reason)


def _build_batch_rules(strategy: str, rows: int, options: LoadOptions, kind: str) -> BatchRules:
    return BatchRules(strategy, rows, options.tokens_per_batch or _DEFAULT_BATCH_TOKENS[kind], options.max_wait_s)


def _describe_settings(parts: EngineComponents, options: LoadOptions, threads: int) -> dict[str, Any]:
    loaded = parts.loaded_model
    found: dict[str, Any] = {
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "attn_implementation": loaded.attention,
        "batching.batch_size": parts.limits.max_sequences,
        "context_length": loaded.context_length,
        "threads": threads,
        "use_cache": options.use_cache,
        "torch_compile": options.compile_mode or False,
        "sharding.strategy": options.sharding,
        "sharding.num_shards": parts.ranks.rank_info.world_size,
    }
    if loaded.quantization is not None:
        found["quantization_method"] = loaded.quantization
    if options.quantization_bits is not None:
        found[f"quantization.load_in_{options.quantization_bits}bit"] = True
    if options.is_assisted:
        found["assisted_generation.model"] = options.draft_model or "prompt lookup"
        found["assisted_generation.num_tokens"] = options.draft_tokens or 5
    return found

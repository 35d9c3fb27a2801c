"""Putting the engine together: what the settings, the device and the model allow."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from enginebay.contract import Load
from enginebay.engines.transformers import measure
from enginebay.engines.transformers.adapters import Adapters
from enginebay.engines.transformers.attention import Kernel
from enginebay.engines.transformers.batches import BatchRules
from enginebay.engines.transformers.embedding import Embedder
from enginebay.engines.transformers.generation import Draft, Generator
from enginebay.engines.transformers.graphs import CudaRecorder, Recorder
from enginebay.engines.transformers.loading import Loaded, explained, load_draft, load_model, pooling_of
from enginebay.engines.transformers.options import Options, obstacle_in_settings, obstacle_to_graphs, strategy_for
from enginebay.engines.transformers.parallel import Peers, Place
from enginebay.engines.transformers.room import Room
from enginebay.engines.transformers.runner import Runner
from enginebay.engines.transformers.schedule import Limits
from enginebay.engines.transformers.settings import RETIRED
from enginebay.errors import LoadFailed
from enginebay.wording import in_one_line

_ROWS = {"cpu": 32, "cuda": 256}
_STEP_TOKENS = {
    "cpu": 512,
    "cuda": 8192,
}  # a CPU computes some hundred prompt tokens in the time of a few answers' steps
_BATCH_TOKENS = {"cpu": 16_384, "cuda": 131_072}


@dataclass(slots=True)
class Parts:
    """A loaded model and what runs it. For embeddings there is no generator; without a runner, no continuous batching."""

    loaded: Loaded
    peers: Peers
    adapters: Adapters
    limits: Limits
    rules: BatchRules
    max_batch: int
    generator: Generator | None = None
    runner: Runner | None = None
    embedder: Embedder | None = None
    effective: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)


def assemble(load: Load, options: Options) -> Parts:
    """Load everything and decide how it runs."""
    place = Place.from_environment()
    threads = options.threads or max(1, measure.usable_cores() // place.size)
    torch.set_num_threads(threads)
    loaded = load_model(load, options, place)
    peers = Peers(place)
    kind = loaded.device.type if loaded.device.type in _ROWS else "cpu"
    rows = options.batch_size or _ROWS[kind]
    notes = loaded.notes + tuple(
        f"{name} is gone since {RETIRED[name].since}: {RETIRED[name].instead}"
        for name in load.settings
        if name in RETIRED
    )
    limits = Limits(rows, max(rows, options.tokens_per_batch or _STEP_TOKENS[kind]), 0, loaded.context_length)
    parts = Parts(
        loaded, peers, Adapters(loaded.model, load.loras), limits, _rules("dynamic", rows, options, kind), rows
    )
    parts.effective = _effective(parts, options, threads)
    parts.refused = measure.refused()
    if load.task == "embed":
        if not peers.alone:
            raise LoadFailed("embeddings run in one process", "leave sharding.strategy out")
        pooling, normalised = pooling_of(Path(load.path))
        parts.embedder = Embedder(
            loaded.model, loaded.device, loaded.pad, loaded.context_length, pooling, normalised, rows
        )
        parts.effective |= {"pooling": pooling, "normalised": normalised}
        parts.warnings = notes
        return parts
    parts.refused["embeddings"] = "load the model with task: embed"
    _prepare_generation(parts, load, options, kind, notes)
    return parts


def _prepare_generation(parts: Parts, load: Load, options: Options, kind: str, notes: tuple[str, ...]) -> None:
    loaded = parts.loaded
    draft = Draft(load_draft(options, loaded.device, load), options.draft_tokens or 5) if options.assisted else None
    parts.generator = Generator(
        loaded.model, loaded.hf_tokenizer, parts.adapters, loaded.device, loaded.pad, options.use_cache, draft
    )
    runner, obstacle = _runner(parts, options, load)
    strategy, warning = strategy_for(options, obstacle)
    parts.warnings = (*notes, *((warning,) if warning else ()))
    parts.effective |= {"batching.strategy": strategy}
    if strategy == "continuous" and runner is not None:
        parts.runner = runner
        budget = measure.cache_budget_bytes(loaded.device, parts.peers.place.size) // max(1, runner.bytes_per_token)
        parts.limits = Limits(parts.limits.rows, parts.limits.step_tokens, budget, loaded.context_length)
        parts.effective |= {"batching.max_tokens_per_batch": parts.limits.step_tokens, "cached_tokens": budget}
        recorder, reason = recorder_for(loaded, options, parts.peers.alone)
        if recorder is not None:
            runner.record_with(recorder, Room(budget, parts.limits.rows))
        parts.effective |= {"cuda_graphs": "on" if recorder is not None else f"off: {reason}"}
        parts.effective |= {"decode_attention": "own" if runner.has_kernel else f"library: {runner.why_library}"}
        parts.rules = _rules("dynamic", parts.limits.rows, options, kind)
        return
    parts.rules = _rules(strategy, parts.limits.rows, options, kind)
    parts.max_batch = 1 if options.assisted else parts.rules.size
    parts.effective |= {"batching.batch_size": parts.max_batch, "batching.max_tokens_per_batch": parts.rules.tokens}
    parts.effective |= {"continuous": f"not possible: {obstacle}"} if obstacle else {}
    if options.compile_mode is not None:
        loaded.model.forward = torch.compile(loaded.model.forward, mode=options.compile_mode, dynamic=True)


def _runner(parts: Parts, options: Options, load: Load) -> tuple[Runner | None, str | None]:
    """Continuous batching where settings and model allow it, else the reason why not."""
    obstacle = obstacle_in_settings(options)
    if obstacle is not None or (options.strategy or "continuous") != "continuous":
        return None, obstacle
    loaded = parts.loaded
    kernel, reason = decode_kernel(loaded, parts.peers.alone)
    runner = Runner(
        loaded.model, parts.adapters, loaded.context_length, loaded.device, options.compile_mode, kernel, reason
    )
    with explained(load.path):
        return runner, runner.obstacle()


def decode_kernel(loaded: Loaded, alone: bool) -> tuple[Kernel | None, str | None]:
    """Attention of our own for rows that decode, or the reason why there is none."""
    if loaded.device.type != "cuda":
        return None, "the model is not on CUDA"
    if loaded.attention == "eager":
        return None, "attn_implementation is eager"
    if not alone:
        return None, "several processes have the model"
    try:
        return importlib.import_module("enginebay.engines.transformers.decode_kernel"), None
    except ImportError as error:  # its compiler comes with PyTorch for CUDA
        return None, in_one_line(error)


def recorder_for(loaded: Loaded, options: Options, alone: bool) -> tuple[Recorder | None, str | None]:
    """What records steps on this device, or the reason why nothing does."""
    devices = {str(tensor.device) for tensor in loaded.model.parameters()}
    reason = obstacle_to_graphs(options, devices, alone, loaded.quantization is not None)
    return (CudaRecorder(loaded.device), None) if reason is None else (None, reason)


def _rules(strategy: str, rows: int, options: Options, kind: str) -> BatchRules:
    return BatchRules(strategy, rows, options.tokens_per_batch or _BATCH_TOKENS[kind], options.max_wait_s)


def _effective(parts: Parts, options: Options, threads: int) -> dict[str, Any]:
    loaded = parts.loaded
    found: dict[str, Any] = {
        "dtype": loaded.dtype,
        "device": str(loaded.device),
        "attn_implementation": loaded.attention,
        "batching.batch_size": parts.limits.rows,
        "context_length": loaded.context_length,
        "threads": threads,
        "use_cache": options.use_cache,
        "torch_compile": options.compile_mode or False,
        "sharding.strategy": options.sharding,
        "sharding.num_shards": parts.peers.place.size,
    }
    if loaded.quantization is not None:
        found["quantization_method"] = loaded.quantization
    if options.bits is not None:
        found[f"quantization.load_in_{options.bits}bit"] = True
    if options.assisted:
        found["assisted_generation.model"] = options.draft_model or "prompt lookup"
        found["assisted_generation.num_tokens"] = options.draft_tokens or 5
    return found

"""Capture steps that mix prefill and decode as one CUDA graph each.

vLLM replays a decode-only step as one full graph. It runs a step with a prompt piecewise, with a graph and an attention
call per layer, which takes the CPU twice as long as the GPU computes. It runs steps of more than 512 tokens eagerly,
which takes longer still. Under steady load nearly every step has a prompt in it.

FlashAttention 3 can replay any mix from one graph, but only if that graph was captured with a prompt: for some head sizes
it treats a decode-only step as non-causal and schedules it differently. So this module captures mixed steps up to vLLM's
largest graph as full graphs, and larger ones, where the GPU is the bottleneck, piecewise.

It runs only on tested versions whose signatures match. The patch reaches the engine process by fork.
"""

from __future__ import annotations

import inspect
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

from enginebay.engines.vllm.patches.step_outputs import parse_minor_version

TESTED_VERSIONS = ((0, 26),)
MAX_FULL_TOKENS = 512  # vLLM's own largest graph
MAX_PIECEWISE_TOKENS = 1024
_STRIDE = 64
_PATCHED_MARK = "_enginebay_mixed"  # on vLLM's class
_FULL_MARK = "_enginebay_whole"  # on an instance: it captures mixed steps as full graphs
_shared_flag: mmap.mmap | None = None  # shared with forked processes; the engine process sets it to 1


def has_taken_effect() -> bool:
    """Return whether the engine process forked after `install` captures mixed steps as full graphs."""
    return _shared_flag is not None and _shared_flag[0] == 1


def disable() -> None:
    """Let engine processes forked from now on capture vLLM's default graphs, until `install`."""
    global _shared_flag
    _shared_flag = None


def choose_capture_sizes(captured: Sequence[int], max_step_tokens: int) -> list[int]:
    """Return the graph sizes to capture, in tokens: vLLM's own, plus larger ones if its own end at the default maximum."""
    if not captured or max(captured) != MAX_FULL_TOKENS:
        return list(captured)
    return [*captured, *range(MAX_FULL_TOKENS + _STRIDE, min(MAX_PIECEWISE_TOKENS, max_step_tokens) + 1, _STRIDE)]


def find_incompatibility(module: Any, version: str) -> str | None:
    """Return why this vLLM cannot capture mixed steps, or None if it can. `module`: its `cudagraph_utils`."""
    if parse_minor_version(version) not in TESTED_VERSIONS:
        return f"not tested with vllm {version}"
    manager = getattr(module, "CudaGraphManager", None)
    expected = (
        (manager, "_init_candidates", {"self"}),
        (manager, "capture", {"self", "create_forward_fn"}),
        (getattr(module, "InputBatch", None), "make_dummy", {"num_reqs", "num_tokens"}),
    )
    for owner, name, parameters in expected:
        method = getattr(owner, name, None)
        if method is None or not parameters <= set(inspect.signature(method).parameters):
            return f"vllm {version} has a different {name}"
    return None


def install(module: Any) -> None:
    """Patch vLLM's CudaGraphManager for engine processes forked from now on."""
    global _shared_flag
    _shared_flag = mmap.mmap(-1, 1)
    manager = module.CudaGraphManager
    if hasattr(manager, _PATCHED_MARK):
        return
    setattr(manager, _PATCHED_MARK, True)
    init_candidates, capture = manager._init_candidates, manager.capture
    full = module.CUDAGraphMode.FULL

    def init_full_candidates(self: Any) -> None:
        if _shared_flag is None or not is_supported_manager(self):
            init_candidates(self)
            return
        config = self.compilation_config
        sizes = choose_capture_sizes(
            config.cudagraph_capture_sizes or (), self.vllm_config.scheduler_config.max_num_batched_tokens
        )
        config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = sizes, max(sizes, default=0)
        init_candidates(self)
        select_full_graphs(self, full)
        setattr(self, _FULL_MARK, True)
        _shared_flag[0] = 1

    def capture_with_prompt(self: Any, create_forward_fn: Any, *args: Any, **kwargs: Any) -> Any:
        def create(desc: Any, warmup: bool) -> Any:
            mixed = hasattr(self, _FULL_MARK) and desc.cg_mode == full and desc.uniform_token_count is None
            with _pretend_prompt(module.InputBatch) if mixed else nullcontext():
                return create_forward_fn(desc, warmup)

        return capture(self, create, *args, **kwargs)

    manager._init_candidates = init_full_candidates
    manager.capture = capture_with_prompt


def select_full_graphs(manager: Any, full: Any) -> None:
    """Capture mixed steps of up to `MAX_FULL_TOKENS` as full graphs, and all larger ones piecewise."""
    captured = manager._capture_descs
    piecewise: list[Any] = next((descs for mode, descs in captured.items() if mode != full), [])
    decode_sizes = {desc.num_tokens for desc in captured.get(full, ())}
    only_mixed = _find_mixed_only_sizes(
        sorted(desc.num_tokens for desc in piecewise), decode_sizes, manager.max_num_reqs
    )
    full_graphs = {
        desc: replace(desc, cg_mode=full, num_reqs=min(desc.num_tokens, manager.max_num_reqs))
        for desc in piecewise
        if desc.num_tokens <= MAX_FULL_TOKENS and desc.num_tokens in only_mixed
    }
    for mode, descs in captured.items():
        unchanged = [
            desc for desc in descs if desc not in full_graphs and (mode != full or desc.num_tokens <= MAX_FULL_TOKENS)
        ]
        captured[mode] = sorted(
            [*unchanged, *(full_graphs.values() if mode == full else ())], key=lambda desc: -desc.num_tokens
        )
    for size, descs in manager._candidates.items():
        manager._candidates[size] = [
            full_graphs.get(desc, desc) for desc in descs if desc.num_tokens <= MAX_FULL_TOKENS or desc.cg_mode != full
        ]


def _find_mixed_only_sizes(captured: Sequence[int], decode_sizes: set[int], max_requests: int) -> set[int]:
    """Return the sizes whose mixed graph no decode-only step is padded to.

    Such a step has its own graph at that size, or is never that large.
    """
    return {size for smaller, size in pairwise([0, *captured]) if size in decode_sizes or smaller >= max_requests}


def is_supported_config(config: Any) -> bool:
    """Return whether the config is one that was tested: a text model on one GPU with vLLM's V2 model runner."""
    parallel, model = config.parallel_config, config.model_config
    return (
        getattr(config, "use_v2_model_runner", False)
        and config.speculative_config is None
        and config.lora_config is None
        and parallel.world_size == parallel.data_parallel_size == 1
        and not model.is_multimodal_model
        and not model.is_encoder_decoder
    )


def is_supported_manager(manager: Any) -> bool:
    """Return whether this manager qualifies. Runs in the engine process, once every layer's attention is known."""
    return (
        manager.cudagraph_mode.name == "FULL_AND_PIECEWISE"
        and manager.decode_query_len == 1
        and not manager.use_breakable_cg
        and is_supported_config(manager.vllm_config)
        and _is_flash_attention_3(_get_attention_layers(manager.vllm_config))
    )


def _get_attention_layers(config: Any) -> list[Any]:
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    return list(get_layers_from_vllm_config(config, AttentionLayerBase).values())


def _is_flash_attention_3(layers: Sequence[Any]) -> bool:
    """Return whether every layer uses FlashAttention 3 without a sliding window, so that all share one schedule."""
    impls = [getattr(layer, "impl", None) for layer in layers]
    return bool(impls) and all(
        getattr(impl, "vllm_flash_attn_version", None) == 3 and getattr(impl, "sliding_window", None) == (-1, -1)
        for impl in impls
    )


@contextmanager
def _pretend_prompt(batch: Any) -> Iterator[None]:
    """Make dummy batches claim that one of their requests is a prompt. Only the longest length is read from them."""
    original = batch.__dict__["make_dummy"]
    make = batch.make_dummy

    def make_mixed(num_reqs: int, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
        dummy = make(num_reqs, num_tokens, *args, **kwargs)
        dummy.num_scheduled_tokens[-1] = max(num_tokens, 2)
        return dummy

    batch.make_dummy = staticmethod(make_mixed)
    try:
        yield
    finally:
        batch.make_dummy = original

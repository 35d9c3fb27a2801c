"""Run steps that mix prompts and answers as one CUDA graph each.

vLLM replays a step of answers alone as one graph. A step with a prompt in it is launched in pieces, a graph and an attention
call for each layer, which takes the processor twice as long as the device computes; and one of more than 512 tokens is
launched kernel by kernel, longer still. While requests arrive all the time nearly every step has a prompt in it.
FlashAttention 3 takes any mixture in one graph, as long as that was recorded with a prompt in it, and only then: for some sizes of
heads it takes a step of answers alone for one without a causal mask, and lays out its schedule differently. So mixed steps up to
vLLM's largest graph are recorded whole here, and larger ones, where the device is the slower of the two, in pieces.

Like `stepwise.py` this leans on vLLM's inside and only runs where that is as expected. It works by what a forked process inherits.
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
MAX_FULL_TOKENS = 512  # tokens; vLLM's own largest graph
MAX_PIECEWISE_TOKENS = 1024
_STRIDE = 64
_PATCHED_MARK = "_enginebay_mixed"  # on vLLM's class
_FULL_MARK = "_enginebay_whole"  # on one of its objects: mixed steps are recorded whole
_shared_flag: mmap.mmap | None = (
    None  # shared with the processes forked after `install`: a 1 when the engine process did it
)


def has_taken_effect() -> bool:
    """Did the engine process forked since `install` record its mixed steps whole?"""
    return _shared_flag is not None and _shared_flag[0] == 1


def disable() -> None:
    """Engine processes forked from here on record as vLLM does, until `install`."""
    global _shared_flag
    _shared_flag = None


def choose_capture_sizes(captured: Sequence[int], max_step_tokens: int) -> list[int]:
    """The sizes to record, in tokens: vLLM's own, and larger ones if its own end where it always ends. `most`: of a step."""
    if not captured or max(captured) != MAX_FULL_TOKENS:
        return list(captured)
    return [*captured, *range(MAX_FULL_TOKENS + _STRIDE, min(MAX_PIECEWISE_TOKENS, max_step_tokens) + 1, _STRIDE)]


def find_incompatibility(module: Any, version: str) -> str | None:
    """Why mixed steps of this vLLM cannot be recorded whole; None when they can. `module`: its `cudagraph_utils`."""
    if parse_minor_version(version) not in TESTED_VERSIONS:
        return f"not tried with vllm {version}"
    manager = getattr(module, "CudaGraphManager", None)
    expected = (
        (manager, "_init_candidates", {"self"}),
        (manager, "capture", {"self", "create_forward_fn"}),
        (getattr(module, "InputBatch", None), "make_dummy", {"num_reqs", "num_tokens"}),
    )
    for owner, name, parameters in expected:
        method = getattr(owner, name, None)
        if method is None or not parameters <= set(inspect.signature(method).parameters):
            return f"vllm {version} has another {name}"
    return None


def install(module: Any) -> None:
    """Change vLLM's class that records graphs, for engine processes that are forked from here on."""
    global _shared_flag
    _shared_flag = mmap.mmap(-1, 1)
    manager = module.CudaGraphManager
    if hasattr(manager, _PATCHED_MARK):
        return
    setattr(manager, _PATCHED_MARK, True)
    choose, capture = manager._init_candidates, manager.capture
    full = module.CUDAGraphMode.FULL

    def choose_whole(self: Any) -> None:
        if _shared_flag is None or not is_supported_manager(self):
            choose(self)
            return
        config = self.compilation_config
        found = choose_capture_sizes(
            config.cudagraph_capture_sizes or (), self.vllm_config.scheduler_config.max_num_batched_tokens
        )
        config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = found, max(found, default=0)
        choose(self)
        select_full_graphs(self, full)
        setattr(self, _FULL_MARK, True)
        _shared_flag[0] = 1

    def capture_with_a_prompt(self: Any, create_forward_fn: Any, *args: Any, **kwargs: Any) -> Any:
        def create(desc: Any, warmup: bool) -> Any:
            mixed = hasattr(self, _FULL_MARK) and desc.cg_mode == full and desc.uniform_token_count is None
            with _pretend_prompt(module.InputBatch) if mixed else nullcontext():
                return create_forward_fn(desc, warmup)

        return capture(self, create, *args, **kwargs)

    manager._init_candidates = choose_whole
    manager.capture = capture_with_a_prompt


def select_full_graphs(manager: Any, full: Any) -> None:
    """Have mixed steps of up to `WHOLE` tokens recorded whole, and all larger ones in pieces."""
    chosen = manager._capture_descs
    pieces: list[Any] = next((descs for mode, descs in chosen.items() if mode != full), [])
    answers = {desc.num_tokens for desc in chosen.get(full, ())}
    only_mixed = _find_mixed_only_sizes(sorted(desc.num_tokens for desc in pieces), answers, manager.max_num_reqs)
    whole = {
        desc: replace(desc, cg_mode=full, num_reqs=min(desc.num_tokens, manager.max_num_reqs))
        for desc in pieces
        if desc.num_tokens <= MAX_FULL_TOKENS and desc.num_tokens in only_mixed
    }
    for mode, descs in chosen.items():
        kept = [desc for desc in descs if desc not in whole and (mode != full or desc.num_tokens <= MAX_FULL_TOKENS)]
        chosen[mode] = sorted([*kept, *(whole.values() if mode == full else ())], key=lambda desc: -desc.num_tokens)
    for size, descs in manager._candidates.items():
        manager._candidates[size] = [
            whole.get(desc, desc) for desc in descs if desc.num_tokens <= MAX_FULL_TOKENS or desc.cg_mode != full
        ]


def _find_mixed_only_sizes(captured: Sequence[int], decode_sizes: set[int], max_requests: int) -> set[int]:
    """The sizes whose mixed graph no step of answers alone is padded to: it has one of its own, or is never as large."""
    return {size for smaller, size in pairwise([0, *captured]) if size in decode_sizes or smaller >= max_requests}


def is_supported_config(config: Any) -> bool:
    """Text alone, on one GPU, by vLLM's newer way of running a model: what was read and tried."""
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
    """Asked in the engine process, when the attention of every layer is known."""
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
    """In every layer, and without a window: the schedule is then the same for all."""
    ways = [getattr(layer, "impl", None) for layer in layers]
    return bool(ways) and all(
        getattr(way, "vllm_flash_attn_version", None) == 3 and getattr(way, "sliding_window", None) == (-1, -1)
        for way in ways
    )


@contextmanager
def _pretend_prompt(batch: Any) -> Iterator[None]:
    """Dummy batches say that one of their requests is a prompt. Only the length of the longest is read off them."""
    made = batch.__dict__["make_dummy"]
    make = batch.make_dummy

    def make_mixed(num_reqs: int, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
        dummy = make(num_reqs, num_tokens, *args, **kwargs)
        dummy.num_scheduled_tokens[-1] = max(num_tokens, 2)
        return dummy

    batch.make_dummy = staticmethod(make_mixed)
    try:
        yield
    finally:
        batch.make_dummy = made

"""Capture steps that mix prefill and decode as one CUDA graph each.

vLLM replays a decode-only step as one full graph. It runs a step with a prompt piecewise, with a graph and an attention
call per layer, which takes the CPU twice as long as the GPU computes. It runs steps of more than 512 tokens eagerly,
which takes longer still. Under steady load nearly every step has a prompt in it.

FlashAttention 3 can replay any mix from one graph, but only if that graph was captured with a prompt: for some head sizes
it treats a decode-only step as non-causal and schedules it differently. So this module captures mixed steps up to vLLM's
largest graph as full graphs, and larger ones, where the GPU is the bottleneck, piecewise.

After the capture it compares replayed steps with eager ones (`graph_check.py`), and captures vLLM's default graphs
instead if they differ. The patch reaches the engine process by fork.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

from enginebay.engines.vllm.patches import graph_check
from enginebay.engines.vllm.patches.compatibility import PatchSelection
from enginebay.engines.vllm.patches.declarations import MIXED_GRAPHS

MAX_FULL_TOKENS = 512  # vLLM's own largest graph
MAX_PIECEWISE_TOKENS = 1024
_STRIDE = 64
_PATCHED_MARK = "_enginebay_mixed"  # on vLLM's classes
_DEFAULT_SIZES = "_enginebay_default_sizes"  # on an instance that captures mixed steps as full graphs: vLLM's own sizes
_REPORT_BYTES = 1024
_report: mmap.mmap | None = None  # shared with forked processes: "+" if the patch is on, "-" and the reason if refused


def has_taken_effect() -> bool:
    """Return whether the engine process forked after `install` captured mixed steps as full graphs, and found them right."""
    return _read_report().startswith("+")


def get_refusal() -> str | None:
    """Return why the engine process went back to vLLM's default graphs, or None if it did not."""
    report = _read_report()
    return report[1:] if report.startswith("-") else None


def _read_report() -> str:
    return "" if _report is None else _report[:].rstrip(b"\0").decode(errors="replace")


def disable() -> None:
    """Let engine processes forked from now on capture vLLM's default graphs, until `install`."""
    global _report
    _report = None


def choose_capture_sizes(captured: Sequence[int], max_step_tokens: int) -> list[int]:
    """Return the graph sizes to capture, in tokens: vLLM's own, plus larger ones if its own end at the default maximum."""
    if not captured or max(captured) != MAX_FULL_TOKENS:
        return list(captured)
    return [*captured, *range(MAX_FULL_TOKENS + _STRIDE, min(MAX_PIECEWISE_TOKENS, max_step_tokens) + 1, _STRIDE)]


def enable(config: Any, patches: PatchSelection) -> None:
    """Make engine processes forked from now on capture mixed steps as CUDA graphs, if config and version allow it."""
    if config.model_config.enforce_eager or not is_supported_config(config) or not patches.applies(MIXED_GRAPHS):
        return
    from vllm.v1.worker.gpu import cudagraph_utils, model_runner

    install(cudagraph_utils, model_runner)


def install(graphs: Any, runners: Any) -> None:
    """Patch vLLM's CudaGraphManager and GPUModelRunner for engine processes forked from now on."""
    global _report
    _report = mmap.mmap(-1, _REPORT_BYTES)
    manager, runner = graphs.CudaGraphManager, runners.GPUModelRunner
    if hasattr(manager, _PATCHED_MARK):
        return
    setattr(manager, _PATCHED_MARK, True)
    init_candidates, capture, capture_model = manager._init_candidates, manager.capture, runner.capture_model
    full = graphs.CUDAGraphMode.FULL

    def init_full_candidates(self: Any) -> None:
        if _report is None or not is_supported_manager(self):
            init_candidates(self)
            return
        config = self.compilation_config
        setattr(self, _DEFAULT_SIZES, (config.cudagraph_capture_sizes, config.max_cudagraph_capture_size))
        sizes = choose_capture_sizes(
            config.cudagraph_capture_sizes or (), self.vllm_config.scheduler_config.max_num_batched_tokens
        )
        config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = sizes, max(sizes, default=0)
        init_candidates(self)
        select_full_graphs(self, full)

    def capture_with_prompt(self: Any, create_forward_fn: Any, *args: Any, **kwargs: Any) -> Any:
        def create(desc: Any, warmup: bool) -> Any:
            mixed = hasattr(self, _DEFAULT_SIZES) and _is_mixed(desc, full)
            with _pretend_prompt(graphs.InputBatch) if mixed else nullcontext():
                return create_forward_fn(desc, warmup)

        return capture(self, create, *args, **kwargs)

    def restore_default_graphs(self: Any) -> None:
        """Go back to vLLM's own graphs. Of those only the piecewise ones are left to capture."""
        config = self.compilation_config
        config.cudagraph_capture_sizes, config.max_cudagraph_capture_size = getattr(self, _DEFAULT_SIZES)
        delattr(self, _DEFAULT_SIZES)
        self.graphs = {desc: graph for desc, graph in self.graphs.items() if not _is_mixed(desc, full)}
        self._candidates, self._capture_descs = {}, {}
        init_candidates(self)
        self._capture_descs = {mode: descs for mode, descs in self._capture_descs.items() if mode != full}

    def capture_and_check(self: Any) -> int:
        graph_bytes: int = capture_model(self)
        if _report is None or not hasattr(self.cudagraph_manager, _DEFAULT_SIZES):
            return graph_bytes
        sizes = [desc.num_tokens for desc in self.cudagraph_manager.graphs if _is_mixed(desc, full)]
        refusal = _check_graphs(self, graph_check.choose_sizes(sizes))
        _report[:] = (f"-{refusal}" if refusal else "+").encode()[:_REPORT_BYTES].ljust(_REPORT_BYTES, b"\0")
        if refusal:
            logging.getLogger("vllm.enginebay").warning("mixed_graphs: %s; %s", refusal, MIXED_GRAPHS.fallback)
            restore_default_graphs(self.cudagraph_manager)
            graph_bytes += capture_model(self)
        return graph_bytes

    manager._init_candidates = init_full_candidates
    manager.capture = capture_with_prompt
    runner.capture_model = capture_and_check


def _is_mixed(desc: Any, full: Any) -> bool:
    return desc.cg_mode == full and desc.uniform_token_count is None


def _check_graphs(runner: Any, sizes: Sequence[int]) -> str | None:
    """Return why the captured graphs must not be used, or None if their steps are right."""
    if not sizes:
        return None
    try:
        import torch

        with torch.inference_mode():
            difference = graph_check.compare_steps(runner, sizes)
        if difference is None:
            return "the KV cache is too small to check the captured graphs"
        logging.getLogger("vllm.enginebay").info(
            "mixed_graphs: replayed steps differ from eager ones by %.3g", difference
        )
        return graph_check.describe_difference(difference, torch.finfo(runner.dtype).eps)
    except Exception as error:
        return f"the captured graphs cannot be checked: {type(error).__name__}: {error}"


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

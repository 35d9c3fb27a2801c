"""Compare replayed mixed steps with the same steps run eagerly.

Runs once in vLLM's engine process, after the capture. A wrongly captured graph computes wrong results without any error.
The steps take vLLM's usual way: new requests, some of them with most of their prompt already in the KV cache, which the
attention kernel cannot tell from decoding ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

# Relative differences of a 30-layer model's logits: another order of summation 0.05 (bfloat16) or 0.008 (float16), no causal mask over 1.
_ROUNDING_STEPS = 32  # tolerance, in units of the last place of the model's precision
_MIN_TOLERANCE = 0.1  # quantized activations round more than 32 steps
_CONTEXTS = (5, 17, 31, 48)  # cached tokens of the decoding requests
_CHECKED_SIZES = 4  # two steps of each size: a fraction of a second


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A request of a checked step: its tokens, how many of them are cached, and its KV cache blocks by group."""

    token_ids: list[int]
    cached: int
    blocks: tuple[list[int], ...]


def measure_difference(recorded: Any, expected: Any) -> float:
    """Return the largest relative difference between two rows of logits; infinite if they are not finite at the same places."""
    import numpy as np

    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(recorded), finite):
        return float("inf")
    recorded, expected = (np.where(finite, logits, 0.0).astype(np.float64) for logits in (recorded, expected))
    spread = np.linalg.norm(expected - expected.mean(-1, keepdims=True), axis=-1)  # a constant changes no probability
    error = np.linalg.norm(recorded - expected, axis=-1)
    return float((error / np.maximum(spread, np.finfo(np.float64).tiny)).max())


def describe_difference(difference: float, epsilon: float) -> str | None:
    """Return why steps this different must not be used, or None if it is rounding. `epsilon`: of the model's precision."""
    tolerance = max(_MIN_TOLERANCE, _ROUNDING_STEPS * epsilon)
    if difference <= tolerance:
        return None
    return f"replayed steps differ from eager ones by {difference:.3g}, more than rounding explains ({tolerance:.3g})"


def choose_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the graph sizes to check, from the smallest that holds a prompt to the largest."""
    usable = sorted(size for size in set(sizes) if size > 1)
    last = len(usable) - 1
    return sorted({usable[last * part // (_CHECKED_SIZES - 1)] for part in range(_CHECKED_SIZES)}) if usable else []


def build_requests(
    tokens: int, max_requests: int, max_length: int, vocabulary: int, block_sizes: Sequence[int]
) -> list[CheckRequest]:
    """Return decoding requests and one prompt, of `tokens` scheduled tokens together if the context length allows it."""
    decoding = max(0, min(len(_CONTEXTS), max_requests - 1, tokens - 2))
    contexts = [min(context, max_length - 1) for context in _CONTEXTS[:decoding]]
    lengths = [*((context, context + 1) for context in contexts), (0, min(tokens - decoding, max_length))]
    block, token = itertools.count(1), itertools.count(1)  # block 0 is vLLM's null block
    return [
        CheckRequest(
            [next(token) * 7919 % vocabulary for _ in range(length)],
            cached,
            tuple([next(block) for _ in range(-(-length // size))] for size in block_sizes),
        )
        for cached, length in lengths
    ]


def compare_steps(runner: Any, sizes: Sequence[int]) -> float | None:
    """Return the largest difference between recorded and unrecorded steps, or None if no such step fits the KV cache."""
    manager = runner.cudagraph_manager
    differences = []
    for size in sizes:
        requests = build_requests(
            max(2, size - 1),  # one less, so that the step is padded
            runner.max_num_reqs,
            runner.max_model_len,
            runner.vocab_size,
            [group.kv_cache_spec.block_size for group in runner.kv_cache_config.kv_cache_groups],
        )
        if max(request.blocks[-1][-1] for request in requests) >= runner.kv_cache_config.num_blocks:
            continue
        with _run_unrecorded(manager):
            if cached := [request for request in requests if request.cached]:
                _run_step(runner, [replace(one, token_ids=one.token_ids[:-1], cached=0) for one in cached])
            expected = _run_step(runner, requests)
        differences.append(measure_difference(_run_step(runner, requests), expected))
    return max(differences, default=None)


@contextmanager
def _run_unrecorded(manager: Any) -> Iterator[None]:
    manager._graphs_captured = False
    try:
        yield
    finally:
        manager._graphs_captured = True


def _run_step(runner: Any, requests: Sequence[CheckRequest]) -> Any:
    """Run one step of new requests, and forget them. Return their logits, or their hidden states if the model has none."""
    from vllm import PoolingParams, SamplingParams
    from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput

    pooling = runner.is_pooling_model
    named = {f"_enginebay_{index}": request for index, request in enumerate(requests)}
    step, end = SchedulerOutput.make_empty(), SchedulerOutput.make_empty()
    step.scheduled_new_reqs = [
        NewRequestData(
            req_id=name,
            prompt_token_ids=request.token_ids,
            prefill_token_ids=request.token_ids,
            mm_features=[],
            sampling_params=None if pooling else SamplingParams(temperature=0.0, max_tokens=1),
            pooling_params=PoolingParams() if pooling else None,
            block_ids=request.blocks,
            num_computed_tokens=request.cached,
            lora_request=None,
        )
        for name, request in named.items()
    ]
    step.num_scheduled_tokens = {name: len(request.token_ids) - request.cached for name, request in named.items()}
    step.total_num_scheduled_tokens = sum(step.num_scheduled_tokens.values())
    step.num_common_prefix_blocks = [0] * len(requests[0].blocks)
    end.finished_req_ids = set(named)
    runner.kv_connector.set_disabled(True)
    try:
        runner.execute_model(step)
        state = runner.execute_model_state
        hidden = state.hidden_states[state.input_batch.logits_indices]
        return (hidden if pooling else runner.model.compute_logits(hidden)).float().cpu().numpy()
    finally:
        runner.execute_model_state = None
        try:
            runner.execute_model(end)
        finally:
            runner.kv_connector.set_disabled(False)

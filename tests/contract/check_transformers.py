"""Checks of the transformers engine that need torch and run inside its environment:

    python check_transformers.py MODEL_DIR                         all checks, one process
    torchrun --nproc-per-node 2 check_transformers.py MODEL_DIR    greedy tokens with tensor parallel 2, as JSON

MODEL_DIR is the output of make_tiny_llama.py. ENGINEBAY_CHECK_DEVICE selects the device; default: cpu. Prints `ok NAME`
for each check, or fails with a traceback. The repository and `src` must be on PYTHONPATH.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from enginebay.contract import FinishReason, GenerateRequest, Guided, Load, Sampling
from enginebay.engines.transformers.continuous import kv_cache
from enginebay.engines.transformers.continuous.scheduler import KVCacheBudget
from enginebay.engines.transformers.decoding import token_sampler
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from enginebay.engines.transformers.engine import TransformersEngine
from enginebay.errors import InvalidRequest, OutOfMemory
from tests.contract.checked_engine import (
    DEVICE,
    WAIT_S,
    CheckedEngine,
    FunctionRecorder,
    assert_same,
    generate_greedy,
    get_runner,
    make_mixed_requests,
    make_prompts,
    make_request,
    open_recording_engine,
)


def check_same_as_generate(path: str) -> None:
    expected = generate_greedy(path)
    for settings in (
        {},
        {"attn_implementation": "eager"},
        {"batching__strategy": "static"},
        {"batching__strategy": "sorted_dynamic"},
        {"use_cache": False},
        {"assisted_generation__num_tokens": 3},
        {"assisted_generation__num_tokens": 3, "assisted_generation__model": path},
    ):
        checked = CheckedEngine(path, **settings)
        outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
        assert [choices[0] for choices in outputs] == expected, settings
        checked.engine.close()


def check_little_memory_changes_nothing(path: str) -> None:
    """Chunked prompts, few sequences and preemption give the same tokens, seeded ones too."""
    checked = CheckedEngine(path)
    before = checked.run(make_mixed_requests())
    scheduler = checked.engine._continuous_batcher._scheduler  # type: ignore[union-attr]
    scheduler.limits = dataclasses.replace(
        scheduler.limits, max_sequences=5, max_step_tokens=64, max_cached_tokens=1100
    )
    assert_same(path, checked.run(make_mixed_requests()), before)
    checked.engine.close()


class FailingRecorder(FunctionRecorder):
    """Fails at the third capture."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.captured == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nand so on")
        return super().capture(work)


class OutOfMemoryRecorder(FunctionRecorder):
    """Runs out of memory at its first captures."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return super().capture(work)


class NoopRecorder(FunctionRecorder):
    """Replays nothing."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def check_cuda_graphs_change_nothing(path: str) -> None:
    """Sequences join, leave, fork, outgrow their bucket and are preempted; buckets grow and shrink."""
    expected = generate_greedy(path)
    for settings in ({}, {"attn_implementation": "eager"}):
        checked = open_recording_engine(path, recorder := FunctionRecorder(), **settings)
        outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
        assert [choices[0] for choices in outputs] == expected, settings
        assert recorder.replayed > recorder.captured > 0, (recorder.replayed, recorder.captured)
        assert checked.engine.facts().effective["cuda_graphs"] == "on"
        checked.engine.close()
    plain = CheckedEngine(path)
    before = plain.run(make_mixed_requests())
    plain.engine.close()
    with mock.patch("enginebay.engines.transformers.continuous.scheduler._FIRST_ROWS", 1):
        checked = open_recording_engine(path, recorder := FunctionRecorder())
        scheduler, cache = checked.engine._continuous_batcher._scheduler, get_runner(checked).cache  # type: ignore[union-attr]
        cache.budget = KVCacheBudget(20_000, 32)
        assert_same(path, checked.run(make_mixed_requests()), before)
        captured = recorder.captured
        get_runner(checked).prepare_to_sleep()
        assert not cache._buckets
        scheduler.limits = dataclasses.replace(
            scheduler.limits, max_sequences=5, max_step_tokens=64, max_cached_tokens=1100
        )
        cache.budget = KVCacheBudget(1100, 32)
        trimmed, resize = [], kv_cache.CacheBucket.resize

        def watch_resize(bucket: Any, rows: int) -> None:
            trimmed.append(rows < bucket.allocated_rows)
            resize(bucket, rows)

        with mock.patch.object(kv_cache.CacheBucket, "resize", watch_resize):
            assert_same(path, checked.run(make_mixed_requests()), before)
        assert any(trimmed)
        assert recorder.captured > captured
        checked.engine.close()


def check_failed_captures_disable_graphs(path: str) -> None:
    expected = generate_greedy(path)
    for recorder, reason in (
        (FailingRecorder(), "could not be captured (operation not permitted"),
        (NoopRecorder(), "different results"),
        (OutOfMemoryRecorder(3), "could not be captured (CUDA out of memory"),
    ):
        checked = open_recording_engine(path, recorder)
        for _ in range(2):
            outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
            assert [choices[0] for choices in outputs] == expected, recorder
        assert reason in checked.engine.facts().effective["cuda_graphs"], checked.engine.facts().effective
        checked.engine.close()


def check_cuda_graphs_are_replayed(path: str) -> None:
    """Real CUDA graphs: runs on CUDA only."""
    checked = CheckedEngine(path)
    for _ in range(2):
        checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert checked.engine.facts().effective["cuda_graphs"] == "on", checked.engine.facts().effective
    assert checked.engine.facts().effective["decode_attention"] == "own", checked.engine.facts().effective
    assert get_runner(checked)._graphs.replays > 0
    checked.engine.close()


def check_graphs_survive_out_of_memory(path: str) -> None:
    checked = open_recording_engine(path, recorder := OutOfMemoryRecorder(2))
    outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert [choices[0] for choices in outputs] == generate_greedy(path)
    assert checked.engine.facts().effective["cuda_graphs"] == "on" and recorder.replayed > 0
    checked.engine.close()


def limit_allocations(tensors: int) -> Callable[[Any, Any], Any]:
    """Return a replacement of `CacheBucket._resize_tensor` that runs out of memory after this many tensors."""
    resize, calls = kv_cache.CacheBucket._resize_tensor, itertools.count()

    def resize_or_fail(bucket: Any, old: Any) -> Any:
        if next(calls) >= tensors:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return resize(bucket, old)

    return resize_or_fail


def check_kv_cache_survives_out_of_memory(path: str) -> None:
    """Memory runs out while a bucket grows, in some layers: these requests fail, the next ones succeed."""
    expected, requests = (
        generate_greedy(path),
        [make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)],
    )
    with mock.patch("enginebay.engines.transformers.continuous.scheduler._FIRST_ROWS", 1):
        checked = open_recording_engine(path, FunctionRecorder())
        get_runner(checked).cache.budget = KVCacheBudget(8192, 32)
        for tensors in range(4):
            get_runner(checked).prepare_to_sleep()
            checked.run([make_request([5, 6, 7], temperature=0, max_tokens=5)])  # leaves a bucket that must grow
            with mock.patch.object(kv_cache.CacheBucket, "_resize_tensor", limit_allocations(tensors)):
                errors = checked.run_failing(requests)
            assert errors and all(isinstance(error, OutOfMemory) for error in errors), errors
            assert [choices[0] for choices in checked.run(requests)] == expected
        checked.engine.close()


def check_a_failed_search_loses_no_finished_output(path: str) -> None:
    """Requests that finish during a failing generate() still receive their output."""
    checked = open_recording_engine(path, FunctionRecorder())
    engine, continuous = checked.engine, checked.engine._continuous_batcher

    def fail_generate(*_: Any) -> Any:
        while not continuous.get_request_numbers():  # type: ignore[union-attr]
            engine._on_generate_step()
        while continuous.get_request_numbers():  # type: ignore[union-attr]
            engine._on_generate_step()
        raise RuntimeError("something broke")

    engine._components.generator.run = fail_generate  # type: ignore[method-assign, union-attr]
    engine.submit(900, make_request([5, 6, 7], num_beams=2, max_tokens=5))
    engine.submit(901, make_request([5, 6, 7], temperature=0, max_tokens=5))
    with checked.sink.changed:
        assert checked.sink.changed.wait_for(lambda: 900 in checked.sink.errors and checked.sink.ended, WAIT_S)
    assert checked.sink.ended == {(901, 0): FinishReason.LENGTH} and set(checked.sink.errors) == {900}
    engine.close()


def check_a_failed_search_fails_alone(path: str) -> None:
    """Parameters that leave too few tokens to draw from are the client's error, and nobody else's."""
    checked = CheckedEngine(path)
    engine, sink = checked.engine, checked.sink
    engine.submit(900, make_request([5, 6, 7], temperature=0, max_tokens=200))
    drawn = {"num_beams": 4, "do_sample": True, "max_tokens": 5}
    engine.submit(901, make_request([5, 6, 7], guided=Guided(choice=("a",)), **drawn))
    engine.submit(902, make_request([5, 6, 7], temperature=1e-300, **drawn))
    with sink.changed:
        assert sink.changed.wait_for(lambda: (900, 0) in sink.ended or 900 in sink.errors, WAIT_S)
        assert sink.changed.wait_for(lambda: all(n in sink.errors or (n, 0) in sink.ended for n in (901, 902)), WAIT_S)
    assert len(sink.tokens[900, 0]) == 200
    assert all(isinstance(error, InvalidRequest) for error in sink.errors.values()), sink.errors
    engine.close()


def check_a_failed_step_loses_no_finished_output(path: str) -> None:
    """Output is emitted while the next step runs, even if that step fails."""
    checked = open_recording_engine(path, FunctionRecorder())
    runner, get_running = get_runner(checked), checked.engine._continuous_batcher.get_running_numbers  # type: ignore[union-attr]
    run = runner.run
    seen: set[int] = set()

    def fail_step(step: Any) -> Any:
        seen.update(get_running())
        if get_running() == {901} and 900 in seen:  # the step after the last of 900
            raise RuntimeError("something broke")
        return run(step)

    runner.run = fail_step
    for number, tokens in ((900, 5), (901, 50)):
        checked.engine.submit(number, make_request([5, 6, 7], temperature=0, max_tokens=tokens))
    with checked.sink.changed:
        assert checked.sink.changed.wait_for(lambda: 901 in checked.sink.errors, WAIT_S)
    assert checked.sink.ended == {(900, 0): FinishReason.LENGTH} and set(checked.sink.errors) == {901}
    checked.engine.close()


def check_samples_follow_the_probabilities(path: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(12) * 1.5
    plain = logits.softmax(-1)
    best = plain.argsort(descending=True)
    nucleus = plain.clone()
    nucleus[best[(plain[best].cumsum(0) - plain[best]) >= 0.8]] = 0
    top = plain.clone()
    top[best[5:]] = 0
    likely = plain.clone()
    likely[plain < 0.1 * plain.max()] = 0
    cases: list[tuple[dict[str, Any], Any]] = [
        ({}, plain),
        ({"temperature": 0.5}, (logits / 0.5).softmax(-1)),
        ({"top_p": 0.8}, nucleus / nucleus.sum()),
        ({"top_k": 5}, top / top.sum()),
        ({"min_p": 0.1}, likely / likely.sum()),
    ]
    for candidates in (1024, 4):  # with 4, most samples fall outside the candidates
        for settings, expected in cases:
            frequencies = torch.zeros(12)
            rows = [_make_row(seed, **settings) for seed in range(8000)]
            random_bits = [row.derive_random_bits(0) for row in rows]
            scores = logits.expand(len(rows), 12) / settings.get("temperature", 1.0)
            for token in token_sampler._sample_scores(scores, rows, random_bits, candidates).tolist():
                frequencies[token] += 1 / len(rows)
            assert float((frequencies - expected).abs().max()) < 0.02, (settings, candidates, frequencies, expected)


def check_a_temperature_near_zero_is_greedy(path: str) -> None:
    checked = CheckedEngine(path)
    greedy, *cold = checked.run(
        [make_request([5, 6, 7], temperature=t, max_tokens=20) for t in (0, 1e-300, 1e-45, 1e-9)]
    )
    assert cold == [greedy] * 3, (greedy, cold)
    checked.engine.close()


def check_a_seed_survives_rounding(path: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 49152)
    near = logits * (1 + 1e-6 * torch.randn_like(logits))
    rows = [_make_row(seed) for seed in range(64)]
    first, second = (
        [sampled.token for sampled in token_sampler.sample_tokens(x, rows, [[]] * 64)] for x in (logits, near)
    )
    assert first == second


def check_a_seed_does_not_depend_on_the_batch(path: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(32, 49152, device=DEVICE)  # so flat that few samples are top candidates
    rows = [_make_row(seed, **({"top_k": 40} if seed % 4 == 0 else {})) for seed in range(32)]
    for full_vocabulary in (False, True):  # as on a CPU, as on a GPU
        with mock.patch.object(token_sampler, "_should_race_full_vocabulary", lambda _, value=full_vocabulary: value):
            alone = [token_sampler.sample_tokens(logits[i : i + 1], [row], [[]])[0].token for i, row in enumerate(rows)]
            together = [sampled.token for sampled in token_sampler.sample_tokens(logits, rows, [[]] * 32)]
        assert together == alone, full_vocabulary


def _make_row(seed: int, **settings: Any) -> SequenceState:
    class EmptyTokenizer:
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            return ""

    request = GenerateRequest(token_ids=(1,), sampling=Sampling(**settings))
    return SequenceState(0, 0, 0, request, seed, frozenset(), 4096, EmptyTokenizer())


def run_parallel(path: str) -> None:
    """Under torchrun: print the greedy tokens of the sharded model, and run a beam search."""
    size = int(os.environ["WORLD_SIZE"])
    settings = {"sharding.strategy": "tensor_parallel", "sharding.num_shards": size}
    if int(os.environ["RANK"]) > 0:
        TransformersEngine(Load("transformers", "", "tiny", path, settings)).follow()
        return
    checked = CheckedEngine(path, **settings)
    outputs = checked.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    checked.run([make_request([5, 6, 7], num_beams=3, max_tokens=8, logprobs=1)])
    print(json.dumps([choices[0] for choices in outputs]))
    checked.engine.close()


CHECKS = (
    check_same_as_generate,
    check_little_memory_changes_nothing,
    check_cuda_graphs_change_nothing,
    check_failed_captures_disable_graphs,
    check_graphs_survive_out_of_memory,
    check_kv_cache_survives_out_of_memory,
    check_a_failed_step_loses_no_finished_output,
    check_a_failed_search_loses_no_finished_output,
    check_a_failed_search_fails_alone,
    check_samples_follow_the_probabilities,
    check_a_temperature_near_zero_is_greedy,
    check_a_seed_survives_rounding,
    check_a_seed_does_not_depend_on_the_batch,
    *((check_cuda_graphs_are_replayed,) if DEVICE.startswith("cuda") else ()),
)

if __name__ == "__main__":
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        run_parallel(sys.argv[1])
    elif "--greedy" in sys.argv:
        print(json.dumps(generate_greedy(sys.argv[1])))
    else:
        for check in CHECKS:
            check(sys.argv[1])
            print(f"ok {check.__name__}", flush=True)

"""Checks of the transformers engine that need torch, so they run inside its own environment:

    python check_transformers.py MODEL_DIR                 the whole list, one process
    torchrun --nproc-per-node 2 check_transformers.py MODEL_DIR    greedy tokens of tensor parallel 2, as JSON

MODEL_DIR is what make_tiny_llama.py wrote. ENGINEBAY_CHECK_DEVICE is where it runs, as cuda; unset: cpu. Exits with 0 and
prints `ok NAME` for each check, or fails with a traceback.
`src` must be on PYTHONPATH.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

from enginebay.contract import FinishReason, GenerateRequest, Load, Sampling, TokenLogprobs
from enginebay.engines.transformers import engine_builder
from enginebay.engines.transformers.continuous import kv_cache, kv_cache_budget
from enginebay.engines.transformers.decoding import token_sampler as drawing
from enginebay.engines.transformers.decoding.sequence_state import SequenceState
from enginebay.engines.transformers.decoding.sequence_state import derive_random_bits as row_luck
from enginebay.engines.transformers.engine import TransformersEngine
from enginebay.errors import EnginebayError, OutOfMemory

_WAIT_S = 120
_EVEN = 0.01  # logits, which spread over several: what float32 rounds is far less, and another token is far more
_DEVICE = os.environ.get("ENGINEBAY_CHECK_DEVICE", "cpu")


class Recorder:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.ended: dict[tuple[int, int], FinishReason] = {}
        self.errors: dict[int, EnginebayError] = {}
        self.changed = threading.Condition()

    def accepted(self, number: int, prompt_tokens: int, cached_tokens: int = 0) -> None: ...

    def token(
        self, number: int, text: str, token_ids: Sequence[int], choice: int = 0, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        self.tokens[number, choice] += token_ids

    def finish(self, number: int, reason: FinishReason, choice: int = 0, stop_reason: str | int | None = None) -> None:
        self.ended[number, choice] = reason

    def error(self, number: int, error: EnginebayError) -> None:
        self.errors[number] = error

    def flush(self) -> None:
        with self.changed:
            self.changed.notify_all()


class CheckedEngine:
    """An engine and its recorder."""

    def __init__(self, path: str, **settings: Any) -> None:
        usual = {"threads": 1, "device": _DEVICE, "dtype": "float32"}
        named = {name.replace("__", "."): value for name, value in {**usual, **settings}.items()}
        self.engine = TransformersEngine(Load("transformers", "", "tiny", path, named))
        self.sink = Recorder()
        self.engine.start(self.sink)
        self._next = 0

    def run(self, requests: Sequence[GenerateRequest]) -> list[list[list[int]]]:
        """Tokens of every choice of every request, all submitted at once."""
        numbers = self._submit(requests)
        wanted = [(n, c) for n, one in zip(numbers, requests, strict=True) for c in range(one.sampling.n)]
        with self.sink.changed:
            done = self.sink.changed.wait_for(
                lambda: self.sink.errors or all(one in self.sink.ended for one in wanted), _WAIT_S
            )
        assert done and not self.sink.errors, self.sink.errors or "it took too long"
        return [
            [self.sink.tokens[n, c] for c in range(one.sampling.n)] for n, one in zip(numbers, requests, strict=True)
        ]

    def run_failing(self, requests: Sequence[GenerateRequest]) -> list[EnginebayError]:
        """Errors of those that fail, once all have failed or ended."""
        numbers = self._submit(requests)
        with self.sink.changed:
            assert self.sink.changed.wait_for(
                lambda: all(n in self.sink.errors or (n, 0) in self.sink.ended for n in numbers), _WAIT_S
            )
        errors, self.sink.errors = self.sink.errors, {}
        return list(errors.values())

    def _submit(self, requests: Sequence[GenerateRequest]) -> list[int]:
        numbers = list(range(self._next, self._next + len(requests)))
        self._next += len(requests)
        for number, request in zip(numbers, requests, strict=True):
            self.engine.submit(number, request)
        return numbers


def make_request(prompt: Sequence[int], **sampling: Any) -> GenerateRequest:
    return GenerateRequest(token_ids=tuple(prompt), sampling=Sampling(ignore_eos=True, **sampling))


def make_prompts(count: int) -> list[list[int]]:
    chance = random.Random(4)
    return [[chance.randrange(10, 40_000) for _ in range(chance.choice([1, 7, 90, 250, 300]))] for _ in range(count)]


def load_plain_model(path: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(_DEVICE)


def generate_greedy(path: str) -> list[list[int]]:
    """What the library's own generate() answers, one prompt at a time."""
    model = load_plain_model(path)
    model.generation_config.eos_token_id = None
    found = []
    for prompt in make_prompts(12):
        ids = torch.tensor([prompt], device=_DEVICE)
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        found.append(made[0, len(prompt) :].tolist())
    return found


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
        bench = CheckedEngine(path, **settings)
        found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
        assert [choices[0] for choices in found] == expected, settings
        bench.engine.close()


def check_little_memory_changes_nothing(path: str) -> None:
    """Prompts in pieces, few rows, rows that lose their cache: the same tokens, seeded ones too."""
    bench = CheckedEngine(path)
    before = bench.run(make_mixed_requests())
    schedule = bench.engine._continuous_batcher._scheduler  # type: ignore[union-attr]
    schedule.limits = dataclasses.replace(schedule.limits, rows=5, step_tokens=64, cached_tokens=1100)
    assert_same(path, bench.run(make_mixed_requests()), before)
    bench.engine.close()


def assert_same(path: str, found: list[list[list[int]]], expected: list[list[list[int]]]) -> None:
    """The same answers to `mixed_requests`.

    How a GPU rounds depends on what is computed together: there, a row may take another way where two tokens are even.
    """
    if _DEVICE == "cpu":
        assert found == expected
        return
    model = load_plain_model(path)
    for request, ours, theirs in zip(make_mixed_requests(), found, expected, strict=True):
        for choice, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
            assert at is not None or one == other, "an answer ended early"
            if at is not None:
                gap = measure_lead(model, request, choice, one[:at], one[at], other[at])
                assert gap < _EVEN, f"token {at} of choice {choice} is another, and the best leads by {gap}"


def measure_lead(model: Any, request: GenerateRequest, choice: int, output: list[int], *tokens: int) -> float:
    """How far the worst of these tokens is behind the one that is drawn next, in logits."""
    with torch.no_grad():
        logits = model(torch.tensor([[*(request.token_ids or ()), *output]], device=_DEVICE)).logits[0, -1].double()
    if not request.sampling.greedy:  # a race in the logarithm: temperature is 1 here
        luck = torch.tensor(row_luck(request.sampling.seed or 0, choice, len(output)), device=_DEVICE)
        logits -= (-drawing.hash_to_uniform(torch.arange(logits.shape[-1], device=_DEVICE), luck).log()).log()
    return float(logits.max() - logits[list(tokens)].min())


class FunctionRecorder:
    """Records a step as the function that computes it: all of a CUDA graph's bookkeeping, on any device."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def warm_up(self, work: Callable[[], None]) -> None:
        work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def reset(self) -> None: ...


class FailingRecorder(FunctionRecorder):
    """Fails at the third recording."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        if self.recorded == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nand so on")
        return super().capture(work)


class OutOfMemoryRecorder(FunctionRecorder):
    """Has no memory for its first recordings."""

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


def open_recording_engine(path: str, recorder: FunctionRecorder, **settings: Any) -> CheckedEngine:
    with mock.patch.object(engine_builder, "choose_recorder", lambda *_: (recorder, None)):
        bench = CheckedEngine(path, **settings)
    get_runner(bench).runs_ahead = True
    return bench


def get_runner(bench: CheckedEngine) -> Any:
    return bench.engine._components.runner


def make_mixed_requests() -> list[GenerateRequest]:
    return [
        make_request(
            prompt,
            seed=i,
            temperature=float(i % 2),
            max_tokens=300 if i % 3 else 20,
            n=1 + (i % 4 == 0),
            stop=("zz",) * (i % 5 == 0),
        )
        for i, prompt in enumerate(make_prompts(16))
    ]


def check_recorded_steps_change_nothing(path: str) -> None:
    """Rows that join, leave, fork, outgrow their shelf and lose their cache; shelves that grow, and that are trimmed."""
    expected = generate_greedy(path)
    for settings in ({}, {"attn_implementation": "eager"}):
        bench = open_recording_engine(path, recorder := FunctionRecorder(), **settings)
        found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
        assert [choices[0] for choices in found] == expected, settings
        assert recorder.replayed > recorder.recorded > 0, (recorder.replayed, recorder.recorded)
        assert bench.engine.facts().effective["cuda_graphs"] == "on"
        bench.engine.close()
    plain = CheckedEngine(path)
    before = plain.run(make_mixed_requests())
    plain.engine.close()
    with mock.patch.object(kv_cache_budget, "_FIRST_ROWS", 1):
        bench = open_recording_engine(path, recorder := FunctionRecorder())
        schedule, cache = bench.engine._continuous_batcher._scheduler, get_runner(bench).cache  # type: ignore[union-attr]
        cache.room = kv_cache_budget.KVCacheBudget(20_000, 32)
        assert_same(path, bench.run(make_mixed_requests()), before)
        recorded = recorder.recorded
        get_runner(bench).rest()
        assert not cache._shelves
        schedule.limits = dataclasses.replace(schedule.limits, rows=5, step_tokens=64, cached_tokens=1100)
        cache.room = kv_cache_budget.KVCacheBudget(1100, 32)
        trimmed, resize = [], kv_cache.CacheBucket.resize

        def watched(shelf: Any, rows: int) -> None:
            trimmed.append(rows < shelf.allocated)
            resize(shelf, rows)

        with mock.patch.object(kv_cache.CacheBucket, "resize", watched):
            assert_same(path, bench.run(make_mixed_requests()), before)
        assert any(trimmed)
        assert recorder.recorded > recorded
        bench.engine.close()


def check_recording_that_fails_is_given_up(path: str) -> None:
    expected = generate_greedy(path)
    for recorder, reason in (
        (FailingRecorder(), "could not be recorded (operation not permitted"),
        (NoopRecorder(), "other results"),
        (OutOfMemoryRecorder(3), "could not be recorded (CUDA out of memory"),
    ):
        bench = open_recording_engine(path, recorder)
        for _ in range(2):
            found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
            assert [choices[0] for choices in found] == expected, recorder
        assert reason in bench.engine.facts().effective["cuda_graphs"], bench.engine.facts().effective
        bench.engine.close()


def check_cuda_graphs_are_replayed(path: str) -> None:
    """Real ones, so only where there are any."""
    bench = CheckedEngine(path)
    for _ in range(2):
        bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert bench.engine.facts().effective["cuda_graphs"] == "on", bench.engine.facts().effective
    assert bench.engine.facts().effective["decode_attention"] == "own", bench.engine.facts().effective
    assert get_runner(bench)._graphs.replays > 0
    bench.engine.close()


def check_recording_outlasts_a_shortage(path: str) -> None:
    bench = open_recording_engine(path, recorder := OutOfMemoryRecorder(2))
    found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    assert [choices[0] for choices in found] == generate_greedy(path)
    assert bench.engine.facts().effective["cuda_graphs"] == "on" and recorder.replayed > 0
    bench.engine.close()


def limit_allocations(tensors: int) -> Callable[[Any, Any], Any]:
    """In place of `Shelf._resized`: there is memory for so many tensors more."""
    resized, asked = kv_cache.CacheBucket._resize_tensor, itertools.count()

    def limited(shelf: Any, old: Any) -> Any:
        if next(asked) >= tensors:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return resized(shelf, old)

    return limited


def check_the_cache_outlasts_a_shortage(path: str) -> None:
    """It comes while a shelf grows, some layers before others: those requests fail, the next are answered as ever."""
    expected, requests = (
        generate_greedy(path),
        [make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)],
    )
    with mock.patch.object(kv_cache_budget, "_FIRST_ROWS", 1):
        bench = open_recording_engine(path, FunctionRecorder())
        get_runner(bench).cache.room = kv_cache_budget.KVCacheBudget(8192, 32)
        for tensors in range(4):
            get_runner(bench).rest()
            bench.run([make_request([5, 6, 7], temperature=0, max_tokens=5)])  # leaves a shelf that must grow
            with mock.patch.object(kv_cache.CacheBucket, "_resize_tensor", limit_allocations(tensors)):
                errors = bench.run_failing(requests)
            assert errors and all(isinstance(error, OutOfMemory) for error in errors), errors
            assert [choices[0] for choices in bench.run(requests)] == expected
        bench.engine.close()


def check_a_failed_search_loses_no_finished_answer(path: str) -> None:
    """Others go on inside generate(): who ended there is told, although nothing comes after."""
    bench = open_recording_engine(path, FunctionRecorder())
    engine, continuous = bench.engine, bench.engine._continuous_batcher

    def failing(*_: Any) -> Any:
        while not continuous.get_request_numbers():  # type: ignore[union-attr]
            engine._on_generate_step()
        while continuous.get_request_numbers():  # type: ignore[union-attr]
            engine._on_generate_step()
        raise RuntimeError("something broke")

    engine._components.generator.run = failing  # type: ignore[method-assign, union-attr]
    engine.submit(900, make_request([5, 6, 7], num_beams=2, max_tokens=5))
    engine.submit(901, make_request([5, 6, 7], temperature=0, max_tokens=5))
    with bench.sink.changed:
        assert bench.sink.changed.wait_for(lambda: 900 in bench.sink.errors and bench.sink.ended, _WAIT_S)
    assert bench.sink.ended == {(901, 0): FinishReason.LENGTH} and set(bench.sink.errors) == {900}
    engine.close()


def check_a_failed_step_loses_no_finished_answer(path: str) -> None:
    """Texts are handed out while the next step runs: also when that one fails."""
    bench = open_recording_engine(path, FunctionRecorder())
    runner, computing = get_runner(bench), bench.engine._continuous_batcher.get_running_numbers  # type: ignore[union-attr]
    run = runner.run
    seen: set[int] = set()

    def failing(step: Any) -> Any:
        seen.update(computing())
        if computing() == {901} and 900 in seen:  # the step after the last of 900
            raise RuntimeError("something broke")
        return run(step)

    runner.run = failing
    for number, tokens in ((900, 5), (901, 50)):
        bench.engine.submit(number, make_request([5, 6, 7], temperature=0, max_tokens=tokens))
    with bench.sink.changed:
        assert bench.sink.changed.wait_for(lambda: 901 in bench.sink.errors, _WAIT_S)
    assert bench.sink.ended == {(900, 0): FinishReason.LENGTH} and set(bench.sink.errors) == {901}
    bench.engine.close()


def check_draws_follow_the_probabilities(path: str) -> None:
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
    for candidates in (1024, 4):  # with 4, most draws need more than the candidates
        for settings, expected in cases:
            found = torch.zeros(12)
            rows = [_row(seed, **settings) for seed in range(8000)]
            lucks = [row.derive_random_bits(0) for row in rows]
            scores = logits.expand(len(rows), 12) / settings.get("temperature", 1.0)
            for token in drawing._sample_scores(scores, rows, lucks, candidates).tolist():
                found[token] += 1 / len(rows)
            assert float((found - expected).abs().max()) < 0.02, (settings, candidates, found, expected)


def check_a_seed_survives_rounding(path: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 49152)
    near = logits * (1 + 1e-6 * torch.randn_like(logits))
    rows = [_row(seed) for seed in range(64)]
    first, second = ([one.token for one in drawing.sample_tokens(x, rows, [[]] * 64)] for x in (logits, near))
    assert first == second


def check_a_seed_does_not_depend_on_its_neighbours(path: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(32, 49152, device=_DEVICE)  # so flat that few draws are among the best
    rows = [_row(seed, **({"top_k": 40} if seed % 4 == 0 else {})) for seed in range(32)]
    for whole in (False, True):  # as on a CPU, as on a GPU
        with mock.patch.object(drawing, "_should_race_full_vocabulary", lambda _, whole=whole: whole):
            alone = [drawing.sample_tokens(logits[i : i + 1], [row], [[]])[0].token for i, row in enumerate(rows)]
            together = [one.token for one in drawing.sample_tokens(logits, rows, [[]] * 32)]
        assert together == alone, whole


def _row(seed: int, **settings: Any) -> SequenceState:
    class Silent:
        def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            return ""

    request = GenerateRequest(token_ids=(1,), sampling=Sampling(**settings))
    return SequenceState(0, 0, 0, request, seed, frozenset(), 4096, Silent())


def parallel(path: str) -> None:
    """Under torchrun: greedy and beam tokens of the split model."""
    size = int(os.environ["WORLD_SIZE"])
    settings = {"sharding.strategy": "tensor_parallel", "sharding.num_shards": size}
    if int(os.environ["RANK"]) > 0:
        TransformersEngine(Load("transformers", "", "tiny", path, settings)).follow()
        return
    bench = CheckedEngine(path, **settings)
    found = bench.run([make_request(prompt, temperature=0, max_tokens=40) for prompt in make_prompts(12)])
    bench.run([make_request([5, 6, 7], num_beams=3, max_tokens=8, logprobs=1)])
    print(json.dumps([choices[0] for choices in found]))
    bench.engine.close()


CHECKS = (
    check_same_as_generate,
    check_little_memory_changes_nothing,
    check_recorded_steps_change_nothing,
    check_recording_that_fails_is_given_up,
    check_recording_outlasts_a_shortage,
    check_the_cache_outlasts_a_shortage,
    check_a_failed_step_loses_no_finished_answer,
    check_a_failed_search_loses_no_finished_answer,
    check_draws_follow_the_probabilities,
    check_a_seed_survives_rounding,
    check_a_seed_does_not_depend_on_its_neighbours,
    *((check_cuda_graphs_are_replayed,) if _DEVICE.startswith("cuda") else ()),
)

if __name__ == "__main__":
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parallel(sys.argv[1])
    elif "--greedy" in sys.argv:
        print(json.dumps(generate_greedy(sys.argv[1])))
    else:
        for check in CHECKS:
            check(sys.argv[1])
            print(f"ok {check.__name__}", flush=True)

"""Engine statistics, as far as they can be tested without the libraries."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from enginebay.contract import FinishReason, GenerateRequest, Load, Sampling, Stats, SupportsStats
from enginebay.engines.fake.engine import FakeEngine
from enginebay.engines.llamacpp.call_queue import ActiveRequest, CallQueue, LibraryCall
from enginebay.engines.llamacpp.choice_output import ChoiceOutput
from enginebay.engines.llamacpp.request_body import LlamaBodyBuilder
from enginebay.engines.transformers.continuous.scheduler import BatchLimits, StepScheduler
from enginebay.engines.vllm.patches.scheduler_stats import SchedulerStatsReader
from tests.unit.engines.transformers.fake_sequences import make_sequence


class CountingSink:
    """A sink that counts flushes."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


# fake


def test_the_fake_engine_counts_its_steps_and_who_waits() -> None:
    engine = FakeEngine(Load("fake", "", "toy", "", {"max_batch": 2, "step_s": 0.005}))
    sink = CountingSink()
    assert isinstance(engine, SupportsStats) and engine.stats() == Stats(0, 0.0, 0)
    for number in range(5):
        engine.submit(number, GenerateRequest(token_ids=(1,), sampling=Sampling(ignore_eos=True, max_tokens=500)))
    assert engine.stats() == Stats(0, 0.0, 5)
    engine.start(sink)  # type: ignore[arg-type]
    _until(lambda: engine.stats().waiting == 3)
    engine.cancel(4)
    assert engine.stats().waiting == 2
    _until(lambda: (engine.stats().steps or 0) > 5)
    engine.close()
    _until(lambda: engine.stats().steps == sink.flushes)  # within the step that was on its way


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# llamacpp


def _call(number: int, prompt: int, choices: int = 1) -> LibraryCall:
    outputs = [ChoiceOutput(choice, Sampling(), 50, lambda *_: []) for choice in range(choices)]
    request = ActiveRequest(number, LlamaBodyBuilder(GenerateRequest(token_ids=(1,) * prompt), 512, {}))
    return LibraryCall(request, outputs, choices * (prompt + 50), prompt)


def test_a_prompt_counts_as_far_as_it_is_computed_and_outputs_as_they_grow() -> None:
    queue = CallQueue(free_slots=4, free_tokens=1000)
    call = _call(1, prompt=100)
    queue.put(call)
    assert queue.count_cached_tokens(False) == 0
    queue.admit()
    assert queue.count_cached_tokens(False) == 0
    call.prefilled_tokens = 64
    assert queue.count_cached_tokens(False) == 64
    call.outputs[0].count = 3
    assert queue.count_cached_tokens(False) == 103
    queue.release(call)
    assert queue.count_cached_tokens(False) == 0


def test_choices_share_a_prompt_only_in_a_shared_cache() -> None:
    queue = CallQueue(free_slots=4, free_tokens=1000)
    call = _call(1, prompt=100, choices=2)
    queue.put(call)
    queue.admit()
    call.outputs[0].count, call.outputs[1].count = 5, 4
    assert (queue.count_cached_tokens(True), queue.count_cached_tokens(False)) == (109, 209)
    call.outputs[0].finish_reason = FinishReason.STOP
    assert (queue.count_cached_tokens(True), queue.count_cached_tokens(False)) == (104, 104)


def test_a_request_waits_until_anything_of_it_runs() -> None:
    queue = CallQueue(free_slots=2, free_tokens=10_000)
    for call in (_call(1, 10), _call(1, 10), _call(1, 10), _call(2, 10), _call(2, 10), _call(3, 10)):
        queue.put(call)
    queue.admit()
    assert queue.count_waiting_requests() == 2


# transformers


def test_kv_cache_usage_counts_allocated_blocks() -> None:
    plan = StepScheduler(BatchLimits(8, 64, 1024, 4096))
    assert plan.compute_kv_cache_usage() == 0
    for key in (1, 2):
        plan.add(make_sequence(key, prompt=5))
    plan.plan()
    assert plan.compute_kv_cache_usage() == 0.5  # two blocks of 256
    plan.cancel(1)
    assert plan.compute_kv_cache_usage() == 0.25


def test_one_sequence_larger_than_the_cache_fills_it() -> None:
    plan = StepScheduler(BatchLimits(8, 4096, 100, 4096))
    plan.add(make_sequence(1, prompt=300))
    plan.plan()
    assert plan.compute_kv_cache_usage() == 1.0


# vllm


def _llm(**processor: Any) -> Any:
    return SimpleNamespace(
        log_stats=True, logger_manager=object(), output_processor=SimpleNamespace(log_stats=True, **processor)
    )


def test_vllm_reports_after_each_step_and_counts_no_tokens_in_this_process() -> None:
    seen: list[Any] = []
    llm = _llm(update_scheduler_stats=seen.append, lora_states=SimpleNamespace(log_stats=True))
    stats = SchedulerStatsReader()
    stats.attach(llm)
    processor = llm.output_processor
    assert (llm.log_stats, processor.log_stats, processor.lora_states.log_stats) == (False, False, False)
    assert llm.logger_manager is None and stats.read() == Stats()
    reported = SimpleNamespace(kv_cache_usage=0.5, num_waiting_reqs=2, num_skipped_waiting_reqs=1)
    processor.update_scheduler_stats(reported)
    assert stats.read() == Stats(1, 0.5, 3)
    processor.update_scheduler_stats(None)  # outputs that came without
    processor.update_scheduler_stats(
        SimpleNamespace(kv_cache_usage=0.0, num_waiting_reqs=0, num_skipped_waiting_reqs=0)
    )
    assert stats.read() == Stats(2, 0.0, 0)
    assert seen[:2] == [reported, None]  # vLLM's own method still gets all

"""Recorded steps against unrecorded ones: what is rounding, and what is not."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from enginebay.engines.vllm.patches.graph_check import (
    build_requests,
    choose_sizes,
    compare_steps,
    describe_difference,
    measure_difference,
)

EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}  # as torch.finfo says
LOGITS = np.random.default_rng(1).normal(-3.0, 2.0, (5, 4000))


def _round(logits: Any, epsilon: float) -> Any:
    exponent = 2.0 ** np.floor(np.log2(np.abs(logits)))
    return np.round(logits / exponent / epsilon) * exponent * epsilon


@pytest.mark.parametrize("precision", EPSILON)
def test_rounding_passes_in_every_precision(precision: str) -> None:
    epsilon = EPSILON[precision]
    difference = measure_difference(_round(LOGITS, epsilon), LOGITS)
    assert 0 < difference < 4 * epsilon
    assert describe_difference(difference, epsilon) is None
    assert describe_difference(0.0, epsilon) is None


@pytest.mark.parametrize("precision", EPSILON)
def test_other_logits_are_refused(precision: str) -> None:
    wrong = LOGITS.copy()
    wrong[3] = LOGITS[2]  # one row of another request
    difference = measure_difference(wrong, LOGITS)
    assert difference > 1
    assert "more than rounding" in str(describe_difference(difference, EPSILON[precision]))


def test_the_tolerance_depends_on_the_precision() -> None:
    assert describe_difference(0.2, EPSILON["bfloat16"]) is None
    assert describe_difference(0.2, EPSILON["float16"]) is not None
    assert describe_difference(1.06, EPSILON["bfloat16"]) is not None, "a prompt without its causal mask"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    wrong = LOGITS.copy()
    wrong[0, 0] = value
    assert measure_difference(wrong, LOGITS) == measure_difference(LOGITS, wrong) == float("inf")
    assert measure_difference(wrong, wrong) == 0, "a model may mask tokens itself"
    assert describe_difference(float("inf"), EPSILON["bfloat16"]) is not None


def test_equal_rows_without_spread_are_equal() -> None:
    assert measure_difference(np.ones((2, 8)), np.ones((2, 8))) == 0
    assert measure_difference(np.full((1, 8), 1.1), np.ones((1, 8))) > 1


def test_sizes_from_the_smallest_to_the_largest() -> None:
    own = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    chosen = choose_sizes(own)
    assert len(chosen) == 4 and (chosen[0], chosen[-1]) == (2, 512)
    assert choose_sizes([1]) == [] and choose_sizes([1, 2]) == [2] and choose_sizes([4, 16]) == [4, 16]


@pytest.mark.parametrize("tokens", [2, 3, 7, 63, 511])
@pytest.mark.parametrize("max_requests", [1, 2, 256])
def test_a_step_mixes_decoding_requests_with_a_prompt(tokens: int, max_requests: int) -> None:
    requests = build_requests(tokens, max_requests, 2048, 49152, [16, 32])
    assert len(requests) <= max_requests
    assert sum(len(request.token_ids) - request.cached for request in requests) == tokens
    assert all(len(request.token_ids) - request.cached == 1 for request in requests[:-1])
    assert requests[-1].cached == 0 and len(requests[-1].token_ids) > 1
    blocks = [block for request in requests for group in request.blocks for block in group]
    assert len(set(blocks)) == len(blocks) and min(blocks) == 1
    assert all(0 <= token < 49152 for request in requests for token in request.token_ids)
    for request in requests:
        assert [len(group) for group in request.blocks] == [-(-len(request.token_ids) // size) for size in (16, 32)]


def test_a_step_fits_a_short_context_and_a_small_vocabulary() -> None:
    requests = build_requests(511, 256, 8, 100, [16])
    assert max(len(request.token_ids) for request in requests) == 8
    assert all(0 <= token < 100 for request in requests for token in request.token_ids)


class Tensor:
    def __init__(self, rows: Any) -> None:
        self.rows = np.asarray(rows, np.float64)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.rows[index])

    def float(self) -> Tensor:
        return self

    cpu = float

    def numpy(self) -> Any:
        return self.rows


class Runner:
    """Like vLLM's GPUModelRunner: its logits depend on all tokens of a request, of which the cached ones come from blocks."""

    max_num_reqs, max_model_len, vocab_size, is_pooling_model = 8, 64, 1000, False

    def __init__(self, graph_error: float = 0.0, num_blocks: int = 100) -> None:
        self.cudagraph_manager = SimpleNamespace(_graphs_captured=True)
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=[group], num_blocks=num_blocks)
        self.kv_connector = SimpleNamespace(set_disabled=lambda disabled: None)
        self.model = SimpleNamespace(compute_logits=lambda hidden: hidden)
        self.execute_model_state: Any = None
        self.graph_error = graph_error
        self.cache: dict[int, list[int]] = {}
        self.live: set[str] = set()
        self.steps: list[tuple[int, bool]] = []

    def execute_model(self, step: Any) -> None:
        self.live -= step.finished_req_ids
        if not step.scheduled_new_reqs:
            return
        rows = []
        for request in step.scheduled_new_reqs:
            self.live.add(request.req_id)
            known = self.cache.get(request.block_ids[0][0], [])[: request.num_computed_tokens]
            assert len(known) == request.num_computed_tokens
            ids = [*known, *request.prompt_token_ids[request.num_computed_tokens :]]
            self.cache[request.block_ids[0][0]] = ids
            rows.append(np.random.default_rng(ids).normal(size=50))
        recorded = self.cudagraph_manager._graphs_captured
        self.steps.append((step.total_num_scheduled_tokens, recorded))
        if recorded:
            rows[-1] = rows[-1] + self.graph_error
            rows[-1][0] += self.graph_error
        batch = SimpleNamespace(logits_indices=list(range(len(rows))))
        self.execute_model_state = SimpleNamespace(hidden_states=Tensor(rows), input_batch=batch)


@pytest.fixture
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    class SchedulerOutput(SimpleNamespace):
        @classmethod
        def make_empty(cls) -> SchedulerOutput:
            return cls(scheduled_new_reqs=[], finished_req_ids=set())

    vllm: Any = ModuleType("vllm")
    vllm.SamplingParams = vllm.PoolingParams = SimpleNamespace
    output: Any = ModuleType("vllm.v1.core.sched.output")
    output.NewRequestData, output.SchedulerOutput = SimpleNamespace, SchedulerOutput
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, output.__name__, output)


@pytest.mark.usefixtures("_vllm")
def test_the_same_steps_run_unrecorded_and_recorded() -> None:
    runner = Runner()
    assert compare_steps(runner, [2, 8, 16]) == 0
    assert [step for step in runner.steps if step[1]] == [(2, True), (7, True), (15, True)]
    assert [step for step in runner.steps if not step[1]][::2] == [(2, False), (7, False), (15, False)]
    assert runner.cudagraph_manager._graphs_captured and runner.execute_model_state is None and not runner.live


@pytest.mark.usefixtures("_vllm")
@pytest.mark.parametrize("pooling", [False, True])
def test_a_wrong_graph_shows(pooling: bool) -> None:
    runner = Runner(graph_error=3.0)
    runner.is_pooling_model = pooling
    difference = compare_steps(runner, [8])
    assert difference is not None and describe_difference(difference, EPSILON["bfloat16"]) is not None


@pytest.mark.usefixtures("_vllm")
def test_nothing_is_compared_if_the_kv_cache_is_too_small() -> None:
    assert compare_steps(Runner(num_blocks=2), [8]) is None


@pytest.mark.usefixtures("_vllm")
def test_a_failed_step_leaves_no_request_behind() -> None:
    runner = Runner()
    runner.model.compute_logits = lambda hidden: 1 / 0
    with pytest.raises(ZeroDivisionError):
        compare_steps(runner, [8])
    assert not runner.live and runner.execute_model_state is None and runner.cudagraph_manager._graphs_captured

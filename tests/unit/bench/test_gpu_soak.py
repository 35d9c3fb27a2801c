"""The verdict of a GPU soak: memory growth, wrong responses, a load that ended early."""

from __future__ import annotations

import pytest

from bench.gpu.soak import find_failures, judge_growth, make_requests, parse_held_requests, print_report
from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.workload.request_records import Record, Request

REQUESTS = [Request((1,), 1, 2) for _ in range(3)]


def result(*records: Record, window_s: float = 11.0) -> LoadgenResult:
    return LoadgenResult(list(records), {}, 0.0, window_s)


def record(index: int, **more: object) -> Record:
    return Record(index, 0.0, 0.0, **{"output_tokens": 2, **more})  # type: ignore[arg-type]


def test_requests_are_the_same_for_a_seed_and_of_many_lengths() -> None:
    requests = make_requests(1, 5000)
    assert requests == make_requests(1, 5000)
    assert requests != make_requests(2, 5000)
    assert len(requests) == 5000
    lengths, outputs = {len(one.prompt) for one in requests}, {one.output_tokens or 0 for one in requests}
    assert (min(lengths), max(lengths)) == (64, 256)
    assert (min(outputs), max(outputs)) == (32, 192)


def test_growth_before_settling_does_not_count() -> None:
    samples = [
        {"at_s": float(at), "server": 50.0 if at < 60 else 100.0, "engine": 100.0 + at} for at in range(0, 361, 5)
    ]
    growth = judge_growth(samples, 60.0)
    assert growth["server"] == 0.0
    assert growth["engine"] == pytest.approx(300 / 310)


def test_too_few_samples_are_not_flat() -> None:
    samples = [{"at_s": float(at), "server": 1.0} for at in range(60, 80, 5)]
    assert judge_growth(samples, 60.0) == {"server": 0.0, "worker": None, "engine": None, "gpu": None}
    assert judge_growth(samples, 70.0, ("server",)) == {"server": None}  # two of them


@pytest.mark.parametrize(
    ("growth", "wrong", "passed"),
    [(0.0, 0, True), (0.019, 0, True), (0.02, 0, False), (None, 0, False), (0.0, 1, False)],
)
def test_it_passes_only_if_all_kinds_were_sampled_and_flat(growth: float | None, wrong: int, passed: bool) -> None:
    report = {"answers": 1, "cut": 1, "window_s": 1.0, "output_tokens_per_s": 1.0, "first_wrong": [], "gpu": "no GPU"}
    assert print_report({**report, "growth": {"server": 0.0, "engine": growth}, "wrong": wrong}) is passed


def test_all_engines_count_and_a_missing_metric_is_unknown() -> None:
    metrics = '# TYPE enginebay_engine_running gauge\nenginebay_engine_running{model="a}",engine="x"} 0\n'
    assert parse_held_requests(metrics) == 0
    assert parse_held_requests(metrics + 'enginebay_engine_running{model="b",engine="x"} 3\n') == 3
    assert parse_held_requests("# TYPE enginebay_engine_running gauge\n") is None


def test_wrong_responses_and_a_load_that_ended_early_are_failures() -> None:
    assert find_failures(result(record(0), record(1)), REQUESTS, 10.0) == []
    assert find_failures(result(record(1, error="closed", detail="gone")), REQUESTS, 10.0) == ["request 1: closed gone"]
    assert find_failures(result(record(0, output_tokens=1)), REQUESTS, 10.0) == ["request 0: 1 tokens instead of 2"]
    assert "3 requests were sent before" in find_failures(result(*map(record, range(3))), REQUESTS, 10.0)[0]
    assert find_failures(result(record(0), window_s=9.0), REQUESTS, 10.0) == ["the load ended after 9 s of 10"]

"""When six minutes under load have passed: growth of memory, wrong answers, a load that was none."""

from __future__ import annotations

import pytest

from bench.gpu.soak import find_failures, judge_growth, make_requests, parse_held_requests, print_report
from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.workload.request_records import Record, Request

ASKED = [Request((1,), 1, 2) for _ in range(3)]


def fired(*records: Record, window_s: float = 11.0) -> LoadgenResult:
    return LoadgenResult(list(records), {}, 0.0, window_s)


def answer(index: int, **more: object) -> Record:
    return Record(index, 0.0, 0.0, **{"output_tokens": 2, **more})  # type: ignore[arg-type]


def test_requests_are_the_same_for_a_seed_and_of_many_lengths() -> None:
    found = make_requests(1, 5000)
    assert found == make_requests(1, 5000)
    assert found != make_requests(2, 5000)
    assert len(found) == 5000
    lengths, outputs = {len(one.prompt) for one in found}, {one.output_tokens or 0 for one in found}
    assert (min(lengths), max(lengths)) == (64, 256)
    assert (min(outputs), max(outputs)) == (32, 192)


def test_what_grew_before_it_settled_does_not_count() -> None:
    samples = [
        {"at_s": float(at), "server": 50.0 if at < 60 else 100.0, "engine": 100.0 + at} for at in range(0, 361, 5)
    ]
    found = judge_growth(samples, 60.0)
    assert found["server"] == 0.0
    assert found["engine"] == pytest.approx(300 / 310)


def test_what_was_not_seen_often_enough_is_not_known_to_be_flat() -> None:
    samples = [{"at_s": float(at), "server": 1.0} for at in range(60, 80, 5)]
    assert judge_growth(samples, 60.0) == {"server": 0.0, "worker": None, "engine": None, "gpu": None}
    assert judge_growth(samples, 70.0, ("server",)) == {"server": None}  # two of them


@pytest.mark.parametrize(
    ("growth", "wrong", "passed"),
    [(0.0, 0, True), (0.019, 0, True), (0.02, 0, False), (None, 0, False), (0.0, 1, False)],
)
def test_it_passes_only_when_all_was_seen_and_all_was_flat(growth: float | None, wrong: int, passed: bool) -> None:
    told = {"answers": 1, "cut": 1, "window_s": 1.0, "output_tokens_per_s": 1.0, "first_wrong": [], "gpu": "no GPU"}
    assert print_report({**told, "growth": {"server": 0.0, "engine": growth}, "wrong": wrong}) is passed


def test_all_engines_count_and_silence_is_not_none_held() -> None:
    told = '# TYPE enginebay_engine_running gauge\nenginebay_engine_running{model="a}",engine="x"} 0\n'
    assert parse_held_requests(told) == 0
    assert parse_held_requests(told + 'enginebay_engine_running{model="b",engine="x"} 3\n') == 3
    assert parse_held_requests("# TYPE enginebay_engine_running gauge\n") is None


def test_wrong_answers_and_a_load_that_ended_early_are_failures() -> None:
    assert find_failures(fired(answer(0), answer(1)), ASKED, 10.0) == []
    assert find_failures(fired(answer(1, error="closed", detail="gone")), ASKED, 10.0) == ["request 1: closed gone"]
    assert find_failures(fired(answer(0, output_tokens=1)), ASKED, 10.0) == ["request 0: 1 tokens instead of 2"]
    assert "3 requests were sent before" in find_failures(fired(*map(answer, range(3))), ASKED, 10.0)[0]
    assert find_failures(fired(answer(0), window_s=9.0), ASKED, 10.0) == ["the load ended after 9 s of 10"]

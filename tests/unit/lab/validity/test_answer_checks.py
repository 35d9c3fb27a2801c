from __future__ import annotations

from dataclasses import replace

import pytest

from enginebay.lab.measures.parity import Parity
from enginebay.lab.validity.answer_checks import (
    errors,
    input_lengths_off,
    no_requests,
    output_lengths_off,
    parity_broken,
    stream_bunched,
    too_few_cycles,
    too_few_for_percentile,
    unasked_cache_hits,
)
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Finding, Reason
from enginebay.lab.workload.request_records import Record, Request
from tests.unit.lab.validity.judged_runs import make_failed, make_open_loop, make_paced, make_record

PARITY = Parity(8, True, 1.0, 1.0, None, 0.01, 0.05, 1.0, {})


def severity(finding: Finding) -> str:
    return finding.severity if isinstance(finding, Reason) else finding.value


def test_something_must_be_answered() -> None:
    assert no_requests(RunFacts(make_paced(1))) is FINE
    assert severity(no_requests(RunFacts([]))) == "invalid"
    found = no_requests(RunFacts([make_failed(0, 0.0, "connect")]))
    assert isinstance(found, Reason) and found.message == "none of 1 requests was answered"


@pytest.mark.parametrize(("count", "expected"), [(0, "fine"), (1, "informative"), (4, "informative"), (5, "invalid")])
def test_failures_are_counted(count: int, expected: str) -> None:
    wrong = [make_failed(index, 0.0, "stalled") for index in range(count)]
    assert severity(errors(RunFacts([*make_paced(400), *wrong]))) == expected


def test_failures_are_named_and_unsent_ones_are_the_clients() -> None:
    found = errors(
        RunFacts(
            [*make_paced(8), make_failed(8, 0, "closed"), make_failed(9, 0, "closed"), make_failed(10, 0, "garbage")]
        )
    )
    assert isinstance(found, Reason) and "3 of 11 requests failed (2 closed, 1 garbage)" in found.message
    assert errors(RunFacts([*make_paced(8), make_failed(8, 0, "unsent")])) is FINE
    assert errors(RunFacts([make_failed(8, 0, "unsent")])) is UNKNOWN


def refused(index: int, status: int, said: str) -> Record:
    return replace(make_failed(index, 0.0, "status"), status=status, detail=f"{status}: {said}")


def test_failures_report_the_status_and_the_server_message() -> None:
    ids = "prompt has token ids outside of 0 to 255"
    same = errors(RunFacts([refused(index, 400, ids) for index in range(80)]))
    assert isinstance(same, Reason) and f"80 of 80 requests failed (80 × 400: {ids}); " in same.message
    mixed = [refused(0, 400, "rare"), *(refused(index, 400, "usual") for index in (1, 2)), refused(3, 429, "slow down")]
    found = errors(RunFacts([*make_paced(4), *mixed, make_failed(4, 0.0, "closed")]))
    assert isinstance(found, Reason) and "5 of 9 requests failed (3 × 400: usual, 1 × 429, 1 closed)" in found.message


@pytest.mark.parametrize(
    ("said", "shown"), [("a\n\x1b[31mb", "(1 × 500: a [31mb)"), ("", "(1 × 500)"), ("x" * 300, f"{'x' * 119}…)")]
)
def test_a_server_message_is_one_short_line(said: str, shown: str) -> None:
    found = errors(RunFacts([refused(0, 500, said)]))
    assert isinstance(found, Reason) and shown in found.message


@pytest.mark.parametrize(("count", "named"), [(35, "p90, p95, p99"), (36, "p95, p99"), (72, "p99"), (367, "p99")])
def test_percentiles_with_an_objective_need_enough_answers(count: int, named: str) -> None:
    found = too_few_for_percentile(RunFacts(make_paced(count), percentiles=[99, 90, 95]))
    assert isinstance(found, Reason) and found.severity == "invalid"
    assert f"too few to judge {named}:" in found.message and found.limit == 368


def test_with_enough_answers_every_percentile_stands() -> None:
    assert too_few_for_percentile(RunFacts(make_paced(368), percentiles=[90, 99])) is FINE
    assert too_few_for_percentile(RunFacts(make_paced(72), percentiles=[95])) is FINE


def test_without_percentiles_nothing_is_claimed() -> None:
    assert too_few_for_percentile(RunFacts(make_paced(5))) is UNKNOWN
    assert too_few_for_percentile(RunFacts(make_paced(5), percentiles=[])) is UNKNOWN
    assert too_few_for_percentile(RunFacts([], percentiles=[95])) is UNKNOWN


def test_failed_requests_do_not_count_for_percentiles() -> None:
    records = [*make_paced(71), make_failed(71, 0.0, "closed")]
    assert severity(too_few_for_percentile(RunFacts(records, percentiles=[95]))) == "invalid"


def test_cycles() -> None:
    few = too_few_cycles(make_open_loop(cycles=2))
    assert isinstance(few, Reason) and few.severity == "informative"
    assert few.message.endswith("so comparisons are inconclusive")
    assert too_few_cycles(make_open_loop(cycles=3)) is FINE
    assert too_few_cycles(make_open_loop()) is UNKNOWN


@pytest.mark.parametrize(("short", "expected"), [(0, "fine"), (4, "fine"), (5, "informative"), (100, "invalid")])
def test_answers_that_are_too_short(short: int, expected: str) -> None:
    records = [replace(one, output_tokens=8) if one.index < short else one for one in make_paced()]
    assert severity(output_lengths_off(make_open_loop(records))) == expected


def test_answers_that_are_too_long_are_other_work_too() -> None:
    assert (
        severity(output_lengths_off(make_open_loop([replace(one, output_tokens=20) for one in make_paced()])))
        == "invalid"
    )


def test_without_a_requested_length_nothing_is_off() -> None:
    assert output_lengths_off(make_open_loop(requests=None)) is UNKNOWN
    assert output_lengths_off(make_open_loop(requests=[Request(prompt="hi")] * 400)) is UNKNOWN


@pytest.mark.parametrize(("cut", "expected"), [(0, "fine"), (1, "informative"), (5, "invalid")])
def test_prompts_that_were_cut(cut: int, expected: str) -> None:
    records = [replace(one, input_tokens=16 if one.index < cut else 40) for one in make_paced()]
    assert severity(input_lengths_off(make_open_loop(records))) == expected
    assert input_lengths_off(make_open_loop(records, requests=None)) is UNKNOWN


@pytest.mark.parametrize(("cached", "expected"), [(0, "fine"), (4, "informative"), (30, "invalid")])
def test_prompts_that_were_remembered(cached: int, expected: str) -> None:
    records = [replace(one, cached_tokens=cached) for one in make_paced(40)]
    assert severity(unasked_cache_hits(make_open_loop(records, shared_prefix=False))) == expected
    assert unasked_cache_hits(make_open_loop(records, shared_prefix=True)) is UNKNOWN
    assert unasked_cache_hits(make_open_loop(records)) is UNKNOWN


def test_cached_prompts_come_with_a_hint() -> None:
    found = unasked_cache_hits(
        make_open_loop([replace(one, cached_tokens=30) for one in make_paced(40)], shared_prefix=False)
    )
    assert isinstance(found, Reason) and "--set workload.seed=N" in found.message and "restart" in found.message


def test_events_of_many_tokens() -> None:
    assert stream_bunched(make_open_loop()) is FINE
    found = stream_bunched(make_open_loop([replace(one, events=4) for one in make_paced(40)]))
    assert isinstance(found, Reason) and (found.severity, found.figure) == ("informative", 4.0)
    assert stream_bunched(make_open_loop([make_record(0, 0.0, output_tokens=1, events=1)])) is UNKNOWN


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fine"),
        ({"same_prompt_ids": False}, "invalid"),
        ({"logprob_distance": 0.2}, "informative"),
        ({"logprob_distance": 0.9}, "invalid"),
        ({"output_length_ratio": 1.3}, "informative"),
        ({"output_length_ratio": 0.8}, "informative"),
        ({"greedy_agreement": 0.2}, "fine"),  # the log probabilities say that it is rounding
        ({"greedy_agreement": 0.2, "logprob_distance": None}, "informative"),
        ({"greedy_agreement": 0.0, "logprob_distance": None}, "invalid"),
        ({"greedy_agreement": 0.8, "logprob_distance": None}, "fine"),
    ],
)
def test_parity(changes: dict[str, float | None], expected: str) -> None:
    assert severity(parity_broken(make_open_loop(parity=replace(PARITY, **changes)))) == expected


def test_unreported_parity_is_unknown() -> None:
    assert parity_broken(make_open_loop()) is UNKNOWN
    assert parity_broken(make_open_loop(parity=Parity(1, None, 1.0, None, None, None, None, None, {}))) is UNKNOWN


def test_stalls_name_their_limit() -> None:
    stalled = [replace(make_failed(index, 0.0, "stalled"), detail="no data for 120 s; raise it") for index in range(82)]
    found = errors(RunFacts([*make_paced(17), *stalled, make_failed(99, 0.0, "closed")]))
    assert isinstance(found, Reason)
    assert "83 of 100 requests failed (82 stalled: no data for 120 s; raise it, 1 closed)" in found.message

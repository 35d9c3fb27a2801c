from __future__ import annotations

import math
from typing import Any

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.measures.slo import SloObjective, find_missed, is_good, parse_slo, slo_from_dict
from enginebay.lab.workload.request_records import Record


def record(first_s: float = 0.5, end_s: float = 2.5, **changes: Any) -> Record:
    fields = {"last_s": end_s, "input_tokens": 10, "output_tokens": 21, **changes}
    return Record(index=0, intended_s=0.0, sent_s=0.1, first_s=first_s, end_s=end_s, **fields)


def test_limits_and_objectives_are_read_apart() -> None:
    slo = slo_from_dict({"ttft_s": 0.8, "tpot_p95": 0.05, "tpot_median": 0.02, "e2e_p99.9": 9})
    assert slo.limits == {"ttft": 0.8, "tpot": 0.05, "e2e": 9.0}
    assert slo.objectives[0] == SloObjective("tpot_p95", "tpot", 95.0, 0.05)
    assert [one.percent for one in slo.objectives] == [95.0, 50.0, 99.9]


def test_a_flag_parses_to_the_same_slo() -> None:
    assert parse_slo("ttft_p95=0.8, tpot_s=0.05") == slo_from_dict({"ttft_p95": 0.8, "tpot_s": 0.05})


@pytest.mark.parametrize(
    "given",
    [{}, {"ttft": 1}, {"ttft_mean": 1}, {"itl_p95": 1}, {"ttft_p0": 1}, {"ttft_p100": 1}, {"ttft_s": 0}, {"ttft_s": -1},
     {"ttft_s": math.nan}, {"ttft_s": True}, {"ttft_s": "fast"}, {3: 1}],
)  # fmt: skip
def test_what_is_no_slo_is_refused_with_a_hint(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        slo_from_dict(given)
    assert "ttft_p95" in refusal.value.hint


@pytest.mark.parametrize("text", ["", "ttft_p95", "ttft_p95=soon", "=1"])
def test_what_is_no_slo_in_a_flag_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_slo(text)


def test_a_request_is_good_when_it_keeps_every_limit() -> None:
    assert is_good(record(), slo_from_dict({"ttft_s": 0.5, "tpot_s": 0.1, "e2e_s": 2.5}))
    assert not is_good(record(), slo_from_dict({"ttft_s": 0.49}))
    assert not is_good(record(), slo_from_dict({"ttft_s": 1, "tpot_s": 0.099}))
    assert not is_good(record(), slo_from_dict({"ttft_s": 1, "e2e_s": 2.45}))


def test_the_wait_for_a_late_client_counts() -> None:
    """Sent 0.1 s late: it took 0.4 s from the actual and 0.5 s from the intended send time."""
    assert not is_good(record(), slo_from_dict({"ttft_s": 0.45}))


def test_a_single_token_keeps_any_time_per_token() -> None:
    assert is_good(record(output_tokens=1), slo_from_dict({"tpot_s": 0.001}))


def test_no_output_at_all_is_not_in_time() -> None:
    assert not is_good(Record(0, 0.0, 0.0, end_s=0.1, output_tokens=0), slo_from_dict({"ttft_s": 1}))


def test_failed_requests_miss_an_objective() -> None:
    good, failed = [record()] * 95, [Record(0, 0.0, 0.0, error="status", end_s=0.01)]
    assert find_missed(good + failed * 5, slo_from_dict({"ttft_p95": 0.5})) == {}
    assert find_missed(good[1:] + failed * 6, slo_from_dict({"ttft_p95": 0.5})) == {"ttft_p95": 0.94}


def test_rounding_does_not_miss_an_objective() -> None:
    records = [record()] * 999 + [record(first_s=9.0)]
    assert find_missed(records, slo_from_dict({"ttft_p99.9": 0.5})) == {}

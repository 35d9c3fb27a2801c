from __future__ import annotations

import pytest

from enginebay.lab.report.run_timeline import (
    MAX_BINS,
    MAX_READINGS,
    MAX_WATERFALL_ROWS,
    bin_in_flight,
    bin_tokens_per_s,
    build_timeline,
    build_waterfall,
    thin_power,
)
from enginebay.lab.workload.request_records import Record
from enginebay.meters.sample import Sample
from tests.unit.lab.report.report_runs import fail_record, make_records, make_run


def test_tokens_are_those_of_the_usage_not_the_number_of_events() -> None:
    record = Record(0, 0.0, 0.0, 0.5, 1.5, 2.0, output_tokens=30, events=2)
    rates = bin_tokens_per_s([record], {0: [0.5, 1.5]}, 2.0)
    assert sum(rates) * 2.0 / MAX_BINS == pytest.approx(30)


def test_a_failed_request_has_no_tokens() -> None:
    record = fail_record(Record(0, 0.0, 0.0))
    assert sum(bin_tokens_per_s([record], {0: [0.5]}, 2.0)) == 0


def test_requests_in_flight_are_averaged_over_a_bin() -> None:
    records = [Record(0, 0.0, 0.0, end_s=12.0), Record(1, 6.0, 6.0, end_s=18.0)]
    found = bin_in_flight(records, 24.0)
    assert sum(found) * 24.0 / MAX_BINS == pytest.approx(24.0)  # Little: the time that requests spent
    assert found[0] == pytest.approx(1.0)
    assert found[MAX_BINS * 9 // 24] == pytest.approx(2.0)
    assert found[-1] == pytest.approx(0.0, abs=1e-9)


def test_power_is_averaged_in_groups_so_that_its_energy_stays() -> None:
    samples = [Sample(number * 0.01, "gpu 0", power_w=100.0 + number % 2) for number in range(5000)]
    (found,) = thin_power(samples, 50.0)
    assert len(found["w"]) <= MAX_READINGS
    assert sum(found["w"]) / len(found["w"]) == pytest.approx(100.5, abs=0.01)
    assert found["each"] == 10


def test_readings_without_watts_or_outside_the_window_are_skipped() -> None:
    samples = [Sample(1.0, "cpu", energy_j=5.0), Sample(99.0, "gpu 0", power_w=10.0)]
    assert thin_power(samples, 10.0) == []


def test_the_waterfall_keeps_failed_requests_and_the_order() -> None:
    records, _ = make_records(1, 1000, 10.0, 0.01)
    records[500] = fail_record(records[500])
    rows = build_waterfall(records)
    assert len(rows) == MAX_WATERFALL_ROWS
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert [row[7] for row in rows if row[7]] == ["stalled"]


def test_times_of_a_late_request_are_not_rounded_away() -> None:
    """Readers compute latencies as differences of these."""
    (row,) = build_waterfall([Record(0, 3600.0, 3600.0003, 3600.0123, 3600.5, 3600.501, output_tokens=9)])
    assert row[2] - row[1] == pytest.approx(0.0003, abs=1e-5)
    assert row[3] - row[2] == pytest.approx(0.012, abs=1e-5)


def test_a_short_run_has_fewer_bins() -> None:
    """Bins narrower than the engine's steps would show a comb."""
    assert len(build_timeline(make_run(requests=10))["tokens"]) < MAX_BINS
    assert len(build_timeline(make_run(requests=200))["tokens"]) == MAX_BINS


def test_a_run_without_an_answer_still_has_a_timeline() -> None:
    found = build_timeline(make_run(requests=3, errors=3, watts=None))
    assert (found["requests"], found["power"], sum(found["tokens"])) == (3, [], 0)

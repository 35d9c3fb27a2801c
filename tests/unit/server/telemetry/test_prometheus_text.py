from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.server.telemetry.prometheus_text import (
    estimate_quantile,
    parse_metrics,
    render_metrics,
    sum_buckets,
    sum_samples,
)
from enginebay.server.telemetry.server_metrics import ServerMetrics


def test_reads_what_it_writes() -> None:
    metrics = ServerMetrics()
    metrics.requests.child("smollm2", "fake", "chat", "200").inc(3)
    metrics.requests.child("smollm2", "fake", "chat", "400").inc()
    metrics.requests.child("other", "fake", "chat", "200").inc(50)
    metrics.time_to_first_token.child("smollm2", "fake").observe(0.3, 2)
    samples = parse_metrics(render_metrics(metrics.snapshot()).decode())
    assert sum_samples(samples, "enginebay_requests_total", model="smollm2") == 4
    assert sum_samples(samples, "enginebay_requests_total") == 54
    assert sum_samples(samples, "enginebay_requests_total", model="unknown") is None
    found = sum_buckets(samples, "enginebay_time_to_first_token_seconds", model="smollm2")
    assert (found[0.25], found[0.5], found[math.inf]) == (0, 2, 2)


def test_reads_the_format_as_others_write_it() -> None:
    text = '# comment\n\n  a_total { x = "1" , y="b,}\\"\\\\\\n" , } 3e2 1700000000000\nb NaN\nc{} -Inf\nd 1\n'
    samples = parse_metrics(text)
    assert samples["a_total"] == {(("x", "1"), ("y", 'b,}"\\\n')): 300.0}
    assert math.isnan(samples["b"][()])
    assert samples["c"][()] == -math.inf
    assert samples["d"][()] == 1


@pytest.mark.parametrize("text", ["<html>", 'a{x="1" 3', "a", "a one", '{"error": 1}'])
def test_other_formats_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_metrics(text)


@given(st.text())
def test_any_label_value_comes_back(value: str) -> None:
    metrics = ServerMetrics()
    metrics.rejected.child(value).inc()
    samples = parse_metrics(render_metrics(metrics.snapshot()).decode())
    whole = value.encode("utf-8", "backslashreplace").decode()
    if whole == value:
        assert samples["enginebay_rejected_total"] == {(("reason", value),): 1}


@given(st.floats(allow_nan=False))
def test_any_number_comes_back(value: float) -> None:
    metrics = ServerMetrics()
    metrics.connections.child().set(value)
    assert parse_metrics(render_metrics(metrics.snapshot()).decode())["enginebay_connections"] == {(): value}


def test_quantiles_are_interpolated_in_their_bucket() -> None:
    found = {1.0: 10.0, 2.0: 20.0, 4.0: 20.0, math.inf: 20.0}
    assert estimate_quantile(0.5, found) == 1.0
    assert estimate_quantile(0.25, found) == 0.5
    assert estimate_quantile(0.75, found) == 1.5
    assert estimate_quantile(1.0, found) == 2.0


def test_an_unknown_quantile_is_none_or_infinite() -> None:
    assert estimate_quantile(0.5, {}) is None
    assert estimate_quantile(0.5, {1.0: 0.0, math.inf: 0.0}) is None
    assert estimate_quantile(0.95, {1.0: 1.0, math.inf: 2.0}) == math.inf

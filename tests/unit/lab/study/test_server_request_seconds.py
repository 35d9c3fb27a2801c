"""The request seconds that a server's metrics report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginebay.lab.loadgen.sender_task import TargetServer
from enginebay.lab.study.server_facts import fetch_request_seconds, parse_duration_sum, subtract_readings
from enginebay.server.telemetry.prometheus_text import render_metrics
from enginebay.server.telemetry.server_metrics import ServerMetrics
from tests.unit.lab.study.test_remote_meter import Host, serving


def scrape(**seconds: float) -> str:
    """Render the server's metrics after one request to each of these models."""
    metrics = ServerMetrics()
    for model, duration_s in seconds.items():
        metrics.request_duration.child(model, "fake").observe(duration_s)
    return render_metrics(metrics.snapshot()).decode()


def test_the_sum_is_over_all_models() -> None:
    assert parse_duration_sum(scrape(a=1.5, b=0.25)) == pytest.approx(1.75)


def test_before_the_first_request_the_sum_is_zero() -> None:
    assert parse_duration_sum(scrape()) == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "vllm_request_seconds_sum 5", scrape(a=1.5).replace(" 1.5", " oops")],
)
def test_unreadable_metrics_are_unknown(text: str) -> None:
    assert parse_duration_sum(text) is None


def test_the_difference_of_two_readings() -> None:
    assert subtract_readings(1.0, 3.5) == 2.5
    assert subtract_readings(None, 3.5) is None and subtract_readings(1.0, None) is None
    assert subtract_readings(3.5, 1.0) is None  # it restarted


def test_only_enginebay_servers_are_scraped() -> None:
    host = Host()
    host.raw = scrape(a=2.0).encode()
    with serving(host) as target:
        assert fetch_request_seconds(target) == 2.0
        assert host.asked[0][:2] == ("/proxy/metrics", "Bearer k")
        assert fetch_request_seconds(replace(target, is_enginebay=False)) is None
        assert len(host.asked) == 1
        host.status = 403
        assert fetch_request_seconds(target) is None


def test_an_unreachable_server_is_unknown() -> None:
    assert fetch_request_seconds(TargetServer("http://127.0.0.1:9", "m", is_enginebay=True)) is None

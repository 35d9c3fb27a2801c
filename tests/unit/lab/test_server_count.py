"""What a server has counted of its requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginebay.lab.client.order import Target
from enginebay.lab.server_count import read_sum, request_seconds, spent_s
from enginebay.server.exposition import render
from enginebay.server.metrics import Metrics
from tests.unit.lab.test_remote_meter import Host, serving


def scrape(**seconds: float) -> str:
    """As the server itself would write it, after one request to each of these models."""
    metrics = Metrics()
    for model, duration_s in seconds.items():
        metrics.request_duration.child(model, "fake").observe(duration_s)
    return render(metrics.snapshot()).decode()


def test_the_sum_is_over_all_models() -> None:
    assert read_sum(scrape(a=1.5, b=0.25)) == pytest.approx(1.75)


def test_a_server_that_nobody_has_asked_yet_has_counted_nothing() -> None:
    assert read_sum(scrape()) == 0.0


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "vllm_request_seconds_sum 5", scrape(a=1.5).replace(" 1.5", " oops")],
)
def test_what_cannot_be_read_is_not_told(text: str) -> None:
    assert read_sum(text) is None


def test_between_two_readings() -> None:
    assert spent_s(1.0, 3.5) == 2.5
    assert spent_s(None, 3.5) is None and spent_s(1.0, None) is None
    assert spent_s(3.5, 1.0) is None  # it was started anew


def test_a_server_of_ours_is_asked_and_others_are_not() -> None:
    host = Host()
    host.raw = scrape(a=2.0).encode()
    with serving(host) as target:
        assert request_seconds(target) == 2.0
        assert host.asked[0][:2] == ("/proxy/metrics", "Bearer k")
        assert request_seconds(replace(target, ours=False)) is None
        assert len(host.asked) == 1
        host.status = 403
        assert request_seconds(target) is None


def test_one_that_is_gone_does_not_tell() -> None:
    assert request_seconds(Target("http://127.0.0.1:9", "m", ours=True)) is None

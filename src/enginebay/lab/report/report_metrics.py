"""Metrics shown on the page, and their titles."""

from __future__ import annotations

from enginebay.lab.report.figure_format import infer_unit

METRIC_TITLES: dict[str, str] = {
    "output_tokens_per_s": "Output tokens/s",
    "total_tokens_per_s": "Total tokens/s",
    "requests_per_s": "Requests/s",
    "ttft_s.median": "TTFT median",
    "ttft_s.p95": "TTFT p95",
    "ttft_s.p99": "TTFT p99",
    "tpot_s.median": "TPOT median",
    "tpot_s.p95": "TPOT p95",
    "itl_s.p99": "ITL p99",
    "e2e_s.median": "End to end median",
    "e2e_s.p95": "End to end p95",
    "ttft_from_intended_s.p95": "TTFT p95 from the intended send time",
    "e2e_from_intended_s.p95": "End to end p95 from the intended send time",
    "goodput_requests_per_s": "Goodput, requests/s",
    "j_per_output_token": "Energy per output token",
    "j_per_total_token": "Energy per total token",
    "j_per_good_token": "Energy per SLO-good token",
}

TABLE_METRICS = (
    "output_tokens_per_s",
    "ttft_s.median",
    "ttft_s.p95",
    "tpot_s.median",
    "e2e_s.p95",
    "goodput_requests_per_s",
    "j_per_output_token",
)
COMPARED_METRICS = (
    "output_tokens_per_s",
    "ttft_s.median",
    "ttft_s.p95",
    "tpot_s.median",
    "e2e_s.p95",
    "j_per_output_token",
)
THROUGHPUT_METRICS = ("output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "goodput_requests_per_s")
LATENCY_METRICS = (
    "ttft_s.p95",
    "ttft_s.median",
    "ttft_s.p99",
    "tpot_s.median",
    "tpot_s.p95",
    "itl_s.p99",
    "e2e_s.p95",
    "ttft_from_intended_s.p95",
    "e2e_from_intended_s.p95",
)
ENERGY_METRICS = ("j_per_output_token", "j_per_total_token", "j_per_good_token")
PLOTTED_METRICS = (*THROUGHPUT_METRICS, *LATENCY_METRICS, *ENERGY_METRICS)


def describe_metric(key: str) -> dict[str, str]:
    """Return the title and unit of a metric for an axis."""
    return {"title": METRIC_TITLES[key], "unit": infer_unit(key)}

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from enginebay.server.telemetry.prometheus_text import render_metrics
from enginebay.server.telemetry.server_metrics import (
    MAX_CHILDREN,
    CounterFamily,
    HistogramFamily,
    ServerMetrics,
    add_hit_ratio,
    merge_snapshots,
)

NAMES = {
    "enginebay_gpu_reserved_bytes", "enginebay_requests_total", "enginebay_errors_total", "enginebay_prompt_tokens_total",
    "enginebay_cached_tokens_total", "enginebay_completion_tokens_total", "enginebay_queue_time_seconds",
    "enginebay_time_to_first_token_seconds", "enginebay_inter_token_latency_seconds",
    "enginebay_request_duration_seconds", "enginebay_requests_running", "enginebay_requests_waiting",
    "enginebay_connections", "enginebay_engine_steps_total", "enginebay_engine_running",
    "enginebay_kv_cache_usage_ratio", "enginebay_worker_memory_bytes", "enginebay_server_info",
    "enginebay_rate_limited_total", "enginebay_rejected_total", "process_resident_memory_bytes",
    "process_start_time_seconds", "enginebay_retries_total", "enginebay_fallbacks_total", "enginebay_switch_seconds",
    "enginebay_switch_phase_seconds_total", "enginebay_switch_slo_missed_total", "enginebay_worker_deaths_total",
    "enginebay_model_awake", "enginebay_key_queue_time_seconds", "enginebay_poison_requests_total",
    "enginebay_replica_requests_total", "enginebay_replica_prompt_tokens_total", "enginebay_replica_cached_tokens_total",
    "enginebay_replicas_ready", "enginebay_replica_running", "enginebay_replica_imbalance_ratio",
}  # fmt: skip


def scraped(snapshot: dict[str, Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would read."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render_metrics(snapshot).decode())
        for sample in family.samples
    }


def test_every_family_has_help_and_type() -> None:
    snapshot = ServerMetrics().snapshot()
    assert set(snapshot) == NAMES
    for name, family in snapshot.items():
        text = render_metrics({name: family}).decode()
        assert f"# TYPE {name} {family['kind']}\n" in text
        assert f"# HELP {name} {family['help']}\n" in text and family["help"]


def test_the_hit_ratio_is_that_of_all_processes() -> None:
    one, other = ServerMetrics(), ServerMetrics()
    for metrics, prompt, cached in ((one, 100, 90), (other, 300, 10)):
        metrics.prompt_tokens.child("m", "fake").inc(prompt)
        metrics.cached_tokens.child("m", "fake").inc(cached)
    merged = add_hit_ratio(merge_snapshots([one.snapshot(), other.snapshot()]))
    assert 'enginebay_cache_hit_ratio{model="m",engine="fake"} 0.25' in render_metrics(merged).decode()
    assert add_hit_ratio(ServerMetrics().snapshot())["enginebay_cache_hit_ratio"]["children"] == []


def test_prometheus_reads_what_was_counted() -> None:
    metrics = ServerMetrics()
    metrics.requests.child("smollm2", "llamacpp", "chat", "200").inc()
    metrics.requests.child("smollm2", "llamacpp", "chat", "200").inc(2)
    metrics.kv_cache_usage.child("smollm2", "llamacpp").set(0.25)
    latency = metrics.inter_token_latency.child("smollm2", "llamacpp")
    latency.observe(0.02, 3)
    latency.observe(0.021)
    latency.observe(100.0)
    found = scraped(metrics.snapshot())
    labels = (("engine", "llamacpp"), ("model", "smollm2"))
    name = "enginebay_inter_token_latency_seconds"
    assert found["enginebay_requests_total", (("endpoint", "chat"), *labels, ("status", "200"))] == 3
    assert found["enginebay_kv_cache_usage_ratio", labels] == 0.25
    assert found[f"{name}_bucket", (labels[0], ("le", "0.015"), labels[1])] == 0
    assert found[f"{name}_bucket", (labels[0], ("le", "0.02"), labels[1])] == 3  # a bound belongs to its bucket
    assert found[f"{name}_bucket", (labels[0], ("le", "0.03"), labels[1])] == 4
    assert found[f"{name}_bucket", (labels[0], ("le", "5"), labels[1])] == 4
    assert found[f"{name}_bucket", (labels[0], ("le", "+Inf"), labels[1])] == 5
    assert found[f"{name}_count", labels] == 5
    assert found[f"{name}_sum", labels] == pytest.approx(100.081)


def test_label_values_survive_whatever_they_hold() -> None:
    metrics = ServerMetrics()
    nasty = 'a"b\\n\nc\\ {le="1"} é\u2028'
    metrics.rate_limited.child(nasty).inc(7)
    assert scraped(metrics.snapshot())["enginebay_rate_limited_total", (("key", nasty),)] == 7


def test_a_lone_surrogate_does_not_break_the_scrape() -> None:
    metrics = ServerMetrics()
    metrics.rejected.child("\ud800").inc()
    assert b"\\ud800" in render_metrics(metrics.snapshot())


def test_the_number_of_children_is_bounded() -> None:
    family = CounterFamily("a_total", "help", ("one", "two"))
    for number in range(MAX_CHILDREN + 500):
        family.child(str(number), "x").inc()
    children = family.snapshot()["children"]
    assert len(children) == MAX_CHILDREN + 1
    assert children[-1] == [["other", "other"], 500]
    family.child("3", "x").inc()
    assert family.child("3", "x").value == 2  # earlier children keep their own


def test_a_wrong_number_of_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="takes the labels"):
        ServerMetrics().errors.child("smollm2")


def test_a_child_that_was_removed_is_reported_no_longer() -> None:
    metrics = ServerMetrics()
    metrics.kv_cache_usage.child("smollm2", "fake").set(0.5)
    metrics.kv_cache_usage.remove_child("smollm2", "fake")
    metrics.kv_cache_usage.remove_child("never", "there")
    assert not metrics.snapshot()["enginebay_kv_cache_usage_ratio"]["children"]


def test_what_merges_by_maximum_and_what_adds() -> None:
    one, other = ServerMetrics(), ServerMetrics()
    for metrics, value in ((one, 3), (other, 5)):
        metrics.connections.child().set(value)
        metrics.requests_running.child("m", "e").set(value)
        metrics.engine_running.child("m", "e").set(value)
        metrics.engine_steps.child("m", "e").set(value)
        metrics.kv_cache_usage.child("m", "e").set(value / 10)
        metrics.worker_memory.child("m", "e").set(value)
        metrics.process_start.child().set(value)
    found = {name: family["children"] for name, family in merge_snapshots([one.snapshot(), other.snapshot()]).items()}
    assert found["enginebay_connections"] == [[[], 8]]
    assert found["enginebay_requests_running"] == [[["m", "e"], 8]]
    assert found["enginebay_engine_running"] == [[["m", "e"], 5]]
    assert found["enginebay_engine_steps_total"] == [[["m", "e"], 5]]
    assert found["enginebay_kv_cache_usage_ratio"] == [[["m", "e"], 0.5]]
    assert found["enginebay_worker_memory_bytes"] == [[["m", "e"], 5]]
    assert found["process_start_time_seconds"] == [[[], 5]]
    assert [value for _, value in found["enginebay_server_info"]] == [1]


def test_merging_leaves_its_snapshots_alone() -> None:
    metrics = ServerMetrics()
    metrics.request_duration.child("m", "e").observe(1.0)
    snapshot = metrics.snapshot()
    before = json.dumps(snapshot)
    merge_snapshots([snapshot, snapshot])
    assert json.dumps(snapshot) == before


def test_a_snapshot_does_not_change_when_counting_goes_on() -> None:
    metrics = ServerMetrics()
    child = metrics.request_duration.child("m", "e")
    snapshot = metrics.snapshot()
    child.observe(1.0)
    assert snapshot["enginebay_request_duration_seconds"]["children"][0][1] == [[0] * 18, 0.0]


def test_different_buckets_are_not_merged() -> None:
    one, other = (HistogramFamily("a", "help", (), bounds) for bounds in ((1.0,), (2.0,)))
    with pytest.raises(ValueError, match="different buckets"):
        merge_snapshots([{"a": one.snapshot()}, {"a": other.snapshot()}])


def test_process_metrics_match_the_system() -> None:
    found = scraped(ServerMetrics().snapshot())
    if Path("/proc/self/statm").exists():
        assert 0 < found["process_resident_memory_bytes", ()] < 2**36
        assert 0 <= time.time() - found["process_start_time_seconds", ()] < 86_400


# Halves and quarters add up exactly in any order, as most fractions would not.
_EVENT = st.tuples(
    st.sampled_from(["count", "gauge", "observe"]),
    st.sampled_from(["a", "b", 'c"\n']),
    st.integers(0, 4000).map(lambda n: n / 4),
    st.integers(1, 9),
)


def _apply(metrics: ServerMetrics, event: tuple[str, str, float, int]) -> None:
    what, model, value, count = event
    if what == "count":
        metrics.completion_tokens.child(model, "fake").inc(count)
    elif what == "gauge":
        metrics.requests_running.child(model, "fake").inc(count)
    else:
        metrics.time_to_first_token.child(model, "fake").observe(value, count)


@settings(max_examples=60)
@given(st.lists(st.tuples(_EVENT, st.integers(0, 3)), max_size=60))
def test_split_over_processes_and_merged_is_the_whole(events: list[tuple[Any, int]]) -> None:
    kept = {"enginebay_completion_tokens_total", "enginebay_requests_running", "enginebay_time_to_first_token_seconds"}
    whole, parts = ServerMetrics(), [ServerMetrics() for _ in range(4)]
    for event, process in events:
        _apply(whole, event)
        _apply(parts[process], event)
    sent = [json.loads(json.dumps(part.snapshot())) for part in parts]  # as through a pipe
    together = merge_snapshots(sent)
    assert render_metrics({name: together[name] for name in kept}) == render_metrics(
        {name: family for name, family in whole.snapshot().items() if name in kept}
    )

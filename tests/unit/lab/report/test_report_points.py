from __future__ import annotations

from typing import Any

import pytest

from enginebay.lab.report.report_points import arrange_runs, describe_workload
from enginebay.lab.report.sections.verdicts_section import find_confounders
from tests.unit.lab.report.report_runs import HOST, InMemoryRun, make_run, make_study

INVALID = {"status": "invalid", "reasons": [{"code": "send_lag", "severity": "invalid", "message": "late"}]}


@pytest.mark.parametrize(
    ("profile", "label", "asked"),
    [
        ({"kind": "poisson", "rate": 4}, "Poisson, 4/s", 4.0),
        ({"kind": "closed", "concurrency": 32}, "closed loop, 32 concurrent", 32.0),
        ({"kind": "gamma", "rate": 2, "burstiness": 0.5}, "gamma, 2/s, burstiness 0.5", 2.0),
        ({"kind": "ramp", "from_rate": 0, "to_rate": 8, "duration_s": 60}, "ramp, 0 to 8/s", None),
        ({"kind": "offline"}, "offline", None),
        ({}, "unknown", None),
    ],
)
def test_a_load_is_a_number_and_words(profile: dict[str, Any], label: str, asked: float | None) -> None:
    load = describe_workload(profile)
    assert (load.label, load.requested) == (label, asked)


def test_cycles_are_put_together_and_points_go_by_load() -> None:
    report = arrange_runs(make_study(cycles=3, rates=(6.0, 2.0)))
    assert [one.label for one in report.series] == ["llamacpp", "transformers", "vllm"]
    assert [point.workload.requested for point in report.points] == [2.0, 6.0] * 3
    assert all(len(point.group.runs) == 3 for point in report.points)
    assert report.title == "smollm2 on llamacpp, transformers and vllm"


def test_invalid_runs_are_excluded_from_the_means_and_reported() -> None:
    good, bad = make_run(cycle=1), make_run(cycle=2, token_s=0.5, verdict=INVALID)
    (point,) = arrange_runs([good, bad]).points
    assert point.status == "valid"
    assert point.figures["ttft_s.median"].estimate == good.measures["ttft_s"]["median"]
    assert point.describe_runs() == "1 run, 1 invalid excluded"


def test_a_point_with_only_invalid_runs_is_invalid() -> None:
    (point,) = arrange_runs([make_run(verdict=INVALID)]).points
    assert point.status == "invalid"


def test_engines_of_one_kind_are_labelled_by_their_differences() -> None:
    small = make_run(config={"vllm": {"max_num_seqs": 32}, "random_seed": 1})
    large = make_run(config={"vllm": {"max_num_seqs": 64}, "random_seed": 1})
    assert [one.label for one in arrange_runs([small, large]).series] == [
        "vllm · max_num_seqs=32",
        "vllm · max_num_seqs=64",
    ]


def test_versions_distinguish_labels_too() -> None:
    old, new = make_run(), make_run()
    new.manifest["engine"]["version"] = "2.0"
    assert [one.label for one in arrange_runs([old, new]).series] == ["vllm · 1.0", "vllm · 2.0"]


def test_the_load_does_not_make_another_series() -> None:
    slow = make_run(rate=1.0, config={"traffic_simulation": {"rate": 1}, "dtype": "auto"})
    fast = make_run(rate=9.0, point=1, config={"traffic_simulation": {"rate": 9}, "dtype": "auto"})
    report = arrange_runs([slow, fast])
    assert len(report.series) == 1
    assert len(report.points) == 2


def test_a_server_that_is_not_ours_goes_by_its_address() -> None:
    run = make_run(engine="", server={"url": "http://elsewhere:8000", "ours": False})
    assert arrange_runs([run]).series[0].label == "http://elsewhere:8000"


def running(url: str, **effective: int) -> InMemoryRun:
    """Return a run against an external server."""
    run = make_run(server={"url": url, "ours": True}, effective=effective)
    del run.manifest["measures"]["server_start_s"]
    return run


def test_two_servers_that_were_running_go_by_their_addresses() -> None:
    runs = [running("http://127.0.0.1:1"), running("http://127.0.0.1:2")]
    assert [one.label for one in arrange_runs(runs).series] == [
        "vllm · http://127.0.0.1:1",
        "vllm · http://127.0.0.1:2",
    ]


def test_a_running_server_with_other_settings_is_another_series() -> None:
    runs = [running("http://127.0.0.1:1", max_num_seqs=8), running("http://127.0.0.1:1", max_num_seqs=64)]
    assert [one.label for one in arrange_runs(runs).series] == ["vllm · max_num_seqs=8", "vllm · max_num_seqs=64"]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (["H200 GPU-a"], ["H200 GPU-a", "H200 GPU-b"], None),  # more of them is a setting
        (["H200 GPU-a"], [], None),  # an engine that uses none
        (["H200 GPU-a"], ["H100 GPU-b"], ["H200", "H100"]),
    ],
)
def test_gpus_differ_by_what_they_are(one: list[str], other: list[str], told: list[str] | None) -> None:
    runs = [make_run("vllm"), make_run("llamacpp")]
    for run, gpus in zip(runs, (one, other), strict=True):
        run.manifest["environment"] = {**HOST, "gpu": gpus}  # type: ignore[index]
    assert {name: values for name, values, _ in find_confounders(runs)}.get("GPU") == told


def test_what_differs_besides_the_engine_is_found() -> None:
    here = make_run("vllm")
    there = make_run("llamacpp", workload={"sha256": "f" * 64})
    there.manifest["environment"] = {**HOST, "host": "lab-2"}  # type: ignore[index]
    found = {name: values for name, values, _ in find_confounders([here, there])}
    assert found == {"host": ["lab-1", "lab-2"], "requests": ["cycle 1: 2 workloads"]}


def test_cycles_may_have_different_requests() -> None:
    assert find_confounders(make_study(cycles=2)) == []

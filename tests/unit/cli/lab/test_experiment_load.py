"""The workload of a point: precedence among alias keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.lab.study_points import build_url_points
from enginebay.config.layers.layer_sources import parse_assignments
from enginebay.config.loader import load_config
from enginebay.lab.study.study_point import StudyPoint, count_requests, plan_run

SYNTHETIC = {"kind": "synthetic", "input_tokens": 512, "output_tokens": 64}


def point(folder: Path, *sets: str, flag: str | None = None, **config: Any) -> StudyPoint:
    """Plan the workload of a config with these flags; `flag` is --profile."""
    file = folder / "bay.yaml"
    file.write_text(json.dumps(config))
    flags = {"profile": flag, **parse_assignments(list(sets))}
    (found,) = build_url_points(load_config(file, environ={}, flags=flags), "http://127.0.0.1:1", "m", None)
    return found


def test_a_limit_of_the_flag_wins_though_it_is_the_usual_one(tmp_path: Path) -> None:
    limits = {"until_stable": True, "max_requests": 500, "requests": 7}
    found = point(tmp_path, flag="poisson:rate=4,until_stable=false,max_requests=10000", limits=limits)
    assert found.limits == {"until_stable": False, "max_requests": 10_000, "requests": 7}


def test_a_models_own_sampling_counts_on_a_server_that_runs(tmp_path: Path) -> None:
    models = {"m": {"sampling": {"temperature": 0.7, "max_tokens": 9, "seed": 5}}, "other": {"sampling": {"top_k": 3}}}
    config = {"sampling": {"temperature": 0.2, "top_p": 0.9}, "models": models}
    found = point(tmp_path, **config)
    assert found.body == {"temperature": 0.7, "top_p": 0.9, "seed": 5}
    assert found.workload["output_tokens"] == 9 and found.seed == 5
    flagged = point(tmp_path, "sampling.temperature=0.1", "max_output_tokens=3", **config)
    assert flagged.body["temperature"] == 0.1 and flagged.workload["output_tokens"] == 3


def test_the_older_names_win_over_the_workload_where_a_later_source_has_them(tmp_path: Path) -> None:
    both = {"max_input_tokens": 16, "max_output_tokens": 8, "num_input_prompts": 4}
    in_one_file = point(tmp_path, workload={**SYNTHETIC, "requests": 9}, **both).workload
    assert [in_one_file[name] for name in ("input_tokens", "output_tokens", "requests")] == [512, 64, 9]
    flags = [f"{name}={value}" for name, value in both.items()]
    later = point(tmp_path, *flags, workload={**SYNTHETIC, "requests": 9}).workload
    assert [later[name] for name in ("input_tokens", "output_tokens", "requests")] == [16, 8, 4]
    ends_itself = point(tmp_path, "max_output_tokens=8", workload=SYNTHETIC, min_output_tokens=1)
    assert "output_tokens" not in ends_itself.workload and ends_itself.body["max_tokens"] == 8


def test_the_older_names_of_a_file_of_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}')
    file = {"kind": "jsonl", "path": "p.jsonl", "max_input_tokens": 512}
    assert point(tmp_path, workload=file, max_input_tokens=16).workload["max_input_tokens"] == 512
    assert point(tmp_path, "max_input_tokens=16", workload=file).workload["max_input_tokens"] == 16


@pytest.mark.parametrize(
    ("profile", "limits", "count"),
    [
        ({"kind": "poisson", "rate": 20}, {"duration_s": 6}, 40),
        ({"kind": "poisson", "rate": 20}, {"duration_s": 1}, 20),
        ({"kind": "poisson", "rate": 20}, {"until_stable": True}, 40),
        ({"kind": "closed", "concurrency": 2}, {"requests": 30}, 30),
        ({"kind": "closed", "concurrency": 2}, {"requests": 50, "duration_s": 9}, 40),
        ({"kind": "closed", "concurrency": 2}, {"duration_s": 9}, 40),
        ({"kind": "ramp", "from_rate": 1, "to_rate": 9, "duration_s": 20}, {}, 40),
        ({"kind": "offline"}, {}, 40),
    ],
)
def test_no_more_prompts_are_sent_than_configured(
    tmp_path: Path, profile: dict[str, Any], limits: dict[str, Any], count: int
) -> None:
    for asked in ({"num_input_prompts": 40}, {"workload": {**SYNTHETIC, "requests": 40}}):
        assert count_requests(plan_run(point(tmp_path, profile=profile, limits=limits, **asked))) == count


def test_a_number_in_the_profile_of_a_flag_wins_over_that_of_the_file(tmp_path: Path) -> None:
    for asked in ({"num_input_prompts": 40}, {"workload": {**SYNTHETIC, "requests": 40}}):
        flagged = point(tmp_path, flag="poisson:rate=4,requests=200", **asked)
        assert count_requests(plan_run(flagged)) == 200
        assert count_requests(plan_run(point(tmp_path, flag="poisson:rate=4", **asked))) == 40
    both = point(tmp_path, "num_input_prompts=40", flag="poisson:rate=4,requests=200")
    assert count_requests(plan_run(both)) == 40

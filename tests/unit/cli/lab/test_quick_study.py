"""Studies without a size of their own, dry runs, and what is said about their duration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.lab import quick_study
from enginebay.cli.main import main
from enginebay.config.loader import load_config
from enginebay.errors import EngineFailed, UsageError
from enginebay.lab.loadgen import calibration
from enginebay.lab.store.study_plan import Study
from enginebay.lab.study import engine_speed, run_study
from enginebay.lab.study.engine_speed import EngineSpeed
from enginebay.lab.study.study_point import StudyPoint

LAPTOP = EngineSpeed(start_s=3.0, first_s=0.3, token_s=0.015, batch_first_s=2.0, batch_token_s=0.06)
WORKLOAD = {"kind": "synthetic", "input_tokens": 8, "output_tokens": 128}
FAKE = ["experiment", "-m", "toy", "-e", "fake"]


@pytest.fixture()
def carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Study]:
    """The planned studies. Nothing is measured."""
    found: list[Study] = []

    def carry_out(context: Any, study: Study, *_: Any) -> run_study.StudyOutcome:
        found.append(study)
        return run_study.StudyOutcome(study.id, [], {})

    monkeypatch.setattr(run_study, "run_study", carry_out)
    monkeypatch.setattr(engine_speed, "measure_speed", lambda *_: LAPTOP)
    monkeypatch.setattr(calibration, "calibrate", lambda: calibration.ClientCeiling(1.0, 1.0, 1))
    monkeypatch.setattr("enginebay.cli.lab.results.show_study_results", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    return found


def test_a_study_without_a_size_is_sized_by_the_engine(
    carried_out: list[Study], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(FAKE) == 0
    (study,) = carried_out
    workload = study.points[0]["workload"]
    assert 8 <= workload["requests"] < 100 and workload["output_tokens"] in (128, 64, 32)
    assert len(study.steps) == 3  # fewer cycles are never valid
    said = capsys.readouterr().err
    assert f"each run sends {workload['requests']} requests" in said and "fake" in said
    assert "3 runs of 1 point, about 2" in said


def test_an_engine_that_fails_does_not_end_the_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The study records its failure; the others decide the size."""

    def measure(point: StudyPoint, *_: Any) -> EngineSpeed:
        if point.label == "broken":
            raise EngineFailed("it broke")
        return LAPTOP

    monkeypatch.setattr(engine_speed, "measure_speed", measure)
    points = [StudyPoint(label, "fake", "toy", WORKLOAD, {"kind": "offline"})
              for label in ("good", "broken")]  # fmt: skip
    config = load_config(None, environ={})
    sized = quick_study.size_points(points, config, lambda _: None)
    assert [seconds is None for seconds in sized.expected_s] == [False, True]
    assert {point.workload["requests"] for point in sized.points} == {
        quick_study.size_points(points[:1], config, lambda _: None).points[0].workload["requests"]
    }
    assert "good starts in" in sized.summary and "broken" not in sized.summary
    with pytest.raises(EngineFailed, match="it broke"):
        quick_study.size_points(points[1:], config, lambda _: None)


@pytest.mark.parametrize(
    "size",
    [["--profile", "closed:concurrency=2"], ["--set", "limits.requests=30"], ["--set", "num_input_prompts=30"],
     ["--set", "workload.requests=30"], ["--set", "traffic_simulation.enabled=true"]],
)  # fmt: skip
def test_a_size_of_the_user_stays(
    carried_out: list[Study], size: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FAKE, *size]) == 0
    assert len(carried_out[0].steps) == 1 and carried_out[0].points[0]["workload"]["output_tokens"] == 128
    assert main([*FAKE, *size, "--quick"]) == 2
    assert "--quick chooses the number of requests, but " in capsys.readouterr().err


def test_cycles_and_lengths_of_the_user_stay(carried_out: list[Study]) -> None:
    sets = ["--set", "limits.stall_timeout_s=300", "--set", "max_output_tokens=48"]
    assert main([*FAKE, "--cycles", "5", *sets]) == 0
    (study,) = carried_out
    assert len(study.steps) == 5 and study.points[0]["workload"]["output_tokens"] == 48
    assert study.points[0]["limits"] == {"stall_timeout_s": 300}


def test_a_file_keeps_its_size_unless_quick_is_asked_for(carried_out: list[Study], tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("model: toy\nengine: fake\n")
    assert main(["experiment", "study.yaml"]) == 0
    assert main(["experiment", "-c", "study.yaml", "--quick"]) == 0
    plain, quick = carried_out
    assert "requests" not in plain.points[0]["workload"] or plain.points[0]["workload"]["requests"] is None
    assert len(plain.steps) == 1 and len(quick.steps) == 3 and quick.points[0]["workload"]["requests"]


def test_odd_combinations_are_refused(carried_out: list[Study], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "a.yaml", "-c", "b.yaml"]) == 2
    assert "pass the file once" in capsys.readouterr().err
    assert main(["experiment", "--url", "http://127.0.0.1:1", "--quick"]) == 2
    assert "remove --quick or --url" in capsys.readouterr().err
    assert not carried_out


def test_the_key_that_sets_the_size_is_named() -> None:
    assert quick_study.find_size_key(load_config(None, environ={})) is None
    for key in ("workload.requests", "num_input_prompts", "limits.requests"):
        config = load_config(None, flags={key: 5}, environ={})
        with pytest.raises(UsageError, match=key.removesuffix(".requests")):
            quick_study.is_quick(config, True, from_file=False)


def test_a_dry_run_says_how_long_it_takes_or_what_is_unknown(
    carried_out: list[Study], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*FAKE, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "up to 100 requests" in out and "expected duration: about 2.5 min" in err and "too_few_cycles" not in err
    assert main([*FAKE, "--dry-run", "--profile", "poisson:rate=1,requests=120", "--cycles", "3"]) == 0
    err = capsys.readouterr().err
    assert "expected duration: unknown, at least 6 min: fake with toy has not run this workload" in err
    assert main([*FAKE, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quick"] is True and told["cycles"] == 3 and told["expected_run_s"] == [None]
    assert not carried_out


def test_a_dry_run_needs_no_engine(carried_out: list[Study], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "-m", "toy", "-e", "vllm", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "vllm offline" in out and "not checked: the engine vllm is not installed" in err
    assert "bay engines install vllm" in err


def test_a_dry_run_needs_no_lab_packages(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'scipy', 'pyarrow')))\n"
    hidden += "import importlib.util as util; found = util.find_spec\n"
    hidden += "util.find_spec = lambda name, *a: None if name in ('numpy', 'scipy', 'pyarrow') else found(name, *a)\n"
    code = hidden + f"from enginebay.cli.main import main; sys.exit(main({[*FAKE, '--dry-run']!r}))"
    environment = {**os.environ, "ENGINEBAY_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fake offline" in done.stdout and "not checked without numpy, scipy, pyarrow" in done.stderr
    assert "pip install 'enginebay[lab]'" in done.stderr and "expected duration" in done.stderr


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "about 0 s"), (89, "about 89 s"), (150, "about 2.5 min"), (7800, "about 2 h 10 min")]
)
def test_estimates_are_round(seconds: float, text: str) -> None:
    assert quick_study.format_about(seconds) == text


def test_the_duration_of_known_points_is_summed() -> None:
    point = StudyPoint("a offline", "a", "m", {"kind": "synthetic", "input_tokens": 8}, {"kind": "offline"})
    assert quick_study.describe_duration([point, point], [60.0, 30.0], 4).startswith("expected duration: about 6 min")

"""`bay experiment --resume`: what it resumes, what it rejects, and dry runs. Nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.main import main
from enginebay.engines import registry
from enginebay.lab.loadgen import calibration
from enginebay.lab.store.study_plan import lock_study
from enginebay.lab.study import run_study
from enginebay.lab.study.study_point import StudyPoint
from tests.unit.lab.store.run_files import write_run

POINT = StudyPoint("a offline", "a", "m", {"kind": "synthetic", "input_tokens": 8}, {"kind": "offline"})


@pytest.fixture()
def carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The planned studies."""
    found: list[str] = []

    def carry_out(bench: Any, study: Any, *_: Any) -> run_study.StudyOutcome:
        found.append(study.id)
        return run_study.StudyOutcome(study.id, [], {})

    monkeypatch.setattr(run_study, "run_study", carry_out)
    monkeypatch.setattr(calibration, "calibrate", lambda: calibration.ClientCeiling(1.0, 1.0, 1))
    monkeypatch.setattr("enginebay.cli.lab.results.show_study_results", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    return found


@pytest.fixture()
def runs(tmp_path: Path) -> Path:
    return tmp_path / "home" / "runs"


def begun(runs: Path) -> str:
    """A study of three cycles, of which one is finished."""
    study = run_study.create_study(runs, [POINT], 3, {})
    write_run(runs, "r1", "a", study={"id": study.id, "point": 0, "cycle": 1, "label": POINT.label})
    return study.id


def test_a_missing_engine_fails_before_others_are_prepared(
    carried_out: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        "enginebay.cli.lab.study_points.build_engine_points", lambda one, *_, **__: made.append(one.engine)
    )
    assert main(["experiment", "-m", "toy", "-e", "fake", "-e", "vllm"]) == 1
    assert "the engine vllm is not installed" in capsys.readouterr().err and not made and not carried_out


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("fake.step_s", ["step_s"]), ("step_s", ["step_s"]), ("models.toy.fake.step_s", ["step_s"]), ("sampling.seed", []),
        ("inference.batching.strategy", []),
    ],
)  # fmt: skip
def test_the_settings_that_a_study_varies(key: str, name: list[str]) -> None:
    from enginebay.cli.lab.study_points import _match_setting

    assert _match_setting(key, registry.get_spec("fake").settings) == name


def test_a_dry_run_lists_remaining_runs(carried_out: list[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = begun(runs)
    assert main(["experiment", "--resume", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()[1:]] == [["1", "2", "a", "offline"], ["1", "3", "a", "offline"]]
    assert f"2 of 3 runs of {study} remain; nothing was run" in err and "resuming" not in err
    assert main(["experiment", "--resume", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["study"], told["runs"], [step["cycle"] for step in told["remaining"]]) == (study, 3, [2, 3])
    assert not carried_out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["study.yaml"], "CONFIG"),
        (["--engine", "vllm"], "--engine"),
        (["--backend", "vllm"], "--engine"),
        (["--preset", "p"], "--preset"),
        (["--model", "m"], "--model"),
        (["--url", "http://127.0.0.1:1"], "--url"),
        (["--profile", "offline"], "--profile"),
        (["--cycles", "9"], "--cycles"),
        (["--tokenizer", "bytes"], "--tokenizer"),
        (["--set", "vllm.max_num_seqs=4"], "--set"),
        (["--online"], "--offline"),
        (["--ignore-engine-warnings"], "--ignore-engine-warnings"),
    ],
)
def test_options_that_would_change_the_plan_are_rejected(
    carried_out: list[str], runs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    begun(runs)
    assert main(["experiment", "--resume", *arguments]) == 2
    assert f"keeps the plan of the study: {named} cannot change it" in capsys.readouterr().err
    assert not carried_out


def test_output_options_may_change(carried_out: list[str], runs: Path) -> None:
    study = begun(runs)
    assert main(["experiment", "--resume", "--study", study, "--allow-mixed-engines", "--json"]) == 0
    assert carried_out == [study]


def test_study_needs_resume(carried_out: list[str], runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--study", begun(runs)]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert not carried_out


def test_a_study_that_runs_is_not_carried_out_twice(
    carried_out: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = begun(runs)
    with lock_study(runs, study):
        assert main(["experiment", "--resume"]) == 2
        assert f"another process is running {study}" in capsys.readouterr().err
        assert main(["experiment", "--resume", "--dry-run"]) == 0
    assert not carried_out
    assert main(["experiment", "--resume"]) == 0
    assert carried_out == [study]


def test_corrupt_runs_are_named_and_repeated(
    carried_out: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = begun(runs)
    (runs / "r1" / "tokens.parquet").unlink()
    (runs / "studies" / "study-99990101-000000.json").write_bytes(b"{")
    assert main(["experiment", "--resume", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert f"3 of 3 runs of {study} remain" in said
    assert "skipped: the run in" in said and "study-99990101-000000.json cannot be read" in said
    assert main(["experiment", "--resume"]) == 0
    assert carried_out == [study]


@pytest.mark.parametrize("dry_run", [True, False])
def test_predicted_verdicts_are_printed_before_the_start(
    carried_out: list[str], capsys: pytest.CaptureFixture[str], dry_run: bool
) -> None:
    load = ["--profile", "closed:concurrency=1,requests=10", "--set", "slo.ttft_p95=0.8", "--tokenizer", "bytes"]
    asked = ["experiment", "--url", "http://127.0.0.1:1", "-m", "m", *load, *(["--dry-run"] if dry_run else [])]
    assert main(asked) == 0
    said = capsys.readouterr().err.splitlines()
    assert "invalid: too_few_for_percentile: 10 answers" in said[0] and "informative: too_few_cycles: 1 of" in said[1]
    assert ("1 point in 1 cycle: 1 run;" if dry_run else ": 1 run of 1 point") in "\n".join(said[2:])
    assert bool(carried_out) is not dry_run


@pytest.mark.parametrize("more", [["--dry-run"], []])
@pytest.mark.parametrize(("load", "cycles"), [("rate=0.1,duration_s=6", "3"), ("rate=0.01,duration_s=6", "1")])
def test_a_load_that_sends_nothing_is_refused_before_anything_is_written_down(
    carried_out: list[str], runs: Path, capsys: pytest.CaptureFixture[str], load: str, cycles: str, more: list[str]
) -> None:
    """With this seed the first two cycles of the first load send one request, and the third sends none."""
    url = ["--url", "http://127.0.0.1:1", "-m", "m", "--set", "random_seed=1"]
    assert main(["experiment", *url, "--profile", f"poisson:{load}", "--cycles", cycles, *more]) == 2
    said = capsys.readouterr().err
    assert "sends no request" in said and "duration" in said and "Traceback" not in said
    assert not carried_out and not runs.exists()
    assert main(["experiment", "--resume"]) != 0
    assert "no study to resume" in capsys.readouterr().err

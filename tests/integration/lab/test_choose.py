"""`bay choose` on two engines: one whose delays are settings, and a real one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from enginebay import models
from tests.integration.lab.conftest import Lab

# One request at a time, 0.6 s each: hardly more than 1.7 requests/s.
SLOW = ("--set", "fake.step_s=0.3", "--set", "fake.max_batch=1")
# Coarse and short, and the engines are known to differ: this tests the path from a run to a choice, not a figure.
QUICK = ("--input-tokens", "8", "--output-tokens", "2", "--requests", "8", "--seconds", "1", "--resolution", "0.5",
         "--most-runs", "3", "--set", "parity=false", "--even-if-invalid")  # fmt: skip


def result(process: subprocess.CompletedProcess[str]) -> Any:
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture(scope="module")
def model() -> str:
    return str(models.ensure_model("smollm2").path)


@pytest.mark.slow
def test_the_faster_engine_is_chosen_written_and_used(lab: Lab, model: str, tmp_path: Path) -> None:
    out = tmp_path / "chosen.yaml"
    done = lab(
        "choose", model, "--slo", "ttft_p50=3", "--engines", "fake,llamacpp", *SLOW, *QUICK, "-o", str(out), "--json"
    )
    found = result(done)
    rates = {candidate["engine"]: candidate["rate"] for candidate in found["candidates"]}
    assert found["engine"] == "llamacpp" and 0 < rates["fake"] < rates["llamacpp"]
    assert rates["fake"] < 2.2
    assert all(candidate["energy"] for candidate in found["candidates"])  # joules, or why there are none
    assert "[1/2] fake poisson-" in done.stderr and "to confirm" in done.stderr

    why = result(lab("engines", "why", model, "--json"))
    assert why["engine"] == "llamacpp"
    assert any("measured on 20" in reason and "within ttft_p50=3, next fake" in reason for reason in why["reasons"])
    assert "engine: llamacpp" in out.read_text()
    assert lab("config", "validate", str(out)).returncode == 0

    listed = result(lab("results", "list", "--json"))["runs"]
    assert {run["id"] for run in listed} == {run for candidate in found["candidates"] for run in candidate["runs"]}

    refused = lab("choose", model, "--slo", "ttft_p50=3", "--engines", "fake", "-o", str(out))
    assert refused.returncode == 2 and "--force" in refused.stderr
    assert lab("choose", model, "--forget").returncode == 0
    assert "measured" not in lab("engines", "why", model).stdout


@pytest.mark.slow
def test_a_failing_engine_does_not_stop_the_others_and_without_a_rate_nothing_is_chosen(
    lab: Lab, model: str, tmp_path: Path
) -> None:
    done = lab("choose", model, "--slo", "ttft_p95=0.0001", "--engines", "fake,llamacpp", "--set",
               "fake.fail_load=error", *QUICK, "-o", str(tmp_path / "x.yaml"), "--json")  # fmt: skip
    assert done.returncode == 1 and "no engine meets ttft_p95=0.0001" in done.stderr
    whys = {one["engine"]: one["why_none"] for one in json.loads(done.stdout)["candidates"]}
    assert "could not be run" in whys["fake"] and "one request at a time" in whys["llamacpp"]
    assert [one.name for one in tmp_path.iterdir()] == ["home"]

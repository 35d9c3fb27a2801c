"""An engine of another package is placed, evicted, preset, swept and shown like the built-in ones.

It is installed in its own environment only, so bay must run its memory estimate there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fleet.fleet_client import FleetClient, run_fleet
from tests.integration.lab.conftest import QUICK

pytestmark = pytest.mark.slow

ECHO = Path(__file__).parents[2] / "examples" / "engine-echo"
MIB = 2**20


def run_bay(home: Path, *arguments: str, may_fail: bool = False) -> str:
    command = [sys.executable, "-m", "enginebay.cli.main", *arguments]
    environ = {**os.environ, "ENGINEBAY_HOME": str(home)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300)
    assert may_fail or done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    run_bay(folder, "engines", "install", str(ECHO))
    return folder


@pytest.fixture
def fleet(home: Path) -> Iterator[FleetClient]:
    def echo(mebibytes: int) -> dict[str, Any]:
        return {"engine": "echo", "load": "use", "echo": {"cache_bytes": mebibytes * MIB}}

    models = {"small": echo(100), "medium": echo(300), "large": echo(490)}
    with run_fleet(models, home, memory_bytes=500 * MIB, min_residency_s=0) as client:
        yield client


def test_its_own_memory_estimate_decides_what_is_evicted(fleet: FleetClient) -> None:
    """A worker of this engine really takes well under 100 MiB: only the estimate can evict."""
    assert fleet.ask_text("small") and fleet.ask_text("medium")
    assert fleet.read_states() == {"small": "awake", "medium": "awake", "large": "cold"}
    assert fleet.ask_text("large")
    assert fleet.read_states() == {"small": "cold", "medium": "cold", "large": "awake"}


def test_its_preset_alias_and_suggested_values_work(home: Path, tmp_path: Path) -> None:
    assert "echo-slow" in run_bay(home, "presets")
    config = tmp_path / "config.yaml"
    config.write_text("engine: echo\necho: {pause: 0.5}\nsweep: {echo.step_s: auto}\n")
    shown = json.loads(run_bay(home, "config", "show", "--config", str(config), "--json"))["config"]
    assert shown["echo"]["step_s"] == 0.5
    assert shown["sweep"] == {"echo.step_s": [0.0, 0.01, 0.1]}


def test_it_is_listed_with_its_capabilities(home: Path) -> None:
    assert "echo" in run_bay(home, "engines", "list")
    assert "ECHO 0.1.0" in run_bay(home, "engines", "matrix", "--engine", "echo")


def test_it_is_measured(home: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    changes = {"engine": "echo", "sweep": {"echo.step_s": [0.001, 0.01]}, "fake": {}, "num_input_prompts": 12}
    study.write_text(json.dumps({**QUICK, **changes}))
    # Fails if the machine was too busy for a valid study: this is about the engine.
    found = json.loads(run_bay(home, "experiment", str(study), "--json", may_fail=True))
    assert len(found["points"]) == 2
    runs = json.loads(run_bay(home, "results", "show", "latest", "--json"))
    assert [(run["engine"]["kind"], run["measures"]["answered"]) for run in runs] == [("echo", 12)] * 2

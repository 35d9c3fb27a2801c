"""What is said of a study where nobody can see a line change."""

from __future__ import annotations

import pytest

from enginebay.cli.experiment_progress import StudyProgress
from enginebay.lab.runs.study import Step


def test_without_a_terminal_each_phase_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StudyProgress()
    progress.say("measuring the load client itself")
    progress.began(Step(0, 1, "vllm c8"), 1, 4)
    for phase in ("starting vllm", "measuring", "measuring"):
        progress.say(phase)
    assert capsys.readouterr().err.splitlines() == [
        "measuring the load client itself",
        "[1/4] vllm c8, cycle 1",
        "[1/4] vllm c8, cycle 1: starting vllm",
        "[1/4] vllm c8, cycle 1: measuring",
    ]

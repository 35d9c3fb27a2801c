"""Progress of a study off a terminal."""

from __future__ import annotations

import pytest

from enginebay.cli.lab.study_progress import StudyProgress
from enginebay.lab.store.study_plan import StudyStep


def test_without_a_terminal_each_phase_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StudyProgress()
    progress.show_phase("calibrating the load generator")
    progress.begin_run(StudyStep(0, 1, "vllm c8"), 1, 4)
    for phase in ("starting vllm", "measuring", "measuring"):
        progress.show_phase(phase)
    assert capsys.readouterr().err.splitlines() == [
        "calibrating the load generator",
        "[1/4] vllm c8, cycle 1",
        "[1/4] vllm c8, cycle 1: starting vllm",
        "[1/4] vllm c8, cycle 1: measuring",
    ]

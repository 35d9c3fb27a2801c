"""Progress of a study off a terminal."""

from __future__ import annotations

import pytest

from enginebay.cli.lab import study_progress
from enginebay.cli.lab.study_progress import StudyProgress
from enginebay.errors import EnginebayError
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


class Clock:
    """Replaces the module `time` in study_progress."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_time_left_is_expected_at_first_and_then_follows_from_the_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(study_progress, "time", clock)
    steps = [StudyStep(point, cycle, f"e{point}") for cycle in (1, 2) for point in (0, 1)]
    progress = StudyProgress(steps, {0: 40.0, 1: 20.0})
    failed = EnginebayError("it failed")
    for number, (step, left) in enumerate(zip(steps, ("2 min", "2 min", "1.5 min", "20 s"), strict=True), 1):
        progress.begin_run(step, number, len(steps))
        assert capsys.readouterr().err.splitlines()[0].endswith(f"; about {left} left")
        clock.now += 70.0 if step.point == 0 else 20.0
        progress.end_run(step, failed)
        capsys.readouterr()


def test_without_any_estimate_there_is_no_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [StudyStep(0, 1, "a"), StudyStep(1, 1, "b")]
    progress = StudyProgress(steps, {0: 40.0})
    progress.begin_run(steps[0], 1, 2)
    assert capsys.readouterr().err == "[1/2] a, cycle 1\n"

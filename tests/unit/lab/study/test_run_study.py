"""A study from its plan to its runs, with fake runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enginebay.errors import LoadFailed
from enginebay.lab.loadgen.calibration import ClientCeiling
from enginebay.lab.store.run_errors import CorruptStudy, UnknownRun
from enginebay.lab.store.study_plan import StudyStep, load_study, study_path
from enginebay.lab.study import run_study
from enginebay.lab.study.parity_reference import ParityReference
from enginebay.lab.study.run_point import StudyContext
from enginebay.lab.study.study_point import StudyPoint
from tests.unit.lab.store.run_files import write_run

POINT = StudyPoint("a", "a", "m", {"kind": "synthetic", "input_tokens": 8, "output_tokens": 4}, {"kind": "offline"})
POINTS = [POINT, replace(POINT, label="b", engine="b"), replace(POINT, label="c", engine="c")]
ANSWER = {"prompt_ids": [1], "token_ids": [7], "logprobs": [-1.0], "text": ""}


class FakeRunPoint:
    """Replaces `run_point`: records its calls, and writes a run."""

    def __init__(self, fails: tuple[str, ...] = (), killed_after: int | None = None) -> None:
        self.calls: list[tuple[str, int, int | None, str | None]] = []
        self._fails = fails
        self._killed_after = killed_after

    def __call__(
        self, context: StudyContext, point: StudyPoint, step: StudyStep, reference: ParityReference | None = None
    ) -> Path:
        if self._killed_after is not None and len(self.calls) >= self._killed_after:
            raise KeyboardInterrupt
        self.calls.append((point.label, step.cycle, context.cycles, reference.label if reference else None))
        if point.label in self._fails:
            raise LoadFailed("it did not start", "")
        study = {"id": context.study_id, "point": step.point, "cycle": step.cycle, "label": point.label}
        parity = {"answers": [ANSWER], "tokens": 1}
        name = f"20261115-143015-{point.label}-m-offline-{step.cycle}"
        return write_run(context.runs_dir, name, point.engine, parity=parity, study=study).path


def run(folder: Path, study: Any, runner: FakeRunPoint, monkeypatch: pytest.MonkeyPatch) -> run_study.StudyOutcome:
    monkeypatch.setattr(run_study, "run_point", runner)
    context = StudyContext(runs_dir=folder, study_id="", ceiling=ClientCeiling(1.0, 1.0, 1))
    return run_study.run_study(context, study, lambda *_: None, lambda *_: None)


def test_studies_of_the_same_second_have_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second = datetime(2026, 11, 15, 14, 30, 15, tzinfo=UTC)
    monkeypatch.setattr(run_study, "utc_now", lambda: second)
    studies = [run_study.create_study(tmp_path, POINTS[:1], cycles, {}) for cycles in (1, 2, 3)]
    assert [study.id for study in studies] == [f"study-20261115-143015{end}" for end in ("", "-2", "-3")]
    assert [len(load_study(tmp_path, study.id).steps) for study in studies] == [1, 2, 3]


def test_every_run_knows_the_studys_cycles_and_its_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunPoint()
    outcome = run(tmp_path, run_study.create_study(tmp_path, POINTS[:2], 2, {}), runner, monkeypatch)
    assert runner.calls == [("a", 1, 2, None), ("b", 1, 2, "a"), ("b", 2, 2, "a"), ("a", 2, 2, None)]
    assert len(outcome.runs) == 4 and not outcome.failed


def test_a_point_that_cannot_be_run_is_no_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunPoint(fails=("a",))
    outcome = run(tmp_path, run_study.create_study(tmp_path, POINTS, 1, {}), runner, monkeypatch)
    assert runner.calls == [("a", 1, 1, None), ("b", 1, 1, None), ("c", 1, 1, "b")]
    assert list(outcome.failed) == [0]


def test_a_resumed_study_knows_its_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = run_study.create_study(tmp_path, POINTS, 1, {})
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, study, FakeRunPoint(killed_after=1), monkeypatch)
    runner = FakeRunPoint()
    resumed, problems = run_study.find_study_to_resume(tmp_path, None)
    run(tmp_path, resumed, runner, monkeypatch)
    assert not problems
    assert runner.calls == [("b", 1, 1, "a"), ("c", 1, 1, "a")]


def test_a_corrupt_plan_does_not_stop_other_studies(tmp_path: Path) -> None:
    study = run_study.create_study(tmp_path, POINTS, 1, {})
    run = write_run(tmp_path, "r1", study={"id": study.id, "point": 0, "cycle": 1})
    (run.path / "tokens.parquet").unlink()
    later = tmp_path / "studies" / "study-99990101-000000.json"
    later.write_bytes(b"{")
    found, problems = run_study.find_study_to_resume(tmp_path, None)
    assert found.id == study.id
    assert [problem.kind for problem in problems] == ["corrupt_study", "corrupt_run"]
    with pytest.raises(CorruptStudy):
        run_study.find_study_to_resume(tmp_path, later.stem)
    study_path(tmp_path, study.id).unlink()
    with pytest.raises(UnknownRun, match="no study to resume") as refused:
        run_study.find_study_to_resume(tmp_path, None)
    assert later.name in refused.value.hint

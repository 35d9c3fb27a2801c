"""A study resumes where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from enginebay.lab.store.run_errors import BusyStudy, CorruptStudy, UnknownRun
from enginebay.lab.store.run_reader import list_runs
from enginebay.lab.store.study_plan import (
    Study,
    StudyStep,
    find_finished_runs,
    list_remaining,
    list_study_ids,
    load_study,
    lock_study,
    save_study,
)
from tests.unit.lab.store.run_files import write_run

STEPS = tuple(StudyStep(point, cycle, f"p{point}") for cycle in (1, 2) for point in (0, 1))
STUDY = Study("20261115-s", "2026-11-15T14:30:15+00:00", STEPS, ({"engine": "a"}, {"engine": "b"}), {"num_cycles": 2})


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = save_study(tmp_path, STUDY)
    assert path == tmp_path / "studies" / "20261115-s.json"
    assert load_study(tmp_path, STUDY.id) == STUDY
    assert list_study_ids(tmp_path) == [STUDY.id]
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert list_runs(tmp_path) == ([], [])


@pytest.mark.parametrize("links", [True, False])
def test_a_plan_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refused(self: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(Path, "hardlink_to", refused)
    path = save_study(tmp_path, STUDY)
    with pytest.raises(FileExistsError):
        save_study(tmp_path, replace(STUDY, created="later"))
    assert load_study(tmp_path, STUDY.id) == STUDY
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_only_one_process_at_a_time_runs_a_study(tmp_path: Path) -> None:
    save_study(tmp_path, STUDY)
    save_study(tmp_path, replace(STUDY, id="another"))
    with lock_study(tmp_path, STUDY.id):
        with pytest.raises(BusyStudy, match=STUDY.id), lock_study(tmp_path, STUDY.id):
            pass
        with lock_study(tmp_path, "another"):
            assert load_study(tmp_path, STUDY.id) == STUDY
    with lock_study(tmp_path, STUDY.id):
        pass


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    for run_id, study_id, step in (("r1", STUDY.id, STEPS[0]), ("r2", "another", STEPS[1]), ("r3", STUDY.id, STEPS[2])):
        write_run(tmp_path, run_id, study={"id": study_id, "point": step.point, "cycle": step.cycle, "label": "other"})
    (tmp_path / "r4.partial").mkdir()
    done, problems = find_finished_runs(tmp_path, STUDY.id)
    assert not problems
    assert sorted(run.id for run in done.values()) == ["r1", "r3"]
    assert list_remaining(STUDY, done) == [STEPS[1], STEPS[3]]


def test_a_corrupt_run_is_run_again(tmp_path: Path) -> None:
    run = write_run(tmp_path, study={"id": STUDY.id, "point": 0, "cycle": 1})
    assert list_remaining(STUDY, find_finished_runs(tmp_path, STUDY.id)[0]) == list(STEPS[1:])
    (run.path / "tokens.parquet").unlink()
    done, problems = find_finished_runs(tmp_path, STUDY.id)
    assert list_remaining(STUDY, done) == list(STEPS)
    assert [problem.folder for problem in problems] == [run.path]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": 5}', b"\xff"])
def test_an_unreadable_plan_is_reported(tmp_path: Path, content: bytes) -> None:
    path = save_study(tmp_path, STUDY)
    path.write_bytes(content)
    with pytest.raises(CorruptStudy, match=path.name):
        load_study(tmp_path, STUDY.id)


def test_a_plan_that_is_not_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "studies" / "s.json").mkdir(parents=True)
    with pytest.raises(CorruptStudy, match=r"s\.json cannot be read"):
        load_study(tmp_path, "s")


def test_an_unknown_study_is_reported_with_the_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun, match="no studies here"):
        load_study(tmp_path, "x")
    save_study(tmp_path, STUDY)
    with pytest.raises(UnknownRun, match=STUDY.id):
        load_study(tmp_path, "x")

"""Which runs a name selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.lab.store.run_errors import CorruptRun, UnknownRun
from enginebay.lab.store.run_selection import select_runs
from enginebay.lab.store.study_plan import study_path
from tests.unit.lab.store.run_files import write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path, "2026-a-1", study={"id": "first", "cycle": 1})
    write_run(tmp_path, "2026-a-12", study={"id": "first", "cycle": 2})
    write_run(tmp_path, "2026-b-1", study={"id": "second", "cycle": 1})
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["2026-a-1"], ["2026-a-1"]),  # exact, though another starts with it
        (["2026-b"], ["2026-b-1"]),
        (["first"], ["2026-a-1", "2026-a-12"]),
        (["latest"], ["2026-b-1"]),
        (["latest", "second", "2026-b-1", "2026-a-12"], ["2026-b-1", "2026-a-12"]),  # each once
    ],
)
def test_names_that_select_runs(folder: Path, names: list[str], expected: list[str]) -> None:
    found, problems = select_runs(folder, names)
    assert [run.id for run in found] == expected and not problems


def test_a_path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("empty")
    assert [run.id for run in select_runs(elsewhere, [str(folder / "2026-b-1")])[0]] == ["2026-b-1"]
    with pytest.raises(UnknownRun):
        select_runs(elsewhere, [str(folder / "none")])


@pytest.mark.parametrize(
    ("name", "said"), [("2026-a", "2 runs start with"), ("x", "unknown run or study 'x'"), ("", "unknown run")]
)
def test_names_that_select_no_run_or_several(folder: Path, name: str, said: str) -> None:
    with pytest.raises(UnknownRun, match=said):
        select_runs(folder, [name])


def test_a_study_that_has_no_runs_yet(tmp_path: Path) -> None:
    path = study_path(tmp_path, "study-1")
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(UnknownRun, match="study-1 has no runs yet"):
        select_runs(tmp_path, ["study-1"])


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun, match="no runs in"):
        select_runs(tmp_path / "none", ["latest"])


def test_a_corrupt_run_that_is_named_raises(folder: Path) -> None:
    (folder / "2026-b-1" / "tokens.parquet").unlink()
    (folder / "2026-a-12" / "manifest.json").unlink()
    for name in ("latest", "second", "2026-b-1", "2026-b", "2026-a-12"):
        with pytest.raises(CorruptRun):
            select_runs(folder, [name])
    found, problems = select_runs(folder, ["2026-a-1"])
    assert [run.id for run in found] == ["2026-a-1"] and not problems
    with pytest.raises(UnknownRun, match="2 runs start with"):  # also of one that cannot be read
        select_runs(folder, ["2026-a"])


def test_a_corrupt_run_is_left_out_of_its_study_and_reported(folder: Path) -> None:
    (folder / "2026-a-12" / "tokens.parquet").unlink()
    found, problems = select_runs(folder, ["first"])
    assert [run.id for run in found] == ["2026-a-1"]
    assert [problem.wrong for problem in problems] == ["tokens.parquet is missing"]
    (folder / "2026-a-12" / "manifest.json").unlink()  # now its study is unknown
    for names in (["first"], ["latest"], ["first", "latest"]):
        found, problems = select_runs(folder, names)
        assert found and [problem.folder.name for problem in problems] == ["2026-a-12"]

"""`bay report` on runs that were really written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from enginebay.cli.main import main
from tests.unit.lab.store.run_files import INVALID, write_run


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    return tmp_path / "runs"


def test_a_study_becomes_a_page(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cycle in (1, 2):
        for point, engine in enumerate(("slow", "fast")):
            study = {"id": "study-1", "point": point, "cycle": cycle, "label": "c1"}
            measures = {"output_tokens_per_s": 10.0 * (point + 1) + cycle / 10}
            write_run(runs, f"run-{engine}-{cycle}", engine, measures, study=study)
    page = tmp_path / "out" / "page.html"
    assert main(["report", "study-1", "-o", str(page), "--title", "Slow & fast"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(page)
    assert "4 runs: 4 valid" in err
    text = page.read_text(encoding="utf-8")
    assert "<h1>Slow &amp; fast</h1>" in text
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])
    assert [point["stats"]["output_tokens_per_s"][0] for point in data["points"]] == pytest.approx([10.15, 20.15])
    assert data["runs"][0]["power"] == [{"device": "gpu:0", "t": [1.0], "w": [200.0], "each": 1}]
    assert [row[7] for row in data["runs"][0]["rows"]] == [None, "status"]


def test_the_terminal_says_that_runs_are_invalid(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(runs, verdict=INVALID)
    assert main(["report", "latest", "-o", str(tmp_path / "page.html")]) == 0
    assert "1 run: 1 invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["nothing"], "no runs in"),
        (["x", "--runs", "not/there"], "no such directory: not/there"),
        (["x", "-o", "."], "is a directory"),
    ],
)
def test_user_errors_say_what_to_do(arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *arguments]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    assert wrong in message
    assert hint.strip()


def test_a_corrupt_run_of_the_study_is_named(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cycle in (1, 2):
        write_run(runs, f"run-{cycle}", study={"id": "study-1", "point": 0, "cycle": cycle, "label": "c1"})
    (runs / "run-2" / "tokens.parquet").unlink()
    assert main(["report", "study-1", "-o", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().err
    assert "run-2 is corrupt: tokens.parquet is missing" in said and "1 run: 1 valid" in said


def test_a_report_is_overwritten_and_another_file_only_with_force(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(runs)
    page, notes = tmp_path / "page.html", tmp_path / "notes.html"
    assert main(["report", "latest", "-o", str(page), "--title", "First"]) == 0
    assert main(["report", "latest", "-o", str(page), "--title", "Second"]) == 0
    assert "<h1>Second</h1>" in page.read_text(encoding="utf-8")
    notes.write_text("<title>mine</title>")
    capsys.readouterr()
    assert main(["report", "latest", "-o", str(notes)]) == 2
    said = capsys.readouterr().err
    assert "notes.html exists and is not a report" in said and "--force" in said
    assert notes.read_text() == "<title>mine</title>"
    assert main(["report", "latest", "-o", str(notes), "--force"]) == 0
    assert "<h1>" in notes.read_text(encoding="utf-8")

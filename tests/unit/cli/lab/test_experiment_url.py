"""`bay experiment --url`: checks before the measurement and output at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.main import main
from enginebay.lab.loadgen import calibration
from enginebay.lab.store.run_reader import Run
from enginebay.lab.study import run_study
from tests.unit.lab.page_servers import serve_pages
from tests.unit.lab.store.run_files import write_run

LISTED = {"/v1/models": {"data": [{"id": "alpha"}, {"id": "beta"}]}}
LOAD = ("--profile", "poisson:rate=20,requests=20")


@pytest.fixture()
def plans() -> list[Any]:
    """The planned studies."""
    return []


@pytest.fixture()
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plans: list[Any]) -> Callable[[list[Run]], None]:
    """Set the runs of a study; default: none. Nothing is measured."""
    given: list[Run] = []

    def carry_out(bench: Any, study: Any, *_: Any) -> run_study.StudyOutcome:
        plans.append(study)
        return run_study.StudyOutcome(study.id, given, {})

    monkeypatch.setattr(run_study, "run_study", carry_out)
    monkeypatch.setattr(calibration, "calibrate", lambda: calibration.ClientCeiling(1.0, 1.0, 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    return given.extend


def experiment(url: str, *more: str) -> int:
    return main(["experiment", "--url", url, *LOAD, *more])


@pytest.mark.usefixtures("outcome")
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_missing_model_is_rejected_before_a_study_is_created(
    plans: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    with serve_pages(LISTED) as url:
        assert experiment(url, "-m", "nope", "--tokenizer", "bytes", *more) == 2
    said = capsys.readouterr().err
    assert "has no model 'nope'" in said and "choose one of: alpha, beta" in said and "measuring" not in said
    assert not plans and not (tmp_path / "home" / "runs").exists()


@pytest.mark.usefixtures("outcome")
@pytest.mark.parametrize("pages", [{}, LISTED])
def test_a_model_that_is_listed_or_a_server_without_a_list_is_measured(plans: list[Any], pages: dict[str, Any]) -> None:
    with serve_pages(pages) as url:
        assert experiment(url, "-m", "alpha", "--tokenizer", "bytes") == 0
    assert len(plans) == 1


@pytest.mark.usefixtures("outcome")
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_without_a_tokenizer_the_flag_is_named_before_anything_is_measured(
    plans: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    with serve_pages(LISTED) as url:
        assert experiment(url, "-m", "alpha", *more) == 2
    said = capsys.readouterr().err
    assert "need the model's tokenizer" in said and "--tokenizer MODEL_OR_PATH" in said and "measuring" not in said
    assert not plans and not (tmp_path / "home" / "runs").exists()


@pytest.mark.usefixtures("outcome")
def test_a_bay_server_whose_tokens_are_bytes_needs_no_tokenizer(
    plans: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "enginebay.cli.lab.study_planning._find_stored_tokenizer", lambda model: "the/model"
    )  # not what it reads
    card = {"id": "alpha", "enginebay": {"engine": "fake"}}
    with serve_pages({**LISTED, "/v1/models/alpha": card}) as url:
        assert experiment(url, "-m", "alpha") == 0
        assert plans[-1].points[0]["tokenizer"] == "bytes"
    with serve_pages({**LISTED, "/v1/models/alpha": {"id": "alpha", "enginebay": {"engine": "unheard-of"}}}) as url:
        assert experiment(url, "-m", "alpha") == 0
        assert plans[-1].points[0]["tokenizer"] == "the/model"


@pytest.mark.parametrize(("answered", "code"), [([0, 0], 1), ([0, 3], 0)])
def test_a_study_without_a_single_answer_fails(
    outcome: Callable[[list[Run]], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answered: list[int],
    code: int,
) -> None:
    outcome([write_run(tmp_path / "made", f"r{n}", measures={"answered": one}) for n, one in enumerate(answered)])
    with serve_pages({}) as url:
        assert experiment(url, "-m", "alpha", "--tokenizer", "bytes") == code
    assert ("bay: no request of the study was answered" in capsys.readouterr().err) is bool(code)


@pytest.mark.parametrize("count", [0, 1])
def test_a_report_is_suggested_only_with_runs(
    outcome: Callable[[list[Run]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    outcome([write_run(tmp_path / "made", f"r{number}") for number in range(count)])
    with serve_pages({}) as url:
        assert experiment(url, "-m", "alpha", "--tokenizer", "bytes") == 0
    assert ("writes a page" in capsys.readouterr().err) is bool(count)

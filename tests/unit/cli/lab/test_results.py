"""`bay results`: output, and the mark on every number of an invalid run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from enginebay.cli.lab import results
from enginebay.errors import UsageError
from enginebay.lab.store.run_errors import CorruptRun, MixedEngines, UnknownRun
from enginebay.lab.store.run_reader import list_runs
from tests.unit.lab.store.run_files import INVALID, write_cycles, write_run

SLOW, FAST = [10.0, 10.2, 9.9], [20.0, 20.4, 19.9]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    return tmp_path / "runs"


@pytest.fixture
def bay(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str) -> tuple[str, str]:
        typer.main.get_command(results.app).main(args=list(args), prog_name="bay results", standalone_mode=False)
        return capsys.readouterr()

    return run


def row(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_nothing_measured_yet(bay: Any) -> None:
    assert json.loads(bay("list", "--json")[0]) == {"runs": [], "corrupt": [], "unfinished": []}
    assert "no runs in" in (said := bay("list")[1]) and "`bay experiment` makes some" in said
    with pytest.raises(UnknownRun, match="no runs in"):
        bay("show", "latest")


def test_list_names_what_is_corrupt_and_what_is_not_finished(bay: Any, runs: Path) -> None:
    write_run(runs, "good")
    write_run(runs, "wrong", verdict=INVALID)
    (write_run(runs, "corrupt").path / "tokens.parquet").unlink()
    (runs / "killed.partial").mkdir()
    out, err = bay("list")
    assert "10.00" in row(out, "good") and "10.00 !" not in row(out, "good")
    assert "invalid" in row(out, "wrong") and "10.00 !" in row(out, "wrong")
    assert "do not publish" in err and "tokens.parquet is missing" in err and "1 unfinished" in err
    found = json.loads(bay("list", "--json")[0])
    assert [(one["id"], one["verdict"], one["reasons"]) for one in found["runs"]] == [
        ("good", "valid", ""),
        ("wrong", "invalid", "send_lag"),
    ]
    assert found["corrupt"] == [{"folder": str(runs / "corrupt"), "wrong": "tokens.parquet is missing"}]
    assert found["unfinished"] == [str(runs / "killed.partial")]


def test_list_distinguishes_points_of_a_sweep(bay: Any, runs: Path) -> None:
    for point, batch in enumerate((2, 8)):
        study = {"id": "s1", "point": point, "cycle": 1, "label": f"fake max_batch={batch} c4"}
        write_run(runs, f"r{batch}", study=study)
    out, _ = bay("list")
    assert row(out, "RUN").split()[:6] == ["RUN", "VERDICT", "ENGINE", "MODEL", "STUDY", "LABEL"]
    assert [row(out, f"r{batch}").split()[4:7] for batch in (2, 8)] == [
        ["s1", "max_batch=2", "c4"],
        ["s1", "max_batch=8", "c4"],
    ]


def test_two_cycles_are_not_called_settled(bay: Any, runs: Path) -> None:
    write_cycles(runs, "a", SLOW[:2])
    write_cycles(runs, "b", FAST[:2])
    out, _ = bay("compare", "s1")
    assert "significant difference" not in out
    assert "2 pairs are too few" in row(out, "output_tokens_per_s")


def test_show_prints_verdict_figures_and_absent_ones(bay: Any, runs: Path) -> None:
    write_run(
        runs,
        "r1",
        measures={"ttft_s": {"p95": 0.25}, "absent": {"energy_j": "no energy was read"}},
        verdict=INVALID,
        config={"fake": {"dtype": "float16", "batch": 2}},
        effective={"dtype": "float32", "batch": 2},
        absent={"cpu_energy": "only root may read it"},
    )
    out, err = bay("show", "latest")
    assert row(out, "verdict").split() == ["verdict", "invalid"] and "requests left | late" in out
    assert row(out, "ttft_s.p95").endswith("0.2500 !") and "do not publish" in err
    assert "no energy was read" in out and "only root may read it" in out
    assert row(out, "dtype").split() == ["dtype", "float16", "float32"] and "batch" not in out
    assert json.loads(bay("show", "r1", "--json")[0])["verdict"]["status"] == "invalid"


def test_show_of_a_study_shows_each_run(bay: Any, runs: Path) -> None:
    made = write_cycles(runs, "a", SLOW)
    assert [one["id"] for one in json.loads(bay("show", "s1", "--json")[0])] == [run.id for run in made]
    assert all(run.id in bay("show", "s1")[0] for run in made)


def test_compare_shows_intervals_and_what_would_settle_it(bay: Any, runs: Path) -> None:
    parity = {"answers": [{"prompt_ids": [1], "token_ids": [2], "logprobs": None, "text": ""}]}
    write_cycles(runs, "a", SLOW, parity=parity)
    write_cycles(runs, "b", FAST, effective={"batch": 8}, parity=parity)
    out, err = bay("compare", "s1")
    line = row(out, "output_tokens_per_s")
    assert "[" in line and "significant difference" in line and "!" not in line
    assert "A: a tiny c1 (3 runs, valid)" in out and row(out, "batch").split() == ["batch", "-", "8"]
    assert row(out, "greedy_agreement").split() == ["greedy_agreement", "1.0"]
    assert "a server does not report logprobs" in row(out, "logprob_distance") and "false positive" in err
    write_cycles(runs, "c", [10.0, 12.0, 9.0])
    unsettled = bay("compare", *(run.id for run in list_runs(runs)[0] if run.engine in "ac"))[0]
    assert "more runs of each would resolve" in row(unsettled, "output_tokens_per_s")


def test_what_has_no_pair_shows_no_empty_table_and_draws_no_conclusion(bay: Any, runs: Path) -> None:
    write_cycles(runs, "a", SLOW[:1])
    write_run(
        runs, "later", "b", {"output_tokens_per_s": 1.0}, study={"id": "s1", "point": 1, "cycle": 2, "label": "c1"}
    )
    out, err = bay("compare", "s1")
    assert "no cycle ran on both" in out and "FIGURE" not in out
    assert "not reliable" not in err and "false positive" not in err


def test_an_unreliable_comparison_is_marked(bay: Any, runs: Path) -> None:
    write_cycles(runs, "a", SLOW)
    write_cycles(runs, "b", FAST, verdict=INVALID)
    out, err = bay("compare", "s1")
    assert "!  all runs of b tiny c1 are invalid" in out
    line = row(out, "output_tokens_per_s")
    assert line.count(" !") == 4 and "settled" not in line and "is not reliable" in err
    assert json.loads(bay("compare", "s1", "--json")[0])[0]["valid"] is False


def test_aggregate_rejects_mixed_engines_by_default(bay: Any, runs: Path) -> None:
    write_cycles(runs, "a", SLOW)
    assert "a tiny c1 (3 runs, valid)" in bay("aggregate", "s1")[0]
    write_cycles(runs, "b", FAST)
    with pytest.raises(MixedEngines, match="a, b"):
        bay("aggregate", "s1")
    for flag in ("--allow-mixed-engines", "--allow-mixed-backends"):
        out, _ = bay("aggregate", "s1", flag)
        assert "a+b tiny c1 (6 runs, invalid, mixed engines: statistically invalid)" in out
        assert " !" in row(out, "output_tokens_per_s")


def test_aggregate_counts_excluded_runs(bay: Any, runs: Path) -> None:
    write_cycles(runs, "a", SLOW)
    write_run(runs, "bad", "a", verdict=INVALID, study={"id": "s1", "point": 0, "cycle": 4, "label": "c1"})
    assert "(3 runs, 1 invalid left out, valid)" in bay("aggregate", "s1")[0]
    assert json.loads(bay("aggregate", "s1", "--json")[0])[0]["left_out"] == ["bad"]


def test_export_to_the_terminal_and_to_a_file(bay: Any, runs: Path, tmp_path: Path) -> None:
    write_run(runs, "r1")
    write_run(runs, "r2", verdict=INVALID)
    out, err = bay("export", "r1", "r2")
    assert out.startswith("id,verdict,reasons,") and "marked invalid: r2" in err
    assert json.loads(bay("export", "r1", "--json")[0]) == json.loads(bay("export", "r1", "--format", "json")[0])
    target = tmp_path / "out.md"
    out, err = bay("export", "r1", "--format", "markdown", "-o", str(target))
    assert out == "" and str(target) in err and target.read_text().startswith("| run | verdict |")
    with pytest.raises(UsageError, match="--format xml"):
        bay("export", "r1", "--format", "xml")


def test_another_folder_of_runs(bay: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "there", "r1")
    assert "r1" in bay("list", "--runs", str(tmp_path / "there"))[0]
    assert bay("show", "r1", "--runs", str(tmp_path / "there"), "--json")[0]
    with pytest.raises(UsageError, match="no such directory"):
        bay("list", "--runs", str(tmp_path / "nowhere"))


def test_a_corrupt_run_is_not_shown(bay: Any, runs: Path) -> None:
    (write_run(runs, "r1").path / "manifest.json").unlink()
    for command in ("show", "export", "aggregate", "compare"):
        with pytest.raises(CorruptRun, match=r"it has no manifest\.json"):
            bay(command, "r1")


def test_a_corrupt_run_of_a_study_is_named_and_skipped(bay: Any, runs: Path) -> None:
    made = write_cycles(runs, "a", SLOW)
    (made[1].path / "manifest.json").unlink()
    for command in ("show", "export", "aggregate"):
        out, err = bay(command, "s1", "--json")
        assert made[0].id in out and made[1].id not in out, command
        assert f"not shown: the run in {made[1].path} is corrupt" in err, command


def test_without_the_lab_extra_it_says_what_to_install(bay: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from enginebay.errors import EnginebayError

    write_run(runs, "r1")
    monkeypatch.setattr("enginebay.cli.lab.lab_dependencies.find_spec", lambda name: None)
    with pytest.raises(EnginebayError, match=r"enginebay\[lab\]"):
        bay("aggregate", "r1")

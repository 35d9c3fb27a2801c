"""Options and output of `bay choose`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay.cli.lab.choose import SearchPlan, _announce, _plan_searches
from enginebay.cli.lab.choose_output import build_choice, build_config, check_output_path, render_config
from enginebay.cli.lab.search_options import parse_objective, parse_profile_option, parse_search_options
from enginebay.cli.main import main
from enginebay.config.loader import load_config
from enginebay.config.sections.experiment_section import ExperimentConfig
from enginebay.contract import Probe
from enginebay.errors import ConfigError, UsageError
from enginebay.fleet.engine_selection.tuned_engines import find, save
from enginebay.lab.search.candidates import Candidate, rank_candidates
from enginebay.lab.study.engine_speed import EngineSpeed
from enginebay.lab.study.study_point import StudyPoint, plan_run
from enginebay.models import StoredModel
from enginebay.util.hardware import HostFacts


def wish(experiment: ExperimentConfig | None = None, slo: str = "ttft_p95=0.8", **given: Any) -> Any:
    usual: dict[str, Any] = {
        "profile": None, "requests": None, "seconds": None, "resolution": 0.1, "most_runs": 12
    }  # fmt: skip
    return parse_search_options(experiment or ExperimentConfig(), [slo] if slo else [], **{**usual, **given})


def test_a_run_has_as_many_requests_as_the_percentile_needs() -> None:
    assert wish().requests == 72
    assert wish(slo="ttft_p99=0.8,tpot_p50=0.1").requests == 368
    assert wish(slo="ttft_p50=0.8").requests == 50
    assert wish(requests=9).requests == 9


def test_the_profile_may_say_how_long_a_run_is() -> None:
    found = wish(profile="gamma:burstiness=0.5,requests=200,duration_s=30")
    assert found.profile == {"kind": "gamma", "burstiness": 0.5}
    assert (found.requests, found.seconds) == (200, 30)
    assert wish(profile="poisson:requests=200", requests=100).requests == 100


def test_the_configuration_speaks_where_flags_do_not() -> None:
    assert parse_objective([], {"ttft_p90": 1}) == {"ttft_p90": 1.0}
    assert parse_profile_option(None, {"kind": "constant", "rate": 5}) == ({"kind": "constant"}, {})
    assert parse_profile_option(None, "gamma:rate=1,burstiness=2") == ({"kind": "gamma", "burstiness": 2}, {})
    for other in (
        None,
        {"kind": "offline"},
        "closed:concurrency=4",
        {"kind": "sweep", "profile": "poisson", "rates": [1, 2]},
    ):
        assert parse_profile_option(None, other) == ({"kind": "poisson"}, {})


@pytest.mark.parametrize(
    ("texts", "said"),
    [([], "no objective"), (["ttft_s=1"], "limits a single request"), (["ttft_p95=1,e2e_s=3"], "e2e_s")],
)
def test_an_objective_without_a_percentile_is_rejected(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_objective(texts, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("offline", "no rate to search for"),
        ("poisson:rate=4", "searches for the rate"),
        ("gamma", "bur"),
        ("poisson:until_stable=true", "until_stable"),
        ("poisson:max_requests=10000", "max_requests"),
    ],
)
def test_a_profile_without_a_rate_to_search_for_is_rejected(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_profile_option(text, None)


POINT = StudyPoint(
    label="llamacpp",
    engine="llamacpp",
    model="small",
    workload={"kind": "synthetic", "input_tokens": 32, "output_tokens": 16, "requests": 5},
    profile={"kind": "poisson", "rate": 1.0},
    serve={
        "engine": "llamacpp",
        "offline": False,
        "models": {"small": {"source": "file:/models/small.gguf", "task": "generate"}, "bare": {"task": "generate"}},
        "llamacpp": {"context_length": 2048},
        "server": {"limits": {"queue": 10}},
    },
)
BEST = Candidate("llamacpp", "llamacpp", "1.0", rate=3.1, above=3.4, confirmed=True, sure=True, requests=94)
RANKING = rank_candidates([BEST, Candidate("vllm", "vllm", "0.32", rate=1.2)], 0.1)


def test_what_is_written_serves_and_can_be_measured_again(tmp_path: Path) -> None:
    text = render_config(build_config(POINT, BEST, wish()), RANKING, wish(), "bay choose small --slo ttft_p95=0.8")
    path = tmp_path / "bay.yaml"
    path.write_text(text)
    loaded = load_config(path, environ={}, strict=True)
    assert (loaded.engine, loaded.model) == ("llamacpp", "small")
    assert loaded.settings_for("llamacpp", "small") == {"context_length": 2048}
    assert loaded.models["small"].source == "file:/models/small.gguf"
    assert loaded.experiment.slo == {"ttft_p95": 0.8} and loaded.experiment.limits == {"requests": 94}
    assert loaded.experiment.effective_profile == {"kind": "poisson", "rate": 3.1}
    plan_run(
        replace(
            POINT, workload=loaded.experiment.workload or {}, profile=dict(loaded.experiment.effective_profile or {})
        )
    )
    assert "server:" not in text and "bare" not in text and "task" not in text
    assert "# vllm 0.32: 1.2 requests/s" in text
    assert "# Measured on 20" in text and "bay choose small" in text


def test_what_is_written_has_all_that_was_configured_for_the_runs(tmp_path: Path) -> None:
    point = replace(POINT, body={"temperature": 0.5, "seed": 3}, seed=3, warmup={"requests": 4}, parity=False)
    path = tmp_path / "bay.yaml"
    config = build_config(point, BEST, wish(), {"temperature", "seed"})
    path.write_text(render_config(config, RANKING, wish(), "bay choose small"))
    loaded = load_config(path, environ={}, strict=True)
    assert dict(loaded.sampling_for("llamacpp", "small")) == {"temperature": 0.5, "seed": 3}
    assert (loaded.experiment.warmup, loaded.experiment.parity) == ({"requests": 4}, False)


def test_sampling_of_the_lab_is_not_written_for_a_server() -> None:
    config = build_config(replace(POINT, body={"temperature": 0}, seed=0), BEST, wish())
    assert not {"sampling", "random_seed"} & set(config)


def test_an_existing_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    there = tmp_path / "bay.yaml"
    check_output_path(there, force=False)
    there.write_text("")
    with pytest.raises(UsageError, match="already exists"):
        check_output_path(there, force=False)
    check_output_path(there, force=True)
    check_output_path(None, force=False)
    for wrong in (tmp_path, tmp_path / "no" / "bay.yaml"):
        with pytest.raises(UsageError, match="cannot write"):
            check_output_path(wrong, force=True)


def test_the_choice_holds_the_versions_that_are_installed(tmp_path: Path) -> None:
    host = HostFacts("Linux", "x86_64", "cpu", (), 2, 2, 8 << 30, 8, (), "", "/h", 1, "3.12", True)
    path = tmp_path / "small.gguf"
    path.write_bytes(b"x")
    stored = StoredModel("small", "gguf", path, "", None, 1, 1, "", "file:small", tmp_path / "made")
    installed = {"llamacpp": Probe("1.0.7"), "vllm": Probe("0.32.1")}
    points = {"llamacpp": POINT, "vllm": replace(POINT, label="vllm", engine="vllm")}
    choice = build_choice(RANKING, points, wish(), stored, host, installed, "choose-1")
    save(choice, tmp_path / "choices")
    found = find(stored, host, tmp_path / "choices").tuned
    assert found == choice
    assert [(one.engine, one.version, one.rate) for one in choice.measured] == [
        ("llamacpp", "1.0.7", 3.1),
        ("vllm", "0.32.1", 1.2),
    ]
    assert choice.best.settings == {"context_length": 2048} and "requests" not in choice.workload


@pytest.fixture()
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[StudyPoint]:
    """The points that `bay choose` would measure."""
    found: list[StudyPoint] = []

    def measure(plan: Any, *_: Any) -> Any:
        found.extend(plan.points)
        raise UsageError("seen", "")

    monkeypatch.setattr("enginebay.cli.lab.choose._measure_engines", measure)
    monkeypatch.setattr("enginebay.cli.lab.choose._measure_speeds", lambda plan, _: [SLOW_SPEED] * len(plan.points))
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}')
    return found


SLOW_SPEED = EngineSpeed(start_s=3.0, first_s=0.3, token_s=0.015, batch_first_s=2.0, batch_token_s=0.06)
ASKED = ["choose", "toy", "--engines", "fake", "--slo", "ttft_p95=1"]
LENGTHS = ["--input-tokens", "16", "--output-tokens", "8"]


@pytest.mark.parametrize(
    "config",
    [
        "{}",
        "workload: {kind: synthetic, input_tokens: 512, output_tokens: {kind: uniform, min: 1, max: 9}}",
        "max_input_tokens: 512\nmax_output_tokens: 64\nmin_output_tokens: 1",
    ],
)
def test_the_lengths_of_the_flags_win(measured: list[StudyPoint], tmp_path: Path, config: str) -> None:
    (tmp_path / "bay.yaml").write_text(config)
    main([*ASKED, "--config", "bay.yaml", *LENGTHS])
    assert [(one.workload["input_tokens"], one.workload["output_tokens"]) for one in measured] == [(16, 8)]
    assert not {"max_tokens", "min_tokens"} & set(measured[0].body)


@pytest.mark.parametrize("flags", [LENGTHS[:2], LENGTHS[2:]])
def test_lengths_for_prompts_that_have_their_own_are_refused(
    measured: list[StudyPoint], tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    (tmp_path / "bay.yaml").write_text("workload: {kind: jsonl, path: p.jsonl}")
    assert main([*ASKED, "--config", "bay.yaml", *flags]) == 2
    said = capsys.readouterr().err
    assert flags[0] in said and "jsonl" in said and not measured
    main([*ASKED, "--config", "bay.yaml"])
    assert len(measured) == 1


def test_requests_are_shorter_on_a_slow_host_unless_their_length_is_set(
    measured: list[StudyPoint], capsys: pytest.CaptureFixture[str]
) -> None:
    main(ASKED)
    workload = measured.pop().workload
    assert (workload["input_tokens"], workload["output_tokens"]) == (32, 16)
    assert "prompts of 32 and answers of 16 tokens instead of 128 and 128" in (said := capsys.readouterr().err)
    assert "near 7 minutes per engine; to override: --input-tokens 128 --output-tokens 128" in said
    main([*ASKED, "--input-tokens", "128"])
    workload = measured.pop().workload
    assert workload["input_tokens"] == 128 and workload["output_tokens"] < 128
    main([*ASKED, "--output-tokens", "128"])
    assert measured.pop().workload["output_tokens"] == 128 and "instead of" in capsys.readouterr().err
    main([*ASKED, "--output-tokens", "128", "--input-tokens", "128"])
    assert "instead of" not in capsys.readouterr().err


def test_the_stall_limit_reaches_the_runs_of_a_search(measured: list[StudyPoint]) -> None:
    main([*ASKED, "--set", "limits.stall_timeout_s=600"])
    assert measured[0].timeout_s == 600


def test_the_time_is_announced_for_each_engine_and_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    plan = SearchPlan("small", [POINT, replace(POINT, engine="vllm")], wish(), {}, "choose-1", Path())
    speeds = [SLOW_SPEED, UsageError("it does not start", "")]
    _announce(plan, _plan_searches(plan, speeds))
    said = capsys.readouterr().err
    assert "llamacpp (about " in said and "vllm (about 0 s)" in said and " in all" in said

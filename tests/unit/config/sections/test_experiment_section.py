"""Keys of an experiment: checks, data left to the lab, `show` and the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from enginebay.config.config_dump import to_json, to_yaml
from enginebay.config.config_schema import build_json_schema
from enginebay.config.loader import load_config
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS, ExperimentConfig
from enginebay.config.sections.sweep_grid import expand_sweep
from enginebay.engines.registry import load_specs as installed
from enginebay.errors import ConfigError

STUDY = """\
model: m
engines: [fast, broad]
workload: {kind: synthetic, input_tokens: {kind: normal, mean: 128}, output_tokens: 64}
profile: {kind: poisson, rate: 4}
limits: {requests: 200, until_stable: true}
warmup: {requests: 10}
parity: false
slo: {ttft_p95: 0.8}
price_per_hour: 2
sweep: {fast.max_num_seqs: [32, 64], batching: {batch_size: [1, 8]}}
num_cycles: 5
"""


def test_a_study_is_kept_as_plain_data(load: Any) -> None:
    found = load(STUDY).experiment
    assert found == ExperimentConfig(
        num_cycles=5,
        engines=("fast", "wide"),
        workload={"kind": "synthetic", "input_tokens": {"kind": "normal", "mean": 128}, "output_tokens": 64},
        profile={"kind": "poisson", "rate": 4},
        limits={"requests": 200, "until_stable": True},
        warmup={"requests": 10},
        parity=False,
        slo={"ttft_p95": 0.8},
        price_per_hour=2.0,
        sweep={"fast.max_num_seqs": [32, 64], "batching": {"batch_size": [1, 8]}},
    )
    assert type(found.workload) is dict and type(found.workload["input_tokens"]) is dict


def test_serving_needs_none_of_it(load: Any) -> None:
    assert load("engine: fast\n").experiment == ExperimentConfig()


def test_what_show_prints_of_a_study_loads_again(load: Any) -> None:
    first = load(STUDY)
    assert load(to_yaml(first)).experiment == first.experiment
    shown = to_json(first)
    assert shown["config"]["profile"] == {"kind": "poisson", "rate": 4}
    assert shown["origins"]["sweep"] == "bay.yaml:10"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engines: [fast, fats]", "engines: unknown engine 'fats'; did you mean fast?"),
        ("engines: [wide, broad]", "engines: lists wide twice"),
        ("workload: synthetic", "workload: expected a mapping, got 'synthetic'"),
        ("profile: [1]", "profile: expected a mapping or text, got [1]"),
        ("limits: 200", "limits: expected a mapping, got 200"),
        ("parity: maybe", "parity: expected a mapping or true or false, got 'maybe'"),
        ("price_per_hour: -1", "price_per_hour: expected at least 0, got -1"),
        ("price_per_hour: .nan", "price_per_hour: expected a finite number, got nan"),
        ("sweep: 3", "sweep: expected a mapping or a list, got 3"),
        ("sweep: [3]", "sweep: expected a grid of values, got '3'"),
        ("sweep: {fast.eager: []}", "sweep: the sweep has no values for fast.eager"),
        ("sweep: {num_cycles: [1, 2]}", "sweep: num_cycles applies to the whole study"),
        ("wrkload: {}", "wrkload: unknown key; did you mean workload?"),
        (
            "profile: {kind: closed}\ntraffic_simulation: {enabled: true}",
            "traffic_simulation.enabled: duplicates profile (bay.yaml:1); remove one of them",
        ),
    ],
)
def test_a_problem_is_one_line_with_its_key(load: Any, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(text)
    assert says in error.value.message and error.value.message.startswith("bay.yaml:")
    assert len(error.value.message.splitlines()) == 1


def test_traffic_simulation_is_a_profile_in_other_words(load: Any) -> None:
    def sending(text: str, **more: Any) -> Any:
        return load(text, **more).experiment.effective_profile

    traffic = "traffic_simulation: {enabled: true, mode: constant, target_qps: 3}\n"
    assert sending("") is None
    assert sending("traffic_simulation: {target_qps: 3}") is None
    assert sending(traffic) == {"kind": "constant", "rate": 3.0}
    assert sending(traffic, flags={"profile": "closed:concurrency=8"}) == "closed:concurrency=8"
    assert sending(f"{traffic}profile: null\n") == {"kind": "constant", "rate": 3.0}


def test_another_kind_replaces_a_profile_and_the_same_kind_adds_to_it(load: Any) -> None:
    text = "profile: {kind: gamma, rate: 4, burstiness: 0.5}\n"

    def profile(**flags: Any) -> Any:
        return load(text, flags=flags).experiment.profile

    assert profile(**{"profile.rate": 8}) == {"kind": "gamma", "rate": 8, "burstiness": 0.5}
    assert profile(profile={"kind": "gamma", "rate": 9}) == {"kind": "gamma", "rate": 9, "burstiness": 0.5}
    assert profile(profile={"kind": "closed", "concurrency": 8}) == {"kind": "closed", "concurrency": 8}


def test_a_workloads_file_is_beside_the_config_that_names_it(tmp_path: Path, load: Any, specs: Any) -> None:
    (tmp_path / "studies").mkdir()
    file = tmp_path / "studies" / "one.yaml"
    file.write_text("workload: {kind: jsonl, path: prompts.jsonl}\n")
    found = load_config(file, environ={}, specs=specs)
    assert found.experiment.workload == {"kind": "jsonl", "path": f"{tmp_path}/studies/prompts.jsonl"}
    found = load_config(file, environ={}, specs=specs, flags={"workload.path": "here.jsonl"})
    assert found.experiment.workload == {"kind": "jsonl", "path": f"{tmp_path}/here.jsonl"}


@pytest.mark.parametrize(
    ("text", "flags", "engines"),
    [
        ("", {}, ("auto",)),
        ("engine: fast", {}, ("fast",)),
        ("model: m\nmodels: {m: {engine: wide}}", {}, ("wide",)),
        ("engine: fast\nengines: [wide, fast]", {}, ("wide", "fast")),
        ("engines: fast, broad", {}, ("fast", "wide")),
        ("engines: [wide, fast]", {"engine": "fast"}, ("fast",)),
        ("engine: fast", {"engines": ["wide"]}, ("wide",)),
        ("engine: fast\nengines: []", {}, ("fast",)),
    ],
)
def test_the_engines_of_a_study(load: Any, text: str, flags: dict[str, Any], engines: tuple[str, ...]) -> None:
    assert load(text, flags=flags).list_study_engines() == engines


def test_the_documentation_has_every_key_of_an_experiment() -> None:
    text = (Path(__file__).parents[4] / "docs" / "configuration.md").read_text(encoding="utf-8")
    section = text.partition("## Experiments")[2].partition("\n## ")[0]
    assert [name for name in EXPERIMENT_KEYS if f"`{name.rpartition('.')[2]}`" not in section] == []


def test_the_studies_of_the_documentation_load(load: Any) -> None:
    text = (Path(__file__).parents[4] / "docs" / "configuration.md").read_text(encoding="utf-8")
    blocks = text.partition("## Experiments")[2].partition("\n## ")[0].split("```yaml\n")[1:]
    found = [load(block.partition("```")[0], specs=installed(), strict=True) for block in blocks]
    assert [len(expand_sweep(config.experiment.sweep)) for config in found] == [1, 8]


def test_the_schema_has_every_key_of_an_experiment(specs: Any) -> None:
    schema = build_json_schema(specs)
    for name in EXPERIMENT_KEYS:
        found: Any = schema
        for part in name.split("."):
            found = found["properties"][part]
        assert found["description"] == EXPERIMENT_KEYS[name].help


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"engines": ["fats"]}, {"engines": ["fast", "broad"]}),
        ({"engines": 3}, {"engines": "fast, wide"}),
        ({"workload": "x"}, {"workload": {"kind": "x", "anything": [1]}}),
        ({"profile": 1}, {"profile": "poisson:rate=4"}),
        ({"parity": "no"}, {"parity": False}),
        ({"price_per_hour": -1}, {"price_per_hour": 1.5}),
        ({"sweep": [1]}, {"sweep": [{"fast.eager": [True]}]}),
        ({"sweep": "x"}, {"sweep": {"fast": {"eager": [True, False]}}}),
    ],
    ids=str,
)
def test_the_schema_agrees_with_the_loader(load: Any, specs: Any, wrong: Any, right: Any) -> None:
    validator = Draft202012Validator(build_json_schema(specs))
    assert validator.is_valid(right) and not validator.is_valid(wrong)
    load(flags=right)
    with pytest.raises(ConfigError):
        load(flags=wrong)

"""`bay config`: the printed config loads again, and the schema agrees with the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from enginebay.cli.main import main
from enginebay.config.config_dump import to_json, to_yaml
from enginebay.config.config_schema import build_json_schema
from enginebay.config.loader import load_config
from enginebay.engines.registry import load_specs as installed

EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"
SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.yaml"))

RICH = """\
engine: fast
model: m
batching: {batch_size: 2}
sampling: {stop: [a, "b: c", "two\\nlines # here"], logit_bias: {5: -1}}
fast: {swap_space: 4, speculative: {method: ngram}, top_k: 3, trust_remote_code: true, extra: {deep: {er: [1]}}}
models:
  "llama-3.1":
    source: file:w
    loras: {x: lora}
    wide: {max_memory: {"0": 20GiB}, compile: false}
num_cycles: 2
traffic_simulation: {enabled: true}
"""


def test_the_example_is_valid_without_a_warning() -> None:
    config = load_config(EXAMPLE, environ={}, strict=True)
    assert config.model == "smollm2"
    assert set(config.models) == {"qwen", "support", "search"}


def test_show_prints_the_origin_of_each_value(load: Any) -> None:
    environ = {"ENGINEBAY_OFFLINE": "true"}
    shown = to_yaml(load(RICH, environ=environ, flags={"model": "other"})).splitlines()
    assert "engine: fast  # bay.yaml:1" in shown
    assert "model: other  # flag" in shown
    assert "offline: true  # ENGINEBAY_OFFLINE" in shown
    assert "  memory: 0.9  # default" in shown
    assert "  swap_space: 4  # bay.yaml:5; removed in fast 0.11; instead: offload" in shown
    assert "    method: ngram  # bay.yaml:5" in shown


def test_what_show_prints_loads_to_the_same_config(load: Any) -> None:
    first = load(RICH)
    second = load(to_yaml(first))
    assert second.sampling == first.sampling
    assert second.experiment == first.experiment
    assert second.settings_for("fast") == {**first.settings_for("fast"), "memory": 0.9}
    assert second.settings_for("wide", "llama-3.1") == first.settings_for("wide", "llama-3.1")
    assert second.sampling_for("fast") == first.sampling_for("fast")
    assert second.trusts_remote_code("fast", "m")
    assert second.models["llama-3.1"].loras == first.models["llama-3.1"].loras


def test_json_has_values_origins_and_warnings(load: Any) -> None:
    shown = json.loads(json.dumps(to_json(load(RICH))))
    assert shown["file"] == "bay.yaml"
    assert shown["config"]["fast"]["speculative"] == {"method": "ngram"}
    assert shown["origins"]["fast.speculative.method"] == "bay.yaml:5"
    assert shown["origins"]["offline"] == "default"
    assert [one["key"] for one in shown["warnings"]] == ["fast.swap_space"]


@pytest.mark.parametrize("path", [EXAMPLE, *SEEDS], ids=lambda path: path.stem)
def test_the_schema_accepts_what_the_loader_accepts(path: Path) -> None:
    schema = build_json_schema(installed())
    Draft202012Validator.check_schema(schema)
    as_json = json.loads(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(as_json)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"engin": "vllm"},
        {"engine": "vlm"},
        {"vllm": {"max_num_seqs": 2000}},
        {"vllm": {"speculative": {"tokens": 1}}},
        {"inference": {"vllm": {"block_size": 12}}},
        {"inference": {"inference": {}}},
        {"models": {"m": {"colour": "red"}}},
        {"sampling": {"temperature": 3}},
        {"fp_precision": "float8"},
        {"traffic_simulation": {"mode": "bursty"}},
    ],
    ids=str,
)
def test_the_schema_rejects_what_the_loader_rejects(wrong: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(wrong))
    assert main(["config", "validate", str(path)]) == 2
    assert not Draft202012Validator(build_json_schema(installed())).is_valid(wrong)


# --- the commands


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ENGINEBAY_CONFIG", raising=False)


def test_validate_prints_ok_and_warns_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("engine: auto\nvllm: {swap_space: 4}\n")
    assert main(["config", "validate", "c.yaml"]) == 0
    out, err = capsys.readouterr()
    assert out == "c.yaml: ok, 1 warning\n"
    assert err.startswith("warning: c.yaml:2: vllm.swap_space: removed in vllm ")
    assert main(["config", "validate", "c.yaml", "--strict"]) == 2
    assert main(["config", "validate"]) == 0


def test_validate_lists_all_problems(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.yaml").write_text("engine: vlm\nvllm: {max_num_seqs: 0}\n")
    assert main(["config", "validate", "c.yaml"]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "bay: the configuration has 2 problems"
    assert err[1] == "  c.yaml:1: engine: unknown engine 'vlm'; did you mean vllm?"
    assert err[2] == "  c.yaml:2: vllm.max_num_seqs: expected 1 to 1024, got 0"
    assert main(["config", "validate", "c.yaml", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], [one["key"] for one in found["problems"]]) == (False, ["engine", "vllm.max_num_seqs"])


def test_a_missing_file_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "none.yaml"]) == 2
    assert capsys.readouterr().err.startswith("bay: config file not found: none.yaml\n")


def test_show_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    Path("enginebay.yaml").write_text("vllm: {max_num_seqs: 3}\n")
    assert main(["config", "show", "--engine", "vllm", "--set", "vllm.max_num_seqs=5", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["config"]["engine"], shown["config"]["vllm"]["max_num_seqs"]) == ("vllm", 5)
    assert main(["config", "show", "--set", "nonsense"]) == 2
    assert main(["config", "show", "--set", "vllm.extra={a"]) == 2
    capsys.readouterr()
    assert main(["config", "show"]) == 0
    assert "  max_num_seqs: 3  # enginebay.yaml:1\n" in capsys.readouterr().out


def test_a_preset_is_shown_below_the_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("enginebay.yaml").write_text("vllm: {max_num_seqs: 3, block_size: 16}\n")
    monkeypatch.setenv("ENGINEBAY__VLLM__BLOCK_SIZE", "32")
    assert main(["config", "show", "--preset", "vllm-low-latency", "--set", "vllm.seed=5"]) == 0
    out = capsys.readouterr().out
    for line in (
        "engine: vllm  # preset vllm-low-latency\n",
        "  enforce_eager: true  # preset vllm-low-latency\n",
        "  max_num_seqs: 3  # enginebay.yaml:1\n",
        "  block_size: 32  # ENGINEBAY__VLLM__BLOCK_SIZE\n",
    ):
        assert line in out
    assert "  seed: 5" in out
    assert main(["config", "validate", "--preset", "vllm-low-latency"]) == 0


@pytest.mark.parametrize("command", ["show", "validate"])
def test_a_preset_that_does_not_exist_is_bad_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", command, "--preset", "vllm-thruput"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bay: unknown preset 'vllm-thruput'\n") and "did you mean vllm-throughput?" in err


def test_a_preset_without_effect_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--preset", "vllm-low-latency", "--engine", "llamacpp"]) == 0
    assert "vllm-low-latency applies to vllm only, and llamacpp is chosen" in capsys.readouterr().err
    assert main(["config", "show", "--preset", "vllm-low-latency", "--engine", "llamacpp", "--strict"]) == 2


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert "vllm" in json.loads(capsys.readouterr().out)["properties"]


@pytest.mark.parametrize("command", ["validate", "show"])
def test_the_file_can_be_named_as_for_other_commands(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: other\n")
    assert main(["config", command, "-c", str(file)]) == 0
    assert "mine.yaml" in capsys.readouterr().out
    assert main(["config", command, str(file), "--config", str(file)]) == 2
    assert "pass the file once" in capsys.readouterr().err

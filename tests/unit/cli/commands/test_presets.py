from __future__ import annotations

import json
from typing import Any

import pytest
import typer
import yaml

from enginebay.cli.commands.presets import app
from enginebay.config.loader import load_config
from enginebay.config.preset_registry import load_presets
from enginebay.errors import ConfigError

PRESETS = load_presets()


def presets(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    typer.main.get_command(app).main(args=list(args), prog_name="bay presets", standalone_mode=False)
    return capsys.readouterr().out


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = presets(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["PRESET", *PRESETS]
    assert "enforce_eager=true" in next(line for line in lines if line.startswith("vllm-low-latency\t"))
    assert "speculative.method=ngram" in next(line for line in lines if line.startswith("vllm-speculative\t"))


def test_one_is_explained_as_a_config_that_loads(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    for preset in PRESETS.values():
        head, explanation, config = presets(capsys, preset.name).split("\n\n")
        assert head == f"{preset.name}: {preset.purpose}, on {preset.engine}"
        assert explanation == preset.explanation
        assert yaml.safe_load(config) == preset.config
        (tmp_path / "bay.yaml").write_text(config)
        assert load_config(tmp_path / "bay.yaml", environ={}, strict=True).engine == preset.engine


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(presets(capsys, "--json"))
    assert [one["name"] for one in listed] == list(PRESETS)
    one = json.loads(presets(capsys, "pytorch-speculative", "--json"))
    assert one in listed
    assert one["config"] == {"engine": "transformers", "transformers": {"assisted_generation": {"num_tokens": 5}}}


def test_an_unknown_one_is_an_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'vllm-fast'"):
        presets(capsys, "vllm-fast")

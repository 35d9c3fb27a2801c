"""Presets: names and settings of the guide, overridden by the file, never silently without effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.config.config_dump import to_yaml
from enginebay.config.loader import load_config, validate_config
from enginebay.config.preset_registry import find_preset, load_presets
from enginebay.config.resolved_config import Config
from enginebay.errors import ConfigError

PRESETS = load_presets()
# As the table of presets in the backends guide has them.
OF_THE_GUIDE = {
    "vllm-throughput": ("vllm", {"max_num_seqs": 512, "enable_chunked_prefill": True, "enable_prefix_caching": True}),
    "vllm-speculative": ("vllm", {"speculative.method": "ngram", "speculative.num_tokens": 5}),
    "vllm-memory-efficient": (
        "vllm",
        {"kv_cache_dtype": "fp8", "enable_prefix_caching": True, "gpu_memory_utilization": 0.95},
    ),
    "vllm-low-latency": ("vllm", {"max_num_seqs": 32, "enforce_eager": True}),
    "pytorch-optimized": (
        "transformers",
        {"attn_implementation": "flash_attention_2", "torch_compile": "reduce-overhead"},
    ),
    "pytorch-speculative": ("transformers", {"assisted_generation.num_tokens": 5}),
    "pytorch-compatible": ("transformers", {"attn_implementation": "eager", "torch_compile": False}),
}


@pytest.fixture
def with_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`with_preset(name, text, flags=...)` on the engines' real declarations."""
    monkeypatch.chdir(tmp_path)

    def load(name: str, text: str = "", **more: Any) -> Config:
        Path("bay.yaml").write_text(text)
        return load_config(Path("bay.yaml"), preset=name, **{"environ": {}, **more})

    return load


@pytest.mark.parametrize("name", OF_THE_GUIDE)
def test_the_guides_presets(with_preset: Any, name: str) -> None:
    engine, settings = OF_THE_GUIDE[name]
    config = with_preset(name, strict=True)
    assert (config.engine, PRESETS[name].engine) == (engine, engine)
    assert config.settings_for(engine) == settings


def test_every_preset_is_sound_on_its_engine(with_preset: Any) -> None:
    assert {preset.engine for preset in PRESETS.values()} == {"vllm", "transformers", "llamacpp"}
    assert {name for name, preset in PRESETS.items() if preset.engine == "llamacpp"} == {
        "llamacpp-throughput",
        "llamacpp-low-latency",
        "llamacpp-compatible",
    }
    for name, preset in PRESETS.items():
        config = with_preset(name, strict=True)
        assert config.engine == preset.engine and config.settings_for(preset.engine)
        assert preset.name == name and preset.purpose and preset.explanation


def test_preset_then_file_then_environment_then_flags(with_preset: Any) -> None:
    config = with_preset(
        "vllm-memory-efficient",
        "model: m\nvllm: {gpu_memory_utilization: 0.8, max_num_seqs: 4, block_size: 32}\n",
        environ={"ENGINEBAY__VLLM__MAX_NUM_SEQS": "8", "ENGINEBAY__VLLM__BLOCK_SIZE": "64"},
        flags={"vllm.block_size": 128},
    )
    assert config.settings_for("vllm") == {
        "kv_cache_dtype": "fp8",
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.8,
        "max_num_seqs": 8,
        "block_size": 128,
    }
    shown = to_yaml(config)
    assert "engine: vllm  # preset vllm-memory-efficient\n" in shown
    assert "  kv_cache_dtype: fp8  # preset vllm-memory-efficient\n" in shown
    assert "  gpu_memory_utilization: 0.8  # bay.yaml:2\n" in shown


def test_the_more_specific_key_of_the_file_wins_over_a_preset(with_preset: Any) -> None:
    config = with_preset("vllm-low-latency", "batching: {batch_size: 2}\nmodels: {m: {vllm: {max_num_seqs: 7}}}\n")
    assert config.settings_for("vllm", "m") == {"batching.batch_size": 2, "max_num_seqs": 7, "enforce_eager": True}


@pytest.mark.parametrize("text", ["engine: auto", "inference: {backend: auto}"])
def test_an_open_choice_of_the_file_is_made_by_the_preset(with_preset: Any, text: str) -> None:
    assert with_preset("vllm-throughput", text).engine == "vllm"
    assert with_preset("vllm-throughput", text, flags={"engine": "auto"}).engine == "auto"


@pytest.mark.parametrize(
    ("text", "flags", "warned"),
    [
        ("engine: vllm", {}, False),
        ("backend: pytorch", {}, True),
        ("backend: pytorch", {"engine": "vllm"}, False),
        ("", {"engine": "llamacpp"}, True),
        ("engines: [pytorch, vllm]", {}, False),
        ("engines: [pytorch, llamacpp]\nengine: llamacpp", {}, True),
        ("model: m\nmodels: {m: {engine: pytorch}}", {}, True),
    ],
)
def test_a_preset_without_effect_is_reported(with_preset: Any, text: str, flags: dict[str, Any], warned: bool) -> None:
    config = with_preset("vllm-throughput", text, flags=flags)
    assert [one.key for one in config.warnings] == (["preset"] if warned else [])
    if warned:
        assert "vllm-throughput applies to vllm only, and " in config.warnings[0].message
        with pytest.raises(ConfigError, match="preset: vllm-throughput applies to vllm only"):
            with_preset("vllm-throughput", text, flags=flags, strict=True)


def test_a_preset_may_choose_an_engine_of_a_models_fallback(with_preset: Any) -> None:
    config = with_preset("vllm-throughput", "models: {m: {fallback: [vllm, llamacpp]}}\n")
    assert (config.engine_for("m"), config.fallback_for("m")) == ("vllm", ("llamacpp",))


def test_an_unknown_preset_is_named_with_the_nearest(with_preset: Any) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'vllm-thruput'") as error:
        with_preset("vllm-thruput")
    assert (error.value.hint, error.value.exit_code) == ("did you mean vllm-throughput?", 2)
    with pytest.raises(ConfigError) as error:
        find_preset("qqq")
    assert all(name in error.value.hint for name in PRESETS)


def test_a_preset_for_an_engine_that_is_not_there_is_a_problem(specs: Any) -> None:
    found = validate_config(preset="vllm-throughput", environ={"ENGINEBAY_CONFIG": ""}, specs=specs)
    assert all(str(problem).startswith("preset vllm-throughput: ") for problem in found.problems)
    assert len(found.problems) == 2

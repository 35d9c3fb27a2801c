"""The configs of the reference documents load unchanged on the engines' real specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.config.loader import load_config
from enginebay.config.preset_registry import load_presets
from enginebay.config.resolved_config import Config
from enginebay.errors import ConfigError

PRESETS = load_presets()
SEEDS = Path(__file__).parent / "seeds"

# Every key of each file that has no effect today. All others must be silent.
WITHOUT_EFFECT = {
    "adr-001": set(),
    "adr-003": set(),
    "adr-027": {"inference.vllm.swap_space"},
    "guide-experiment-pytorch": set(),
    "guide-experiment-vllm": {"decoder.no_repeat_ngram_size", "quantization.load_in_8bit", "batching.strategy"},
    "guide-latency-pytorch": set(),
    "guide-latency-vllm": set(),
    "guide-memory-pytorch": {"pytorch.low_cpu_mem_usage"},
    "guide-memory-vllm": set(),
    "guide-pytorch": {
        "pytorch.use_bettertransformer",
        "pytorch.low_cpu_mem_usage",
        "pytorch.return_dict_in_generate",
    },
    "guide-selecting": set(),
    "guide-throughput-pytorch": set(),
    "guide-throughput-vllm": set(),
    "guide-vllm": {
        "vllm.swap_space",
        "vllm.max_seq_len_to_capture",
        "vllm.lora.extra_vocab_size",
        "vllm.best_of",
        "vllm.use_beam_search",
        "vllm.length_penalty",
    },
}


def seed(name: str, *, strict: bool = False, preset: str | None = None) -> Config:
    return load_config(SEEDS / f"{name}.yaml", environ={}, strict=strict, preset=preset)


def test_every_seed_file_is_listed() -> None:
    assert {path.stem for path in SEEDS.glob("*.yaml")} == set(WITHOUT_EFFECT)


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_seed_loads_and_warns_once_for_each_key_without_effect(name: str) -> None:
    config = seed(name)
    assert sorted(warning.key for warning in config.warnings) == sorted(WITHOUT_EFFECT[name])
    assert all("instead: " in warning.message and warning.line for warning in config.warnings)
    if WITHOUT_EFFECT[name]:
        with pytest.raises(ConfigError):
            seed(name, strict=True)
    else:
        assert seed(name, strict=True).warnings == ()


def test_adr_001() -> None:
    config = seed("adr-001")
    assert config.engine == "auto"
    assert config.settings_for("vllm") == {
        "gpu_memory_utilization": 0.9,
        "max_model_len": 4096,
        "tensor_parallel_size": 1,
    }
    assert config.settings_for("transformers") == {"device_map": "auto", "torch_dtype": "bfloat16"}


def test_adr_003() -> None:
    config = seed("adr-003")
    assert (config.engine, config.model) == ("vllm", "meta-llama/Llama-3-70b-hf")
    assert config.settings_for("vllm") == {
        "tensor_parallel_size": 8,
        "max_num_batched_tokens": 16384,
        "max_num_seqs": 256,
        "gpu_memory_utilization": 0.95,
    }


def test_adr_027() -> None:
    config = seed("adr-027")
    assert config.engine == "vllm"
    assert config.sampling == {"temperature": 0.1, "top_p": 0.9, "max_tokens": 500}
    assert config.settings_for("vllm") == {"swap_space": 4, "gpu_memory_utilization": 0.85}
    assert config.trusts_remote_code("vllm", "Qwen/Qwen3-4B")


def test_the_guides_vllm_block() -> None:
    config = seed("guide-vllm")
    settings = config.settings_for("vllm")
    assert (config.engine, config.model) == ("vllm", "meta-llama/Llama-2-7b-hf")
    assert "max_num_batched_tokens" not in settings
    expected = {
        "max_num_seqs": 256,
        "cpu_offload_gb": 0.0,
        "enable_chunked_prefill": True,
        "kv_cache_dtype": "fp8",
        "block_size": 16,
        "distributed_backend": "mp",
        "attention.backend": "auto",
        "attention.flash_version": 2,
        "speculative.method": "ngram",
        "speculative.num_tokens": 5,
        "speculative.draft_tp_size": 1,
        "lora.max_rank": 16,
        "quantization_method": "awq",
        "load_format": "safetensors",
        "logprobs": 5,
        "logit_bias": {123: -100},
        "swap_space": 4.0,
    }
    assert {name: settings[name] for name in expected} == expected


def test_the_guides_pytorch_block() -> None:
    config = seed("guide-pytorch")
    settings = config.settings_for("pytorch")
    assert config.engine == "transformers"
    expected = {
        "attn_implementation": "flash_attention_2",
        "torch_compile": "reduce-overhead",
        "use_cache": True,
        "max_memory": {"0": "20GiB", "cpu": "30GiB"},
        "assisted_generation.model": "TinyLlama/TinyLlama-1.1B",
        "assisted_generation.num_tokens": 5,
        "num_beams": 1,
        "use_bettertransformer": False,
    }
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize("kind", ["pytorch", "vllm"])
def test_the_guides_experiment_keys(kind: str) -> None:
    config = seed(f"guide-experiment-{kind}")
    settings = config.settings_for(kind)
    assert settings["fp_precision"] == "float16"
    assert settings["batching.batch_size"] == 8
    assert (settings["sharding.strategy"], settings["sharding.num_shards"]) == ("tensor_parallel", 2)
    sampling = config.sampling_for(kind)
    assert (sampling["max_tokens"], sampling["min_tokens"], sampling["seed"]) == (128, 1, 42)
    assert ("no_repeat_ngram_size" in sampling) == (kind == "pytorch")
    assert (config.experiment.num_input_prompts, config.experiment.num_cycles) == (100, 3)
    assert config.experiment.traffic_simulation.target_qps == 2.0
    assert config.experiment.effective_profile == {"kind": "poisson", "rate": 2.0}


@pytest.mark.parametrize("preset", [name for name in PRESETS if not name.startswith("llamacpp-")])
@pytest.mark.parametrize("name", [name for name in WITHOUT_EFFECT if name.startswith("guide-")])
def test_the_guides_files_load_on_the_guides_presets(name: str, preset: str) -> None:
    """The file wins; the preset fills in the rest."""
    alone, both, kind = seed(name), seed(name, preset=preset), PRESETS[preset].engine
    expected = load_config(preset=preset, environ={"ENGINEBAY_CONFIG": ""}).settings_for(kind) | alone.settings_for(
        kind
    )
    assert both.settings_for(kind) == expected
    assert both.engine == (kind if alone.engine == "auto" else alone.engine)
    misplaced = {"preset"} if alone.engine not in ("auto", kind) else set()
    assert {one.key for one in both.warnings} - {*WITHOUT_EFFECT[name]} <= misplaced | {"batching.strategy"}
    assert misplaced <= {one.key for one in both.warnings}


@pytest.mark.parametrize(
    "text",
    [
        "vllm: {max_num_seqs: 1025}",
        "vllm: {max_num_seqs: 0}",
        "vllm: {gpu_memory_utilization: 0.0}",
        "vllm: {gpu_memory_utilization: 1.0}",
        "vllm: {block_size: 12}",
        "vllm: {speculative: {num_tokens: 11}}",
        "vllm: {logprobs: 21}",
        "vllm: {logprobs: 0}",
        "vllm: {kv_cache_dtype: int3}",
        "vllm: {distributed_backend: mpi}",
        "vllm: {attention: {flash_version: 1}}",
        "pytorch: {assisted_generation: {num_tokens: 0}}",
        "pytorch: {torch_compile: fastest}",
        "pytorch: {attn_implementation: flash}",
        "fp_precision: float8",
    ],
)
def test_the_guides_ranges(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"expected .*, got"):
        load_config(path, environ={})

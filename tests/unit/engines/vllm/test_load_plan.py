"""Settings to engine arguments, without vLLM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginebay.contract import Load
from enginebay.engines.vllm.load_plan import VllmHost, VllmLoadPlan, plan_load
from enginebay.engines.vllm.settings import PROTECTED_ARGUMENTS, RETIRED, SETTINGS
from enginebay.errors import ConfigError

NATIVE = frozenset(setting.native for setting in SETTINGS.values() if setting.native and "=" not in setting.native) | {
    "max_cudagraph_capture_size",
    "async_scheduling",
}
CUDA = VllmHost("0.26.0", "cuda", NATIVE, frozenset({"bitsandbytes", "awq", "gptq"}))
CPU = VllmHost("0.32.0", "cpu", NATIVE, frozenset({"awq", "gptq"}), free_bytes=64 * 1024**3)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "dtype": "bfloat16",
}


def decide(
    settings: dict[str, Any], host: VllmHost = CUDA, task: str = "generate", ranks: dict[str, int] | None = None
) -> VllmLoadPlan:
    return plan_load(Load("vllm", "e", "m", "/m", settings, task=task), host, LLAMA, ranks)


GUIDE: dict[str, Any] = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": None,
    "gpu_memory_utilization": 0.9,
    "swap_space": 4.0,
    "cpu_offload_gb": 0.0,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "kv_cache_dtype": "fp8",
    "block_size": 16,
    "max_model_len": 8192,
    "max_seq_len_to_capture": 8192,
    "enforce_eager": False,
    "distributed_backend": "mp",
    "disable_custom_all_reduce": False,
    "attention.backend": "auto",
    "attention.flash_version": 2,
    "attention.disable_sliding_window": False,
    "speculative.model": "TinyLlama/TinyLlama-1.1B",
    "speculative.num_tokens": 5,
    "speculative.method": "ngram",
    "speculative.ngram_min": 1,
    "speculative.ngram_max": 4,
    "speculative.draft_tp_size": 1,
    "lora.enabled": True,
    "lora.max_loras": 4,
    "lora.max_rank": 16,
    "lora.extra_vocab_size": 256,
    "quantization_method": "awq",
    "load_format": "safetensors",
    "best_of": 3,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "logprobs": 5,
    "logit_bias": {123: -100},
    "extra": {},
}


def test_all_settings_on_a_gpu() -> None:
    plan = decide(GUIDE)
    assert plan.arguments == {
        "model": "/m",
        "generation_config": "vllm",
        "logprobs_mode": "raw_logprobs",
        "disable_log_stats": True,
        "trust_remote_code": False,
        "max_num_seqs": 256,
        "gpu_memory_utilization": 0.9,
        "cpu_offload_gb": 0.0,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "kv_cache_dtype": "fp8",
        "block_size": 16,
        "max_model_len": 8192,
        "enforce_eager": False,
        "distributed_executor_backend": "mp",
        "disable_custom_all_reduce": False,
        "attention_config": {"flash_attn_version": 2},
        "disable_sliding_window": False,
        "speculative_config": {
            "num_speculative_tokens": 5,
            "method": "ngram",
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 4,
        },
        "enable_lora": True,
        "max_loras": 4,
        "max_lora_rank": 16,
        "quantization": "awq",
        "load_format": "safetensors",
        "tensor_parallel_size": 1,
    }
    warned = [line.split(":")[0] for line in plan.warnings]
    assert warned == [
        "swap_space",
        "max_seq_len_to_capture",
        "lora.extra_vocab_size",
        "best_of",
        "use_beam_search",
        "length_penalty",
        "speculative.model",
        "logit_bias",
    ]


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_name_warns_with_version_and_alternative(name: str) -> None:
    (line,) = decide({name: 1}).warnings
    assert line == f"{name}: removed in vllm {RETIRED[name].since}: {RETIRED[name].instead}"


def test_a_version_that_still_takes_a_retired_name_gets_it() -> None:
    old = VllmHost("0.10.2", "cuda", NATIVE | {"swap_space"}, frozenset())
    plan = decide({"swap_space": 4}, old)
    assert plan.arguments["swap_space"] == 4
    assert not plan.warnings


def test_an_argument_that_the_installed_version_lacks_is_named() -> None:
    newer = VllmHost("0.40.0", "cuda", NATIVE - {"enable_chunked_prefill"}, frozenset())
    plan = decide({"enable_chunked_prefill": True}, newer)
    assert "enable_chunked_prefill" not in plan.arguments
    assert plan.warnings == ["enable_chunked_prefill: vllm 0.40.0 has no argument enable_chunked_prefill"]


def test_a_cpu_warns_about_what_does_not_apply() -> None:
    settings = {
        "gpu_memory_utilization": 0.9,
        "cpu_offload_gb": 4.0,
        "attention.backend": "FLASH_ATTN",
        "attention.flash_version": 3,
    }
    plan = decide({**settings, "quantization.load_in_4bit": True}, CPU)
    assert [line.split(":")[0] for line in plan.warnings] == [*settings, "quantization.load_in_4bit"]
    assert not {"gpu_memory_utilization", "cpu_offload_gb", "attention_backend", "quantization"} & set(plan.arguments)


def test_an_fp8_cache_needs_the_hardware() -> None:
    plain = VllmHost("0.32.0", "cpu", NATIVE, frozenset(), has_avx512=False)
    plan = decide({"kv_cache_dtype": "fp8"}, plain)
    assert "kv_cache_dtype" not in plan.arguments
    assert plan.warnings[0].startswith("kv_cache_dtype: ")
    assert decide({"kv_cache_dtype": "fp8"}, CPU).arguments["kv_cache_dtype"] == "fp8"


def test_a_cpu_rounds_the_block_size_up() -> None:
    plan = decide({"block_size": 16}, CPU)
    assert plan.arguments["block_size"] == 32
    assert plan.warnings[0].startswith("block_size: 16")
    assert not decide({"block_size": 64}, CPU).warnings


def test_what_suits_a_cpu() -> None:
    plan = decide({}, CPU)
    assert plan.single_process
    assert plan.arguments["enforce_eager"] is True
    assert plan.arguments["kv_cache_memory_bytes"] == 4 * 1024**3
    assert decide({"enforce_eager": False}, CPU).arguments["enforce_eager"] is False
    assert decide({"cpu_kvcache_space_gib": 0.5}, CPU).arguments["kv_cache_memory_bytes"] == 512 * 1024**2


def test_a_small_host_gives_a_quarter_of_its_memory() -> None:
    small = VllmHost("0.32.0", "cpu", NATIVE, frozenset(), free_bytes=4 * 1024**3)
    assert decide({}, small).arguments["kv_cache_memory_bytes"] == 1024**3


def test_the_environments_kv_space_applies_unless_the_setting_is_given() -> None:
    host = VllmHost("0.32.0", "cpu", NATIVE, frozenset(), kv_size_from_environment=True)
    assert "kv_cache_memory_bytes" not in decide({}, host).arguments
    assert "kv_cache_memory_bytes" in decide({"cpu_kvcache_space_gib": 1.0}, host).arguments


def test_bfloat16_without_hardware_becomes_float32() -> None:
    host = VllmHost("0.32.0", "cpu", NATIVE, frozenset(), has_bf16=False)
    assert decide({}, host).arguments["dtype"] == "float32"
    assert decide({"dtype": "bfloat16"}, host).arguments["dtype"] == "bfloat16"
    assert "dtype" not in decide({}, CPU).arguments
    assert decide({"fp_precision": "float16"}).arguments["dtype"] == "float16"


@pytest.mark.parametrize(
    "settings", [{"tensor_parallel_size": 2}, {"cpu_threads_bind": "0-1"}, {"distributed_backend": "mp"}]
)
def test_ranks_and_bound_threads_need_processes_of_their_own(settings: dict[str, Any]) -> None:
    assert not decide(settings, CPU).single_process


def test_shards() -> None:
    assert decide({"sharding.num_shards": 4}).arguments["tensor_parallel_size"] == 4
    assert decide({"sharding.strategy": "pipeline_parallel", "sharding.num_shards": 2}).world_size == 2
    assert decide({"sharding.num_shards": 4, "tensor_parallel_size": 8}).arguments["tensor_parallel_size"] == 8
    assert "sharding.strategy" in decide({"sharding.strategy": "fsdp", "sharding.num_shards": 2}).warnings[0]
    assert not decide({"sharding.strategy": "none"}).warnings


def test_batching() -> None:
    plan = decide({"batching.batch_size": 8, "batching.strategy": "static"})
    assert plan.arguments["max_num_seqs"] == 8
    assert "batching.strategy" in plan.warnings[0]
    assert decide({"batching.batch_size": 8, "max_num_seqs": 64}).arguments["max_num_seqs"] == 64


def test_4bit_with_and_without_bitsandbytes() -> None:
    assert decide({"quantization.load_in_4bit": True}).arguments["quantization"] == "bitsandbytes"
    later = VllmHost("0.32.0", "cuda", NATIVE, frozenset({"awq"}))
    plan = decide({"quantization.load_in_4bit": True}, later)
    assert "0.28.0" in plan.warnings[0]
    assert "vllm-bnb-plugin" in plan.warnings[0]


@pytest.mark.parametrize("form", ["pt", "gguf"])
def test_formats_that_are_refused(form: str) -> None:
    with pytest.raises(ConfigError, match=form):
        decide({"load_format": form})


def test_a_draft_model() -> None:
    plan = decide(
        {
            "speculative.model": "draft",
            "speculative.method": "mlp",
            "speculative.num_tokens": 3,
            "speculative.ngram_max": 2,
        }
    )
    assert plan.arguments["speculative_config"] == {
        "num_speculative_tokens": 3,
        "method": "mlp_speculator",
        "model": "draft",
    }
    assert plan.warnings == ["speculative.ngram_max: only applies to method ngram"]
    assert decide({"speculative.num_tokens": 3}).warnings


def test_adapters_imply_lora_and_size_it() -> None:
    plan = decide({}, ranks={"a": 8, "b": 20})
    assert (plan.arguments["max_loras"], plan.arguments["max_lora_rank"]) == (2, 32)
    assert "enable_lora" not in decide({}).arguments
    with pytest.raises(ConfigError):
        decide({}, ranks={"a": 4096})


def test_adapters_on_a_gpu_are_not_of_single_precision() -> None:
    with pytest.raises(ConfigError, match="float32") as refused:
        decide({"dtype": "float32"}, ranks={"a": 8})
    assert "bfloat16" in refused.value.hint
    assert decide({"dtype": "float32"}, CPU, ranks={"a": 8}).arguments["enable_lora"]
    assert decide({"dtype": "float32"}).arguments["dtype"] == "float32"


def test_a_cpu_keeps_an_adapter_slot_empty() -> None:
    assert decide({"lora.max_loras": 1}, CPU, ranks={"a": 8, "b": 8}).arguments["max_loras"] == 3


def test_slots_for_adapters_added_at_runtime() -> None:
    assert decide({"lora.enabled": True}).arguments["max_loras"] == 4
    assert decide({"lora.enabled": True}, CPU).arguments["max_loras"] == 5
    assert decide({"lora.enabled": True, "lora.max_loras": 2}, CPU).arguments["max_loras"] == 3


def test_memory_that_can_sleep_where_the_device_allows_it() -> None:
    able = replace(CUDA, can_sleep=True)
    assert decide({}, able).arguments["enable_sleep_mode"] is True
    assert decide({"sleep_mode": "auto"}, able).arguments["enable_sleep_mode"] is True
    assert "enable_sleep_mode" not in decide({"sleep_mode": False}, able).arguments
    for unable in (CPU, replace(able, arguments=NATIVE - {"enable_sleep_mode"})):
        assert "enable_sleep_mode" not in decide({}, unable).arguments
        assert not decide({}, unable).warnings
        assert decide({"sleep_mode": True}, unable).warnings


def test_rope_scaling_keeps_the_models_base() -> None:
    plan = decide({"rope_scaling": {"type": "linear", "factor": 2.0}})
    assert plan.arguments["hf_overrides"] == {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100000.0}
    }
    yarn = decide({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}).arguments["hf_overrides"]
    assert yarn["max_position_embeddings"] == 4 * 8192
    assert yarn["rope_parameters"]["original_max_position_embeddings"] == 8192
    theta = decide({"rope_theta": 5000.0}).arguments["hf_overrides"]
    assert theta == {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}


def test_extra_arguments_pass_and_misspelt_ones_are_named() -> None:
    plan = decide({"extra": {"async_scheduling": False, "max_num_seq": 3}})
    assert plan.arguments["async_scheduling"] is False
    assert plan.warnings == ["extra.max_num_seq: vllm 0.26.0 has no such argument; did you mean max_num_seqs?"]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("trust_remote_code", "trust_remote_code"),
        ("load_format", "load_format"),
        ("model", "model"),
        ("tokenizer", "tokenizer"),
        ("hf_overrides", "rope_scaling"),
        ("speculative_config", "speculative.model"),
        ("spec_model", "speculative.model"),
        ("enable_lora", "loras"),
        ("generation_config", "sampling"),
        ("runner", "task"),
    ],
)
def test_extra_bypasses_no_check(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"extra must not set {name}") as caught:
        decide({"extra": {"async_scheduling": False, name: "x"}})
    assert instead in caught.value.hint and caught.value.param == f"extra.{name}"


def test_fixed_arguments_are_protected() -> None:
    fixed = set(decide({}, task="embed").arguments) - {"disable_log_stats", "tensor_parallel_size"}
    assert fixed <= set(PROTECTED_ARGUMENTS)


def test_embedding_models_run_as_poolers() -> None:
    arguments = decide({}, task="embed").arguments
    assert (arguments["runner"], arguments["convert"]) == ("pooling", "embed")


def test_a_removed_backend_becomes_auto() -> None:
    plan = decide({"attention.backend": "TORCH_SDPA"})
    assert "attention_backend" not in plan.arguments
    assert "0.11.1" in plan.warnings[0]
    assert decide({"attention.backend": "flashinfer"}).arguments["attention_backend"] == "FLASHINFER"


def test_mixed_steps_are_captured_on_one_gpu() -> None:
    assert decide({}).mixed_graphs
    assert not decide({"mixed_graphs": "off"}).mixed_graphs
    assert not decide({"sharding.num_shards": 2}).mixed_graphs
    assert not decide({}, CPU).mixed_graphs
    assert not decide({"extra": {"max_cudagraph_capture_size": 64}}).mixed_graphs  # theirs to say

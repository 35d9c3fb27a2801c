from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enginebay.contract import Load, Support, parameters
from enginebay.engines.llamacpp.load_plan import (
    EnumMember,
    LlamaHost,
    LlamaLoadPlan,
    estimate_cache_bytes_per_token,
    plan_load,
)
from enginebay.engines.llamacpp.spec import SPEC
from enginebay.errors import ConfigError
from enginebay.text.gguf.gguf_reader import GgufFile

_SHAPE = {"context_length": 8192, "block_count": 30, "embedding_length": 576}
_HEADS = {"attention.head_count": 9, "attention.head_count_kv": 3}


def _file(**shape: int) -> GgufFile:
    metadata = {f"llama.{name}": value for name, value in {**_SHAPE, **_HEADS, **shape}.items()}
    return GgufFile(Path("m.gguf"), 3, {"general.architecture": "llama", **metadata}, ())


_SMOL = _file()


def _plan(
    task: str = "generate", file: GgufFile = _SMOL, free_bytes: int = 2**34, gpu_free_bytes: int = 0, **settings: Any
) -> LlamaLoadPlan:
    dotted = {name.replace("__", "."): value for name, value in settings.items()}
    return plan_load(
        Load("llamacpp", "", "m", "m.gguf", dotted, task=task), file, LlamaHost(4, free_bytes, gpu_free_bytes)
    )


def test_the_spec_declares_every_parameter_and_refusals_name_an_alternative() -> None:
    assert set(SPEC.request) == set(parameters())
    declared = [*SPEC.request.values(), *(one.capability for one in SPEC.settings.values())]
    assert all(one.detail for one in declared if one.support is not Support.HONOURS)


def test_every_request_may_use_the_whole_context() -> None:
    plan = _plan(context_length=1024, max_batch=4)
    assert plan.attributes["n_ctx"] == 4096 and plan.attributes["kv_unified"] is False
    assert plan.attributes["ctx_shift"] is False and not plan.has_shared_cache


def test_by_default_the_cache_stays_within_its_memory() -> None:
    plan = _plan()
    assert (plan.context_length, plan.max_batch) == (8192, 32)
    assert plan.has_shared_cache and plan.attributes["kv_unified"] is True
    assert plan.cache_tokens * estimate_cache_bytes_per_token({}, _SMOL) <= 2**30


def test_requested_sizes_get_half_of_the_free_memory() -> None:
    assert not _plan(context_length=2048, max_batch=32).has_shared_cache
    assert _plan(context_length=2048, max_batch=32, free_bytes=2**31).has_shared_cache


def test_a_gpu_gives_half_of_its_free_memory() -> None:
    assert _plan(gpu_free_bytes=64 * 2**30).has_shared_cache is False
    assert _plan(gpu_free_bytes=64 * 2**30, gpu_layers=0).has_shared_cache is True


def test_one_full_request_always_fits() -> None:
    assert _plan(file=_file(block_count=30_000)).cache_tokens == 8192


def test_cache_bytes_follow_the_cache_type() -> None:
    assert estimate_cache_bytes_per_token({}, _SMOL) == 30 * 3 * 64 * 2 * 2
    assert (
        estimate_cache_bytes_per_token({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, _SMOL)
        == 30 * 3 * 64 * 2 * 1.0625
    )


def test_universal_keys() -> None:
    plan = _plan(
        batching__batch_size=3, fp_precision="float16", quantization__load_in_4bit=True, sharding__num_shards=1
    )
    assert plan.max_batch == 3 and plan.attributes["n_parallel"] == 3
    assert [line.split()[0] for line in plan.warnings] == ["fp_precision", "quantization.load_in_4bit"]
    assert "fp_precision" not in plan.effective


@pytest.mark.parametrize(("layers", "gpu_free_bytes", "warned"), [(20, 0, 1), (20, 2**30, 0), (0, 0, 0), (-1, 0, 0)])
def test_gpu_layers_without_a_gpu_warn(layers: int, gpu_free_bytes: int, warned: int) -> None:
    plan = _plan(gpu_layers=layers, gpu_free_bytes=gpu_free_bytes)
    assert [line.split()[0] for line in plan.warnings] == ["gpu_layers"] * warned


@pytest.mark.parametrize(
    ("settings", "attribute", "value"),
    [
        (
            {"flash_attention": True},
            "flash_attn_type",
            EnumMember("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED"),
        ),
        (
            {"flash_attention": "auto"},
            "flash_attn_type",
            EnumMember("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_AUTO"),
        ),
        ({"cache_type_k": "q8_0"}, "cache_type_k", EnumMember("ggml_type", "GGML_TYPE_Q8_0")),
        ({"mmap": False}, "load_mode", EnumMember("llama_load_mode", "LLAMA_LOAD_MODE_NONE")),
        ({"mlock": True}, "load_mode", EnumMember("llama_load_mode", "LLAMA_LOAD_MODE_MMAP_MLOCK")),
        (
            {"rope_scaling.type": "yarn"},
            "rope_scaling_type",
            EnumMember("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_YARN"),
        ),
        ({"threads": 3}, "cpuparams_batch.n_threads", 3),
        ({}, "cpuparams.n_threads", 4),
        ({"kv_offload": False}, "no_kv_offload", True),
        ({"speculative.model": "d.gguf", "speculative.num_tokens": 2}, "speculative.draft.n_max", 2),
        ({"speculative.method": "ngram", "speculative.ngram_max": 5}, "speculative.ngram_simple.size_n", 5),
        ({"extra": {"n_keep": 9}}, "n_keep", 9),
    ],
)
def test_settings_become_attributes(settings: dict[str, Any], attribute: str, value: object) -> None:
    assert _plan(**settings).attributes[attribute] == value


@pytest.mark.parametrize("name", ["model.path", "hostnames", "api_keys", "n_ctx", "server_tools"])
def test_extra_opens_no_port_and_no_other_file(name: str) -> None:
    with pytest.raises(ConfigError, match="extra must not set"):
        _plan(extra={name: "x"})


def test_steps_are_short_without_a_gpu_since_a_cancel_waits_for_one() -> None:
    assert _plan().attributes["n_batch"] == 128 and _plan(gpu_free_bytes=2**30).attributes["n_batch"] == 512
    assert _plan(batch_size=2048).attributes["n_ubatch"] == 512


def test_a_step_has_room_for_a_token_of_every_request() -> None:
    assert _plan(max_batch=200).attributes["n_batch"] == 200


def test_embedding_computes_a_text_in_one_piece() -> None:
    plan = _plan(task="embed", context_length=2048)
    assert plan.attributes["embedding"] is True and plan.attributes["n_ubatch"] == plan.attributes["n_batch"] == 2048
    assert plan.attributes["pooling_type"].member == "LLAMA_POOLING_TYPE_MEAN"
    assert plan.attributes["kv_unified"] is True, "else texts of unequal length are cut into several pieces"


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"context_length": 9000}, "context_length"),
        ({"kv_cache_tokens": 100}, "kv_cache_tokens"),
        ({"speculative.method": "draft"}, "speculative.model"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_impossible_settings_are_config_errors(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(ConfigError) as problem:
        _plan(**settings)
    assert problem.value.param == param and problem.value.hint

"""Load settings of the transformers engine."""

from __future__ import annotations

import pytest

from enginebay.contract import Sampling
from enginebay.engines.transformers.loading.load_options import (
    LoadOptions,
    apply_request_defaults,
    choose_strategy,
    find_graphs_obstacle,
    find_settings_obstacle,
    read_options,
    resolve_context_length,
)
from enginebay.errors import LoadFailed


@pytest.mark.parametrize("name", ["dtype", "torch_dtype", "fp_precision"])
def test_three_names_of_one_precision(name: str) -> None:
    assert read_options({name: "bfloat16"}).dtype == "bfloat16"


def test_names_that_disagree() -> None:
    with pytest.raises(LoadFailed, match=r"torch_dtype = float16.*fp_precision = float32"):
        read_options({"torch_dtype": "float16", "fp_precision": "float32"})


def test_gpu_numbers_become_integers() -> None:
    assert read_options({"max_memory": {"0": "20GiB", "cpu": "30GiB"}}).max_memory == {0: "20GiB", "cpu": "30GiB"}


@pytest.mark.parametrize(
    ("value", "mode"),
    [(None, None), (False, None), ("false", None), (True, "default"), ("max-autotune", "max-autotune")],
)
def test_compile_modes(value: object, mode: str | None) -> None:
    assert read_options({"torch_compile": value}).compile_mode == mode


def test_bits_exclude_each_other() -> None:
    assert read_options({"quantization.load_in_8bit": True}).quantization_bits == 8
    with pytest.raises(LoadFailed, match="mutually exclusive"):
        read_options({"quantization.load_in_4bit": True, "quantization.load_in_8bit": True})


def test_several_shards_mean_tensor_parallel() -> None:
    assert read_options({"sharding.num_shards": 2}).sharding == "tensor_parallel"
    with pytest.raises(LoadFailed, match="mutually exclusive"):
        read_options({"sharding.num_shards": 2, "device_map": "auto"})


def test_unknown_strategies() -> None:
    with pytest.raises(LoadFailed, match=r"batching\.strategy is greedy"):
        read_options({"batching.strategy": "greedy"})
    with pytest.raises(LoadFailed, match=r"sharding\.strategy is diagonal"):
        read_options({"sharding.strategy": "diagonal"})


def test_settings_are_defaults_of_requests() -> None:
    defaults = read_options({"num_beams": 4, "length_penalty": 0.5, "output_scores": True}).request_defaults
    filled = apply_request_defaults(Sampling(length_penalty=2.0), defaults)
    assert (filled.num_beams, filled.length_penalty, filled.logprobs) == (4, 2.0, 0)


@pytest.mark.parametrize(
    ("options", "obstacle"),
    [
        (LoadOptions(), None),
        (LoadOptions(use_cache=False), "use_cache is false"),
        (LoadOptions(draft_tokens=3), "assisted generation"),
        (LoadOptions(attention="flash_attention_2"), "flash_attention_2"),
    ],
)
def test_settings_that_rule_out_continuous_batching(options: LoadOptions, obstacle: str | None) -> None:
    actual = find_settings_obstacle(options)
    assert actual is None if obstacle is None else obstacle in (actual or "")


def test_the_strategy_that_is_used() -> None:
    assert choose_strategy(LoadOptions(), None) == ("continuous", None)
    assert choose_strategy(LoadOptions(), "the model has an encoder") == ("dynamic", None)
    assert choose_strategy(LoadOptions(strategy="sorted_static"), "the model has an encoder") == ("sorted_static", None)
    strategy, warning = choose_strategy(LoadOptions(strategy="continuous"), "the model has an encoder")
    assert strategy == "dynamic"
    assert "the model has an encoder" in (warning or "")


def test_context_length() -> None:
    assert resolve_context_length({"max_position_embeddings": 2048}, None, None) == 2048
    assert resolve_context_length({"n_positions": 1024}, 512, None) == 512
    assert (
        resolve_context_length({"max_position_embeddings": 2048}, None, {"rope_type": "linear", "factor": 4.0}) == 8192
    )
    assert resolve_context_length({"max_position_embeddings": 2048}, 4096, {"factor": 2.0}) == 4096
    with pytest.raises(LoadFailed, match="context_length is 4096, but the model supports 2048"):
        resolve_context_length({"max_position_embeddings": 2048}, 4096, None)


@pytest.mark.parametrize(
    ("settings", "devices", "single_process", "quantized", "reason"),
    [
        ({}, {"cuda:0"}, True, False, None),
        ({"cuda_graphs": "auto"}, {"cuda:1"}, True, False, None),
        ({"cuda_graphs": "off"}, {"cuda:0"}, True, False, "cuda_graphs is off"),
        ({}, {"cpu"}, True, False, "the model is not on CUDA"),
        ({}, {"cuda:0", "cpu"}, True, False, "the model is not on CUDA"),
        ({}, {"cuda:0", "cuda:1"}, True, False, "the model is on several devices"),
        ({}, {"cuda:0"}, False, False, "the model is on several devices"),
        ({"torch_compile": True}, {"cuda:0"}, True, False, None),
        (
            {"torch_compile": "max-autotune"},
            {"cuda:0"},
            True,
            False,
            "torch_compile: max-autotune uses its own CUDA graphs",
        ),
        ({}, {"cuda:0"}, True, True, "the weights are quantized"),
    ],
)
def test_when_cuda_graphs_are_used(
    settings: dict[str, object], devices: set[str], single_process: bool, quantized: bool, reason: str | None
) -> None:
    assert find_graphs_obstacle(read_options(settings), devices, single_process, quantized) == reason

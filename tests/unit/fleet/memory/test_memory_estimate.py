from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.contract import EngineSpec, Load, MemoryEstimate, MemoryFacts
from enginebay.engines.llamacpp.load_plan import LlamaHost, plan_load
from enginebay.engines.registry import get_spec, list_kinds
from enginebay.errors import EngineFailed
from enginebay.fleet.memory import memory_estimate
from enginebay.fleet.memory.memory_estimate import apply_observed_memory, estimate_asleep_memory, gather_memory_facts
from enginebay.fleet.memory.oom_fallback import reduce_settings
from enginebay.text.gguf.gguf_reader import read_gguf
from enginebay.util.hardware import Gpu, HostFacts
from tests.unit.text.tiny_gguf import build_tiny_llama

GIB, MIB = 2**30, 2**20
SHAPE = {"layers": 30, "kv_heads": 3, "head_dim": 64, "context_length": 8192}
PER_TOKEN = 30 * 3 * 64 * 2 * 2  # of KV cache, in 16 bits


def facts(
    kind: str, weights: int = GIB, gpus: tuple[int, ...] = (), task: str = "generate", **settings: Any
) -> MemoryFacts:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return MemoryFacts(
        kind, weights, settings=named, gpus=gpus, cuda=bool(gpus), task=task, memory_bytes=24 * GIB, **SHAPE
    )


def spec_of(kind: str) -> EngineSpec:
    return get_spec(kind) if kind in list_kinds() else replace(get_spec("openai"), kind=kind)


def estimate(given: MemoryFacts) -> MemoryEstimate:
    return memory_estimate.estimate_memory(spec_of(given.kind), given, Path(sys.executable))


def estimate_memory(given: MemoryFacts) -> dict[str, int]:
    return dict(estimate(given).pools)


def resolve_size_settings(given: MemoryFacts) -> dict[str, int]:
    return dict(estimate(given).sizes)


def weigh(asked: Load, on: HostFacts) -> int:
    return estimate(gather_memory_facts(asked, on)).weights_bytes


def test_llamacpp_takes_no_more_than_a_gibibyte_of_cache_unasked() -> None:
    assert estimate_memory(facts("llamacpp")) == {"ram": pytest.approx(2 * GIB + 300 * MIB, abs=PER_TOKEN)}


def test_llamacpp_gives_every_request_its_context_when_sizes_are_asked_for() -> None:
    found = estimate_memory(facts("llamacpp", context_length=4096, max_batch=8))
    assert found == {"ram": GIB + 8 * 4096 * PER_TOKEN + 300 * MIB}
    asked = estimate_memory(facts("llamacpp", context_length=4096, max_batch=8, kv_cache_tokens=5000))
    assert asked == {"ram": GIB + 5000 * PER_TOKEN + 300 * MIB}
    half_as_wide = estimate_memory(
        facts("llamacpp", context_length=4096, kv_cache_tokens=5000, cache_type_k="q8_0", cache_type_v="q8_0")
    )
    assert half_as_wide["ram"] == pytest.approx(GIB + 5000 * PER_TOKEN * 34 / 64 + 300 * MIB, abs=5000)


def test_llamacpp_has_cache_for_one_request_at_least_and_for_all_at_most() -> None:
    assert resolve_size_settings(facts("llamacpp", max_batch=2, kv_cache_tokens=10**6))["kv_cache_tokens"] == 2 * 8192
    assert resolve_size_settings(facts("llamacpp", max_batch=2, kv_cache_tokens=100))["kv_cache_tokens"] == 8192
    on_gpu = facts("llamacpp", gpus=(80 * GIB,))
    assert resolve_size_settings(on_gpu)["kv_cache_tokens"] == 32 * 8192, (
        "the limit of what is taken unasked is of main memory alone"
    )


def test_llamacpp_cache_goes_no_further_than_half_of_the_host() -> None:
    found = estimate_memory(facts("llamacpp", weights=0, context_length=8192, max_batch=256))
    assert found["ram"] == pytest.approx(12 * GIB + 300 * MIB, abs=PER_TOKEN)


def test_llamacpp_embeds_with_one_context_and_counts_its_prompt_cache() -> None:
    found = estimate_memory(facts("llamacpp", task="embed", context_length=512, prompt_cache_mib=100))
    assert found == {"ram": GIB + 512 * PER_TOKEN + 400 * MIB}


def test_llamacpp_on_a_gpu_takes_it_in_share_of_the_layers() -> None:
    sized = {"context_length": 8192, "kv_cache_tokens": 8192}
    cache = 8192 * PER_TOKEN
    whole = estimate_memory(facts("llamacpp", gpus=(80 * GIB,), **sized))
    assert whole == {"ram": 300 * MIB, "gpu0": GIB + cache + 500 * MIB}
    part = estimate_memory(facts("llamacpp", gpus=(80 * GIB,), gpu_layers=10, **sized))
    assert part["gpu0"] == pytest.approx((GIB + cache) * 10 / 31 + 500 * MIB, abs=2)
    assert part["ram"] + part["gpu0"] == pytest.approx(whole["ram"] + whole["gpu0"], abs=2)
    assert set(estimate_memory(facts("llamacpp", gpus=(80 * GIB,), gpu_layers=0, **sized))) == {"ram"}


def test_llamacpp_never_plans_more_layers_than_fit() -> None:
    found = estimate_memory(facts("llamacpp", weights=20 * GIB, gpus=(8 * GIB,), kv_cache_tokens=8192))
    assert found["gpu0"] <= 8 * GIB and found["ram"] > 12 * GIB


def test_llamacpp_splits_over_gpus_as_told_else_by_their_memory() -> None:
    two = (30 * GIB, 10 * GIB)
    given = replace(facts("llamacpp", weights=4 * GIB, gpus=two, kv_cache_tokens=8192), gpus_configured=True)
    by_memory = estimate_memory(given)
    told = estimate_memory(facts("llamacpp", weights=4 * GIB, gpus=two, kv_cache_tokens=8192, tensor_split=[1, 1]))
    one = estimate_memory(
        facts("llamacpp", weights=4 * GIB, gpus=two, kv_cache_tokens=8192, split_mode="none", main_gpu=1)
    )
    assert by_memory["gpu0"] > by_memory["gpu1"] and told["gpu0"] == told["gpu1"] and set(one) == {"ram", "gpu1"}


def test_vllm_on_a_cpu_reserves_its_cache() -> None:
    assert estimate_memory(facts("vllm")) == {"ram": GIB + 4 * GIB + int(1.5 * GIB)}
    assert estimate_memory(facts("vllm", cpu_kvcache_space_gib=0.5)) == {"ram": 3 * GIB}
    ranks = estimate_memory(facts("vllm", cpu_kvcache_space_gib=0.5, tensor_parallel_size=2))
    assert ranks == {"ram": 5 * GIB}, "each rank has a cache and a library of its own"


def test_vllm_on_gpus_takes_its_share_of_each_that_it_uses() -> None:
    four = (80 * GIB,) * 4
    assert estimate_memory(facts("vllm", gpus=four)) == {"ram": 4 * GIB, "gpu0": int(80 * GIB * 0.92)}
    found = estimate_memory(
        facts("vllm", gpus=four, tensor_parallel_size=2, gpu_memory_utilization=0.5, cpu_offload_gb=3)
    )
    assert found == {"ram": 12 * GIB, "gpu0": 40 * GIB, "gpu1": 40 * GIB}
    assert set(estimate_memory(facts("vllm", gpus=four, sharding__num_shards=3))) == {"ram", "gpu0", "gpu1", "gpu2"}
    assert set(estimate_memory(facts("vllm", gpus=four, extra={"tensor_parallel_size": 2}))) == {"ram", "gpu0", "gpu1"}


def test_transformers_holds_weights_some_cache_and_its_library() -> None:
    assert estimate_memory(facts("transformers")) == {"ram": 3 * GIB}
    assert estimate_memory(facts("transformers", use_cache=False)) == {"ram": 2 * GIB}
    assert estimate_memory(facts("transformers", gpus=(80 * GIB,) * 2)) == {"ram": 2 * GIB, "gpu0": 3 * GIB}
    assert set(estimate_memory(facts("transformers", gpus=(80 * GIB,) * 2, device="cuda:1"))) == {"ram", "gpu1"}
    assert set(estimate_memory(facts("transformers", gpus=(80 * GIB,) * 2, device="cpu"))) == {"ram"}
    spread = estimate_memory(facts("transformers", gpus=(80 * GIB,) * 2, device_map="auto"))
    assert spread == {"ram": 2 * GIB, "gpu0": 2 * GIB, "gpu1": 2 * GIB}


def test_engines_without_weights_are_small() -> None:
    assert estimate_memory(MemoryFacts("openai")) == estimate_memory(MemoryFacts("fake")) == {"ram": 100 * MIB}
    assert estimate_memory(MemoryFacts("fake", settings={"memory_bytes": 12345})) == {"ram": 12345}
    assert estimate_memory(MemoryFacts("someone-elses", weights_bytes=GIB))["ram"] > 2 * GIB


@given(
    kind=st.sampled_from(["llamacpp", "vllm", "transformers", "fake", "openai", "other"]),
    weights=st.integers(0, 2**40),
    shape=st.tuples(st.integers(0, 200), st.integers(0, 128), st.integers(0, 512)),
    context=st.none() | st.integers(1, 2**20),
    gpus=st.lists(st.integers(0, 2**38), max_size=4),
    memory=st.integers(0, 2**41),
)
def test_every_prediction_is_a_number_in_a_pool_of_the_host(
    kind: str, weights: int, shape: tuple[int, int, int], context: int | None, gpus: list[int], memory: int
) -> None:
    layers, kv_heads, head_dim = shape
    given_facts = MemoryFacts(
        kind, weights, layers=layers, kv_heads=kv_heads, head_dim=head_dim, context_length=context,
        gpus=tuple(gpus), cuda=bool(gpus), memory_bytes=memory,
    )  # fmt: skip
    found = estimate_memory(given_facts)
    assert found["ram"] > 0 and set(found) <= {"ram", *(f"gpu{one}" for one in range(len(gpus)))}
    assert all(isinstance(amount, int) and amount >= 0 for amount in found.values())
    if not gpus and kind in ("llamacpp", "vllm", "transformers"):
        assert found["ram"] >= weights


def test_what_was_measured_wins_and_the_configuration_over_that() -> None:
    predicted = {"ram": 100, "gpu0": 1000}
    assert apply_observed_memory(predicted, {}) == predicted
    assert apply_observed_memory(predicted, {"ram": 40, "gpu0": 0}) == {"ram": 42, "gpu0": 1000}
    assert apply_observed_memory(predicted, {"gpu1": 20}) == {"ram": 100, "gpu0": 1000, "gpu1": 21}
    assert apply_observed_memory(predicted, {"ram": 40}, memory_bytes=7) == {"ram": 7, "gpu0": 1000}


def test_asleep_the_gpu_is_nearly_free_and_level_one_keeps_the_weights_in_ram() -> None:
    awake = {"ram": 4 * GIB, "gpu0": 70 * GIB}
    left = int(70 * GIB * 0.02) + GIB
    assert estimate_asleep_memory(awake, (1, 2), "auto", 15 * GIB) == {"ram": 19 * GIB, "gpu0": left}
    assert estimate_asleep_memory(awake, (1, 2), 1, 15 * GIB) == {"ram": 19 * GIB, "gpu0": left}
    assert estimate_asleep_memory(awake, (1, 2), 2, 15 * GIB) == {"ram": 4 * GIB, "gpu0": left}


@pytest.mark.parametrize(("levels", "sleep"), [((), "auto"), ((), 1), ((1,), 2), ((1, 2), "off")])
def test_what_cannot_sleep_is_kept_as_it_is(levels: tuple[int, ...], sleep: str | int) -> None:
    awake = {"ram": 4 * GIB, "gpu0": 70 * GIB}
    assert estimate_asleep_memory(awake, levels, sleep, 15 * GIB) == awake


def test_without_a_gpu_sleeping_moves_nothing() -> None:
    assert estimate_asleep_memory({"ram": GIB}, (1,), "auto", GIB) == {"ram": GIB}


@given(
    st.dictionaries(st.sampled_from(["ram", "gpu0", "gpu1"]), st.integers(0, 2**40)),
    st.sets(st.integers(1, 2)),
    st.sampled_from(["auto", "off", 1, 2]),
)
def test_sleeping_never_takes_more_of_a_gpu(awake: dict[str, int], levels: set[int], sleep: str | int) -> None:
    found = estimate_asleep_memory(awake, levels, sleep, GIB)
    assert all(found[pool] <= amount for pool, amount in awake.items() if pool != "ram")


def test_smaller_settings_really_need_less_when_all_sizes_are_set() -> None:
    """A context set alone would let llamacpp take a larger cache than it takes unasked."""
    unasked = facts("llamacpp")
    declared = replace(get_spec("llamacpp"), smaller=("context_length", "kv_cache_tokens"))
    reduced = reduce_settings(declared, resolve_size_settings(unasked), None)
    assert reduced is not None and reduced["context_length"] == 4096
    assert estimate_memory(facts("llamacpp", **reduced))["ram"] < estimate_memory(unasked)["ram"]


def test_sizes_name_the_setting_of_each_engine() -> None:
    assert resolve_size_settings(facts("vllm")) == {"max_model_len": 8192}
    assert resolve_size_settings(facts("transformers", context_length=100)) == {"context_length": 100}
    long = replace(facts("llamacpp"), context_length=131072)
    assert resolve_size_settings(long)["context_length"] == 8192, "what the engine takes, not what the model could"


# Gathering


def host(*gpus: int, features: tuple[str, ...] = ()) -> HostFacts:
    found = tuple(Gpu(index, "GPU", size) for index, size in enumerate(gpus))
    return HostFacts("Linux", "x", "cpu", features, 2, 2, 24 * GIB, 12 * GIB, found, "", "", 0, "3.11", True)


def load(kind: str, path: Path | str, **settings: Any) -> Load:
    return Load(kind, "a:B", "m", str(path), {name.replace("__", "."): value for name, value in settings.items()})


def write_safetensors(path: Path, tensors: dict[str, tuple[str, int, int]]) -> int:
    """`tensors`: name -> dtype, values, bytes. Gives back the bytes of all."""
    head, end = {}, 0
    for name, (dtype, count, size) in tensors.items():
        head[name] = {"dtype": dtype, "shape": [count], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return end


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = {
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576,
        "max_position_embeddings": 8192, "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / "model.safetensors", {"a": ("BF16", 1000, 2000), "b": ("BF16", 500, 1000)})
    write_safetensors(tmp_path / "consolidated.safetensors", {"a": ("BF16", 1500, 3000)})
    return tmp_path


def test_a_directory_tells_its_shape(folder: Path) -> None:
    found = gather_memory_facts(load("vllm", folder), host())
    assert (found.layers, found.kv_heads, found.head_dim, found.context_length) == (30, 3, 64, 8192)
    assert found.memory_bytes == 24 * GIB and not found.cuda and found.gpus == ()


@pytest.mark.parametrize(
    ("kind", "settings", "features", "gpus", "value_bytes"),
    [
        ("transformers", {}, (), (), 4),
        ("transformers", {"dtype": "auto"}, (), (), 2),
        ("transformers", {"torch_dtype": "float16"}, (), (), 2),
        ("transformers", {}, (), (GIB,), 2),
        ("transformers", {"device": "cpu"}, (), (GIB,), 4),
        ("transformers", {"quantization__load_in_4bit": True}, (), (GIB,), 0.6),
        ("vllm", {}, (), (), 4),
        ("vllm", {}, ("bf16",), (), 2),
        ("vllm", {"dtype": "float32"}, ("bf16",), (), 4),
        ("vllm", {}, (), (GIB,), 2),
    ],
)
def test_weights_are_counted_in_the_precision_the_engine_holds_them_in(
    folder: Path,
    kind: str,
    settings: dict[str, Any],
    features: tuple[str, ...],
    gpus: tuple[int, ...],
    value_bytes: float,
) -> None:
    assert weigh(load(kind, folder, **settings), host(*gpus, features=features)) == 1500 * value_bytes


def test_quantised_weights_stay_packed_unless_the_engine_must_unpack_them(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", {"q": ("I32", 100, 400), "s": ("F16", 10, 20)})
    assert weigh(load("vllm", folder), host(GIB)) == 420
    assert weigh(load("transformers", folder), host(GIB)) == 100 * 8 * 2 + 20


def test_the_library_decides_whether_gpus_count(folder: Path) -> None:
    assert gather_memory_facts(load("llamacpp", folder), host(GIB, GIB)).gpus == (GIB, GIB)
    assert gather_memory_facts(load("transformers", folder), host(GIB), devices=("cpu", "cuda:0")).cuda
    built_for_cpu = gather_memory_facts(load("llamacpp", folder), host(GIB), devices=("cpu",))
    assert not built_for_cpu.cuda and built_for_cpu.gpus == ()


def test_adapters_and_a_draft_model_count_too(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    beside = tmp_path_factory.mktemp("beside")
    draft = beside / "draft.gguf"
    draft.write_bytes(bytes(700))
    write_safetensors(beside / "adapter_model.safetensors", {"a": ("F32", 10, 40)})
    alone = weigh(load("vllm", folder), host())
    asked = load("vllm", folder, speculative__model=str(draft))
    with_both = Load(asked.kind, "a:B", "m", asked.path, asked.settings, {"x": str(beside)})
    extra = (beside / "adapter_model.safetensors").stat().st_size + 700
    assert weigh(with_both, host()) == alone + extra


def test_a_text_model_inside_another_tells_its_own_shape(folder: Path) -> None:
    text = {"num_hidden_layers": 7, "num_attention_heads": 4, "hidden_size": 64, "n_positions": 128}
    (folder / "config.json").write_text(json.dumps({"text_config": text, "num_attention_heads": 99}))
    found = gather_memory_facts(load("transformers", folder), host())
    assert (found.layers, found.kv_heads, found.head_dim, found.context_length) == (7, 4, 16, 128)


@pytest.mark.parametrize(
    "content", ["", "[1]", "{", '{"num_hidden_layers": "many", "text_config": 3}', '{"n_head": 0}']
)
def test_a_config_without_a_shape_still_gives_a_need(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    found = gather_memory_facts(load("transformers", folder), host())
    assert found.layers == 0 and estimate(found).weights_bytes == 6000
    assert estimate_memory(found)["ram"] == 6000 + 6000 * 32 + GIB, (
        "as much cache as weights for 8192 tokens of each request"
    )


def test_weights_that_cannot_be_read_count_by_their_size(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"garbage" * 100)
    assert weigh(load("transformers", folder), host()) == 700


def test_a_damaged_or_missing_gguf_counts_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + bytes(996))
    found = gather_memory_facts(load("llamacpp", path), host())
    assert (found.weights_bytes, found.layers) == (1000, 0)
    assert weigh(load("llamacpp", tmp_path / "none.gguf"), host()) == 0


def test_a_gguf_tells_its_shape(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(build_tiny_llama(**{"llama.attention.key_length": 24, "llama.attention.value_length": 8}))
    found = gather_memory_facts(load("llamacpp", path), host())
    assert (found.layers, found.kv_heads, found.head_dim, found.context_length) == (1, 2, 16, 256)
    assert found.weights_bytes == path.stat().st_size


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"context_length": 64},
        {"context_length": 64, "kv_cache_tokens": 100},
        {"max_batch": 256},
        {"batching.batch_size": 2},
        {"max_batch": 256, "cache_type_k": "f32", "cache_type_v": "q4_0"},
    ],
)
@pytest.mark.parametrize("memory", [64 * 1024, 2**20, 64 * GIB])
@pytest.mark.parametrize("gpu", [0, 2**20])
def test_llamacpp_is_predicted_as_it_plans_itself(
    tmp_path: Path, settings: dict[str, Any], memory: int, gpu: int
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(build_tiny_llama())
    asked = Load("llamacpp", "a:B", "m", str(path), settings)
    engine = plan_load(asked, read_gguf(path), LlamaHost(2, free_bytes=memory, gpu_free_bytes=gpu))
    found = resolve_size_settings(
        replace(gather_memory_facts(asked, host(*([gpu] if gpu else []))), memory_bytes=memory)
    )
    expected = (engine.context_length, engine.max_batch, engine.cache_tokens)
    assert (found["context_length"], found["max_batch"]) == expected[:2]
    assert found["kv_cache_tokens"] == pytest.approx(expected[2], rel=0.05)


def test_all_files_of_a_split_gguf_count(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05d}-of-00003.gguf").write_bytes(b"GGUF" + bytes(96))
    assert weigh(load("llamacpp", tmp_path / "m-00001-of-00003.gguf"), host()) == 300


def test_no_path_is_an_engine_without_weights() -> None:
    assert weigh(load("fake", Path()), host()) == weigh(load("openai", ""), host()) == 0


# A third-party estimate


def test_a_third_party_estimate_is_rounded_up_and_its_faults_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(get_spec("openai"), kind="other", memory=f"{__name__}:estimate_by_others")

    def run(result: Any) -> Any:
        monkeypatch.setitem(globals(), "estimate_by_others", lambda given: result(given))
        return memory_estimate.estimate_memory(spec, MemoryFacts("other", 10), Path(sys.executable))

    assert run(lambda given: MemoryEstimate({"ram": given.weights_bytes * 1.15})).pools == {"ram": 12}
    for fault in (
        lambda given: {"ram": 1},
        lambda given: 1 / 0,
        lambda given: MemoryEstimate({"ram": "much"}),
        lambda given: MemoryEstimate({"vram": 1}),
        lambda given: MemoryEstimate({"ram": -3}),
    ):
        with pytest.raises(EngineFailed, match="the memory estimate of other failed"):
            run(fault)


def test_an_estimate_that_is_not_there_is_named() -> None:
    spec = replace(get_spec("openai"), kind="other", memory="enginebay_no_such_package.memory:estimate")
    with pytest.raises(EngineFailed, match="enginebay_no_such_package"):
        memory_estimate.estimate_memory(spec, MemoryFacts("other"), Path(sys.executable))

"""What a model takes of GPUs, by its `gpus` key and its engine: examples, and every bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from enginebay.cli.main import main
from enginebay.config.loader import load_config
from enginebay.contract import MemoryEstimate
from enginebay.engines.registry import get_spec
from enginebay.errors import ConfigError
from enginebay.fleet.memory import gpu_needs
from enginebay.fleet.memory.gpu_needs import GpusKey, build_gpu_need, check_gpus, derive_gpu_settings
from enginebay.fleet.routing.variants import Variant, build_variants, find_gpu_clashes
from enginebay.fleet.scheduling.device_placement import WHOLE_GPU, GpuNeed
from enginebay.util.gpus.gpu_discovery import PLACED_GPUS, VISIBLE_DEVICES, Gpu
from enginebay.util.hardware import HostFacts

GIB = 2**30


def host(*sizes: int, **fields: Any) -> HostFacts:
    gpus = tuple(Gpu(index, "H200", size, f"GPU-{index}") for index, size in enumerate(sizes))
    return HostFacts("Linux", "x86_64", "c", (), 2, 2, 64 * GIB, 8, gpus, "1", "/h", 1, "3.12", pip=True, **fields)


def need(gpus: GpusKey, *amounts: int, whole: bool = False, on: HostFacts | None = None) -> GpuNeed | None:
    pools = {"ram": 1, **{f"gpu{rank}": amount for rank, amount in enumerate(amounts) if amount >= 0}}
    return build_gpu_need(MemoryEstimate(pools, whole_gpus=whole), gpus, on or host(80, 80, 80, 80))


def test_an_unset_key_follows_the_estimate() -> None:
    assert need(None) is None
    assert need(None, 7) == GpuNeed((7,))
    assert need(None, 7, 7, whole=True) == GpuNeed((7, 7), WHOLE_GPU)
    assert need(None, 7, 7) == GpuNeed((7, 7))


def test_an_engine_whose_settings_name_a_gpu_sees_them_all() -> None:
    named = need(None, -1, 7)
    assert named == GpuNeed((0, 7, 0, 0), 1, (0, 1, 2, 3))
    assert named.list_used(named.only) == (1,) and named.to_pools(named.only) == {"gpu1": 7, "gpu1.share": 1}


def test_whole_gpus_parts_and_pins() -> None:
    assert need(1, 7) == GpuNeed((7,), WHOLE_GPU)
    assert need(0.25, 7) == GpuNeed((7,), 250)
    assert need((3, 1), 7, 7) == GpuNeed((7, 7), 1, (3, 1))
    assert need((3, 1), 7, 7, whole=True) == GpuNeed((7, 7), WHOLE_GPU, (3, 1))


def test_a_gpu_without_its_own_memory_has_the_hosts() -> None:
    shared = host(0)
    assert need(None, 0, on=shared) == GpuNeed((1,))
    assert gpu_needs.list_gpu_capacity(shared.gpus, 64 * GIB, None) == {"gpu0": int(64 * GIB * 0.95)}


def test_different_gpus_count_as_the_largest() -> None:
    mixed = host(24, 80, 48)
    assert gpu_needs.select_gpu_sizes(None, mixed) == (80, 48, 24)
    assert gpu_needs.select_gpu_sizes(2, mixed) == (80, 48)
    assert gpu_needs.select_gpu_sizes((0, 2), mixed) == (24, 48)


def test_settings_follow_the_key_unless_they_are_set() -> None:
    vllm = get_spec("vllm")
    assert derive_gpu_settings(vllm, {}, 0.5) == {"gpu_memory_utilization": 0.46}
    assert derive_gpu_settings(vllm, {"gpu_memory_utilization": 0.3}, 0.5) == {}
    assert derive_gpu_settings(vllm, {}, 2) == derive_gpu_settings(vllm, {}, (0, 3)) == {"tensor_parallel_size": 2}
    assert derive_gpu_settings(vllm, {"pipeline_parallel_size": 2}, 2) == {}
    assert derive_gpu_settings(vllm, {}, 1) == derive_gpu_settings(vllm, {}, None) == {}
    assert derive_gpu_settings(get_spec("llamacpp"), {}, 2) == {}
    assert derive_gpu_settings(get_spec("transformers"), {}, 0.5) == {"gpu_memory_fraction": 0.46}


def test_the_variables_of_a_worker() -> None:
    gpus = host(80, 80, 80).gpus
    assert gpu_needs.build_device_variables(gpus, (2, 0), (2, 0)) == {
        VISIBLE_DEVICES: "GPU-2,GPU-0", PLACED_GPUS: "GPU-2,GPU-0"
    }  # fmt: skip
    by_number = [replace(gpu, device=str(gpu.index)) for gpu in gpus]
    assert gpu_needs.build_device_variables(by_number, (0, 1), (1,)) == {
        VISIBLE_DEVICES: "0,1", PLACED_GPUS: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"
    }  # fmt: skip


def test_a_lost_gpu_is_named() -> None:
    problem = "GPU 1 cannot be used: GPU is lost"
    with pytest.raises(ConfigError) as caught:
        check_gpus((1,), replace(host(80), gpu_problems=(problem,)))
    assert caught.value.message == "gpus lists GPU 1, but this host has only GPU 0" and caught.value.hint == problem
    with pytest.raises(ConfigError, match="this host has no GPU that can be used"):
        check_gpus(1, host())


# With a configuration


def plan(folder: Path, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch, gpus: str = "2x80GiB") -> list[Variant]:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", gpus)
    monkeypatch.setenv("ENGINEBAY_HOME", str(folder))
    (folder / "c.yaml").write_text(yaml.safe_dump({"models": models}))
    config = load_config(folder / "c.yaml")
    return build_variants(config, config.models)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"gpus": 9}, "gpus is 9, but this host has only GPUs 0, 1"),
    ({"gpus": [0, 5]}, "gpus lists GPU 5, but this host has only GPUs 0, 1"),
    ({"gpus": 1.5}, "expected whole GPUs (1, 2, ...), a fraction of one (0.01 to 0.99) or a list of GPUs, got 1.5"),
    ({"gpus": 0}, "expected whole GPUs"),
    ({"gpus": -0.5}, "expected whole GPUs"),
    ({"gpus": []}, "expected a list of GPU indexes"),
    ({"gpus": [1, 1]}, "lists a GPU twice: [1, 1]"),
    ({"gpus": ["a"]}, "expected a list of GPU indexes, such as [0, 1], got ['a']"),
    ({"gpus": "all"}, "expected a whole number or a number or a list, got 'all'"),
    ({"fake": {"tensor_parallel_size": 4, "gpu_memory_bytes": 1}}, "take 4 GPUs, but this host has only GPUs 0, 1"),
    (
        {"gpus": 0.5, "fake": {"tensor_parallel_size": 2}},
        "gpus gives it a part of one GPU, but its parallel settings take 2",
    ),
    ({"gpus": 1, "fake": {"tensor_parallel_size": 2}}, "gpus gives it 1, but its parallel settings take 2"),
    ({"gpus": 0.5, "fake": {"gpu_memory_fraction": 0.8}}, "gpus is 0.5, but gpu_memory_fraction is 0.8"),
    ({"gpus": [0, 1], "fake": {"tensor_parallel_size": 1}}, "gpus gives it 2, but its settings use 1"),
    ({"gpus": 1, "fake": {"gpu_memory_bytes": 0}}, "gpus is set, but its settings use no GPU"),
    ({"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "both gpus and CUDA_VISIBLE_DEVICES in env are set"),
]


@pytest.mark.parametrize(("keys", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_bad_input_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, {"toy": {"engine": "fake", **keys}}, monkeypatch)
    assert words in caught.value.message and "toy" in caught.value.message


def test_no_gpu_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="toy: gpus is 1, but this host has no GPU that can be used"):
        plan(tmp_path, {"toy": {"engine": "fake", "gpus": 1}}, monkeypatch, gpus="")


def test_pinned_models_must_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"engine": "fake", "pinned": True, "gpus": 0.7}
    assert len(plan(tmp_path, {"one": half, "two": half}, monkeypatch)) == 2
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, {"one": half, "two": half}, monkeypatch, "1x80GiB")
    assert caught.value.message == (
        "the pinned models do not fit on this host's GPUs together (one: 0.7 of a GPU; two: 0.7 of a GPU)"
    )


def test_pins_that_clash_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {name: {"engine": "fake", "gpus": [1], "fake": {"gpu_memory_bytes": 60 * GIB}} for name in ("one", "two")}
    variants = plan(tmp_path, models, monkeypatch)
    (line,) = find_gpu_clashes(variants, load_config(tmp_path / "c.yaml"))
    assert line == "one and two do not fit on GPU 1 together, but gpus places both there: they take turns"
    small = {name: {**model, "fake": {"gpu_memory_bytes": 30 * GIB}} for name, model in models.items()}
    assert find_gpu_clashes(plan(tmp_path, small, monkeypatch), load_config(tmp_path / "c.yaml")) == []


def test_a_models_own_variable_pins_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = {"engine": "fake", "env": {"CUDA_VISIBLE_DEVICES": "1"}, "fake": {"gpu_memory_bytes": GIB}}
    (variant,) = plan(tmp_path, {"toy": toy}, monkeypatch)
    assert variant.gpu_need == GpuNeed((GIB,), 1, (1,))


def test_without_a_key_or_a_setting_no_gpu_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (variant,) = plan(tmp_path, {"toy": {"engine": "fake"}}, monkeypatch)
    assert variant.gpu_need is None and variant.plan is not None and variant.plan.launch.devices == {}


def test_validation_warns_of_what_this_host_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINEBAY_FAKE_GPUS", "1x80GiB")
    monkeypatch.setenv("ENGINEBAY_HOME", str(tmp_path))
    pinned = {"engine": "fake", "pinned": True, "gpus": 0.7}
    models = {"toy": {"engine": "fake", "gpus": 9}, "one": pinned, "two": pinned}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"models": models}))
    assert main(["config", "validate", str(tmp_path / "c.yaml")]) == 0
    shown = capsys.readouterr().err
    assert "models.toy.gpus: gpus is 9, but this host has only GPU 0" in shown
    assert "the pinned models do not fit on this host's GPUs together (one: 0.7 of a GPU; two" in shown

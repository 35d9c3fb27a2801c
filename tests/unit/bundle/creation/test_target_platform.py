from __future__ import annotations

import pytest

from enginebay.bundle.creation.target_platform import (
    TargetPlatform,
    build_marker_values,
    build_pip_options,
    find_required_glibc,
    list_platform_tags,
    parse_target,
)
from enginebay.bundle.standalone import find_mismatch
from enginebay.errors import UsageError

H200 = TargetPlatform("3.12", "x86_64")
HOST = {"python": "3.12", "platform": "linux", "arch": "x86_64", "glibc": "2.35"}


def test_tags_reach_up_to_the_hosts_glibc_and_the_oldest_comes_first() -> None:
    tags = list_platform_tags(TargetPlatform("3.12", "aarch64", "2.17"))
    assert tags[0] == "manylinux1_aarch64"
    assert "manylinux2014_aarch64" in tags and "manylinux_2_17_aarch64" in tags
    assert "manylinux_2_18_aarch64" not in tags
    assert "manylinux2014_x86_64" not in list_platform_tags(TargetPlatform("3.12", "x86_64", "2.12"))


def test_pip_options_describe_the_target() -> None:
    options = build_pip_options(H200)
    assert options[options.index("--python-version") + 1] == "3.12"
    assert options.count("--platform") == len(list_platform_tags(H200))
    assert build_marker_values(H200)["platform_machine"] == "x86_64"
    assert build_marker_values(H200)["python_version"] == "3.12"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("2.7", "linux", None, None), "--python 2.7"),
        (("3.10", "linux", None, None), "--python 3.10"),
        (("3.12", "windows", None, None), "windows"),
        (("3.12", "linux", "riscv", None), "riscv"),
        (("3.12", "linux", "x86_64", "new"), "glibc"),
    ],
)
def test_invalid_targets_are_rejected(given: tuple, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_target(*given)


def test_architecture_aliases_are_known() -> None:
    assert parse_target("3.13", "linux", "AMD64", None).arch == "x86_64"
    assert parse_target("3.13", "linux", "arm64", "2.28") == TargetPlatform("3.13", "aarch64", "2.28")


def test_the_required_glibc_is_the_newest_minimum_of_the_wheels() -> None:
    wheels = [
        "a-1-py3-none-any.whl",
        "b-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "c-1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    ]
    assert find_required_glibc(wheels) == "2.27"
    assert find_required_glibc(wheels[:1]) == ""


@pytest.mark.parametrize(
    ("change", "said", "hint"),
    [
        ({"python": "3.11"}, "for Python 3.12, not 3.11", "python3.12 install.py"),
        ({"arch": "aarch64"}, "for architecture x86_64, not aarch64", "--arch aarch64"),
        ({"platform": "macos"}, "for platform linux, not macos", "bay bundle create"),
        ({"glibc": "2.9"}, "glibc 2.28, but this host has 2.9", "--glibc 2.9"),
        ({"glibc": ""}, "another C library", "--glibc"),
    ],
)
def test_a_mismatch_is_one_line(change: dict, said: str, hint: str) -> None:
    error = find_mismatch({**HOST, "glibc": "2.28"}, {**HOST, **change})
    assert error is not None
    assert said in error.message and "\n" not in error.message
    assert hint in error.hint


def test_the_right_host_may_have_a_newer_glibc() -> None:
    assert find_mismatch({**HOST, "glibc": "2.28"}, HOST) is None
    assert find_mismatch({**HOST, "glibc": ""}, {**HOST, "glibc": ""}) is None

"""Real pip for another target, with a folder as its index."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.bundle.creation.download_wheels import DownloadedWheels, download_wheels
from enginebay.bundle.creation.target_platform import TargetPlatform
from enginebay.environments.command_runner import CommandRunner
from enginebay.errors import FetchFailed
from tests.unit.bundle.small_bundle import ignore_progress, make_tiny_wheel

ELSEWHERE = TargetPlatform("3.13", "x86_64", "2.28")
HERE_ONLY = "cp311-cp311-manylinux_2_17_aarch64"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    make_tiny_wheel(
        folder,
        "engine",
        requires=[
            "there; platform_machine == 'x86_64' and python_version >= '3.13'",
            "nowhere; platform_machine != 'x86_64' or python_version < '3.13'",
            "torch==2.11.0",
            "media>=1",
        ],
    )
    make_tiny_wheel(folder, "there", tag="cp313-cp313-manylinux_2_28_x86_64")
    make_tiny_wheel(folder, "there", "2.0", tag="cp313-cp313-manylinux_2_39_x86_64")  # newer, and for a newer host
    make_tiny_wheel(folder, "media", requires=["only-media-needs-it"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def commands(tmp_path: Path) -> CommandRunner:
    runner = CommandRunner(tmp_path / "log", (tmp_path / "lock").open("w"), ignore_progress)
    runner.open()
    return runner


def names(found: DownloadedWheels) -> list[str]:
    return [wheel.name for wheel in found.wheels]


def test_wheels_and_markers_are_the_targets(index: Path, commands: CommandRunner, tmp_path: Path) -> None:
    found = download_wheels("it", ["engine"], tmp_path / "to", ELSEWHERE, commands, ["torch", "media"])
    assert names(found) == ["engine-1.0-py3-none-any.whl", "there-1.0-cp313-cp313-manylinux_2_28_x86_64.whl"]
    assert {(one.name, one.requires, one.followed) for one in found.edges} == {
        ("engine", "there", True),
        ("engine", "torch==2.11.0", False),
        ("engine", "media>=1", False),
    }


def test_one_distribution_can_drop_a_dependency_that_others_get(
    index: Path, commands: CommandRunner, tmp_path: Path
) -> None:
    make_tiny_wheel(index, "other", requires=["media"])
    make_tiny_wheel(index, "only_media_needs_it")
    drop = {"engine": ["*"]}
    found = download_wheels("it", ["engine", "other"], tmp_path / "to", ELSEWHERE, commands, (), drop)
    assert [name.partition("-")[0] for name in names(found)] == ["engine", "media", "only_media_needs_it", "other"]


def test_extras_are_followed(index: Path, commands: CommandRunner, tmp_path: Path) -> None:
    make_tiny_wheel(index, "big", requires=["small[more]", "other; extra == 'rest'"])
    make_tiny_wheel(index, "small", requires=["base", "added>1; extra == 'more'", "big"])
    make_tiny_wheel(index, "base")
    make_tiny_wheel(index, "added", "2.0")
    found = download_wheels("it", ["big"], tmp_path / "to", ELSEWHERE, commands)
    assert [name.partition("-")[0] for name in names(found)] == ["added", "base", "big", "small"]
    assert ("small", "added>1", True) in {(one.name, one.requires, one.followed) for one in found.edges}


def test_a_later_requirement_and_a_conflict_lead_to_older_versions(
    index: Path, commands: CommandRunner, tmp_path: Path
) -> None:
    """`first` is met by an older `shared` once `last` is known; the newest `last` needs a `shared` that `pinned` forbids."""
    make_tiny_wheel(index, "first", requires=["shared>=1", "last"])
    make_tiny_wheel(index, "pinned", requires=["shared<3"])
    make_tiny_wheel(index, "last", "5.0", requires=["shared>=3", "only-newest-needs-it"])
    make_tiny_wheel(index, "last", "4.0", requires=["shared>=2"])
    for version in ("1.0", "2.0", "3.0"):
        make_tiny_wheel(index, "shared", version)
    make_tiny_wheel(index, "only_newest_needs_it")
    found = download_wheels("it", ["first", "pinned==1.0"], tmp_path / "to", ELSEWHERE, commands)
    assert [name.split("-")[:2] for name in names(found)] == [
        ["first", "1.0"], ["last", "4.0"], ["pinned", "1.0"], ["shared", "2.0"],
    ]  # fmt: skip


def test_requirements_that_nothing_meets_are_one_line(index: Path, commands: CommandRunner, tmp_path: Path) -> None:
    make_tiny_wheel(index, "first", requires=["shared<2"])
    make_tiny_wheel(index, "second", requires=["shared>=2"])
    make_tiny_wheel(index, "shared", "1.0")
    make_tiny_wheel(index, "shared", "2.0")
    with pytest.raises(FetchFailed, match=r"failed to fetch it for .* No matching distribution found"):
        download_wheels("it", ["first==1.0", "second==1.0"], tmp_path / "to", ELSEWHERE, commands)


def test_a_missing_wheel_for_the_target_is_one_line(index: Path, commands: CommandRunner, tmp_path: Path) -> None:
    make_tiny_wheel(index, "local", tag=HERE_ONLY)
    with pytest.raises(FetchFailed, match=r"failed to fetch local for Python 3\.13 on linux x86_64") as caught:
        download_wheels("local", ["local"], tmp_path / "to", ELSEWHERE, commands)
    assert "\n" not in caught.value.message
    assert str(commands.path) in caught.value.hint

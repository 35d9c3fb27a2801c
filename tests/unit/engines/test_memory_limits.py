"""Free memory under control groups: used by llamacpp and vllm when they size caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginebay.engines.memory_limits import compute_headroom, get_free_bytes

GIB = 1024**3


def host(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A machine with 16 GiB free."""
    meminfo = f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {16 * GIB // 1024} kB\n"
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def v2(group: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    stat = f"anon 1\ninactive_file {inactive}\n"
    texts = {"memory.max": f"{limit}\n", "memory.current": f"{used}\n", "memory.stat": stat}
    return {f"sys/fs/cgroup{group}/{name}": text for name, text in texts.items()}


def v1(group: str, limit: int, used: int) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory{group}"
    return {f"{folder}/memory.limit_in_bytes": str(limit), f"{folder}/memory.usage_in_bytes": str(used)}


def test_without_cgroups_meminfo_applies(tmp_path: Path) -> None:
    assert get_free_bytes(host(tmp_path, "", {})) == 16 * GIB


def test_a_container_of_version_2(tmp_path: Path) -> None:
    assert get_free_bytes(host(tmp_path, "0::/\n", v2("", str(4 * GIB), GIB))) == 3 * GIB


def test_inactive_file_pages_count_as_free(tmp_path: Path) -> None:
    assert get_free_bytes(host(tmp_path, "0::/\n", v2("", str(4 * GIB), 3 * GIB, inactive=2 * GIB))) == 3 * GIB


def test_a_parent_groups_limit_applies(tmp_path: Path) -> None:
    files = v2("/user.slice/job", "max", GIB) | v2("/user.slice", str(6 * GIB), GIB)
    assert get_free_bytes(host(tmp_path, "0::/user.slice/job\n", files)) == 5 * GIB


@pytest.mark.parametrize("visible", ["/docker/abc", ""])
def test_version_1_inside_and_outside_a_container(tmp_path: Path, visible: str) -> None:
    groups = "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"
    assert get_free_bytes(host(tmp_path, groups, v1(visible, 3 * GIB, GIB))) == 2 * GIB


def test_no_limit_in_version_1_is_a_huge_number(tmp_path: Path) -> None:
    assert get_free_bytes(host(tmp_path, "4:memory:/\n", v1("", 9223372036854771712, GIB))) == 16 * GIB


def test_without_any_source_it_is_the_total_memory(tmp_path: Path) -> None:
    assert get_free_bytes(tmp_path) > 0


@pytest.mark.parametrize(
    ("limit", "used", "reclaimable", "left"),
    [("max", "5", 0, None), ("10", "12", 0, 0), ("10", "4", 1, 7), ("10", "1", 5, 10)],
)
def test_headroom(limit: str, used: str, reclaimable: int, left: int | None) -> None:
    assert compute_headroom(limit, used, reclaimable) == left

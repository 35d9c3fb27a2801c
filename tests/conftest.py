"""For all tests: what each one needs (its markers), and which of them share a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
MOUNTS = {"tiny", "small_disk"}  # fixtures that mount a file system
HEAVY_ENGINES = {"transformers", "vllm"}  # each load takes most of a minute
REAL_ENGINES = {"llamacpp", *HEAVY_ENGINES}

# Machines that run tests stall, so the duration of an example says nothing. Every run uses the same examples: a failure
# then comes from a change. ENGINEBAY_DICE=1 draws others.
settings.register_profile(
    "enginebay",
    deadline=None,
    derandomize="ENGINEBAY_DICE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("enginebay")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in _implied_markers(item):
            item.add_marker(name)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Tests of one group run in one process: those of a file share its servers, those of an engine its loaded worker.

    `--dist loadgroup` would read the groups from markers, but pytest 9.2 ignores what it makes of them.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.endswith("test_features.py"):
            return nodeid
        parameters = test.partition("[")[2].rstrip("]").split("-")
        return f"{file} {next((kind for kind in parameters if kind in HEAVY_ENGINES), '')}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    return GroupScheduling(config, log)


def _implied_markers(item: pytest.Item) -> set[str]:
    """What a test's folder and engine say about it; everything else is a marker at the test."""
    folder = _folder(item)
    heavy = not HEAVY_ENGINES.isdisjoint(_engines(item))
    markers = set()
    if folder == "contract" or heavy:
        markers.add("engine")
    if folder == "integration" and (not REAL_ENGINES.isdisjoint(_engines(item)) or _has_two_processes(item)):
        markers.add("slow")
    if "test_parameter_" in item.name and not REAL_ENGINES.isdisjoint(_engines(item)):
        markers.add("slow")  # each generates many samples
    if folder == "browser":
        markers.add("browser")
    if not MOUNTS.isdisjoint(getattr(item, "fixturenames", ())):
        markers.add("root")
    if item.path.parent.name == "lab" and folder == "integration":
        markers.add("alone")  # they measure
    if folder in ("hostile", "fuzz"):
        markers.add("alone")  # they compare waits
        if not REAL_ENGINES.isdisjoint(_engines(item)):
            markers.add("slow")
        if heavy:
            markers.add("exhaustive")
    return markers


def _has_two_processes(item: pytest.Item) -> bool:
    """Whether it repeats with a second server process what is tested with one."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return "two processes" in item.name or 2 in (params.get("workers"), params.get("processes"))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0]


def _engines(item: pytest.Item) -> list[str]:
    """The engines among a test's parameters."""
    parameters = getattr(item, "callspec", None)
    return [value for value in parameters.params.values() if isinstance(value, str)] if parameters else []

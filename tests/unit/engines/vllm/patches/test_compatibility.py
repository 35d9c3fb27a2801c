"""Each patch refuses a vLLM that it does not fit, and says why once."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from enginebay.engines.vllm.patches.compatibility import (
    PatchSelection,
    find_incompatibility,
    parse_minor_version,
)
from enginebay.engines.vllm.patches.declarations import PATCHES, VllmPatch
from enginebay.engines.vllm.spec import SPEC

Install = Callable[[VllmPatch], None]
NEEDS = [(patch, path, name) for patch in PATCHES for path, names in patch.needs.items() for name in (*names, "")]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put stand-ins of vLLM's modules in place that have all a patch needs."""

    def put(patch: VllmPatch) -> None:
        modules: dict[str, Any] = {}
        for path, names in sorted(patch.needs.items()):
            module, _, qualified = path.partition(":")
            owner = modules.setdefault(module, ModuleType(module))
            *outer, last = qualified.split(".")
            for part in outer:
                if not hasattr(owner, part):
                    setattr(owner, part, type(part, (), {}))
                owner = getattr(owner, part)
            setattr(owner, last, _make_stand_in(last, names))
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    return put


def _make_stand_in(name: str, names: tuple[str, ...]) -> Any:
    if name == "environment_variables":
        return dict.fromkeys(names)
    if name[0].isupper():
        return type(name, (), dict.fromkeys(names))

    def method() -> None: ...

    parameters = [inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY) for parameter in names]
    vars(method)["__signature__"] = inspect.Signature(parameters)
    return method


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_a_patch_applies_to_the_versions_it_was_tested_with(patch: VllmPatch, install: Install) -> None:
    install(patch)
    first, last = patch.versions
    assert find_incompatibility(patch, f"{first}.0") is None
    assert find_incompatibility(patch, f"{last}.1+cpu") is None
    assert find_incompatibility(patch, "0.25.1") == "not tested with vllm 0.25.1"
    newer = find_incompatibility(patch, "1.0.0")
    assert newer == (None if patch.reads_only else "not tested with vllm 1.0.0")


@pytest.mark.parametrize(("patch", "path", "name"), NEEDS, ids=[f"{p.name}-{path}-{name}" for p, path, name in NEEDS])
def test_a_patch_refuses_a_vllm_without_something_it_needs(
    patch: VllmPatch, path: str, name: str, install: Install
) -> None:
    names = tuple(other for other in patch.needs[path] if other != name)
    present = replace(patch, needs={**patch.needs, path: names})
    if not name:
        removed = {other for other in patch.needs if other == path or other.startswith(f"{path}.")}
        present = replace(patch, needs={key: patch.needs[key] for key in patch.needs if key not in removed})
    install(present)
    reason = str(find_incompatibility(patch, f"{patch.versions[0]}.0"))
    assert path.split(":")[1].split(".")[0] in reason or path.split(":")[0] in reason, reason
    assert name in reason


def test_only_patches_that_change_nothing_apply_to_untested_versions() -> None:
    assert {patch.name for patch in PATCHES if not patch.reads_only} == {
        "step_outputs",
        "continued_requests",
        "mixed_graphs",
    }


def test_attributes_of_the_constructor_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Base:
        def __init__(self) -> None:
            self.inherited = 1

    class Owner(Base):
        def __init__(self) -> None:
            super().__init__()
            self.own = 1

    module: Any = ModuleType("vllm.standin")
    module.Owner = Owner
    monkeypatch.setitem(sys.modules, "vllm.standin", module)
    patch = VllmPatch("p", "", "p", "", {"vllm.standin:Owner": ("own", "inherited")})
    assert find_incompatibility(patch, "0.30.0") is None
    other = replace(patch, needs={"vllm.standin:Owner": ("own", "absent")})
    assert find_incompatibility(other, "0.30.0") == "vllm 0.30.0 has a different Owner, without absent"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_its_setting_turns_a_patch_off(patch: VllmPatch, install: Install) -> None:
    install(patch)
    warnings: list[str] = []
    version = f"{patch.versions[0]}.0"
    assert PatchSelection({}, version, warnings).applies(patch)
    assert PatchSelection({patch.setting: "auto"}, version, warnings).applies(patch)
    assert not PatchSelection({patch.setting: patch.off}, version, warnings).applies(patch)
    assert not warnings
    assert patch.off in SPEC.settings[patch.setting].choices


def test_the_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    patch, warnings = PATCHES[0], list[str]()
    selection = PatchSelection({}, "0.99.0", warnings)
    with caplog.at_level(logging.WARNING):
        assert not selection.applies(patch)
        assert not selection.applies(patch)
    assert warnings == ["stepwise: not tested with vllm 0.99.0; using generate(), which is slower"]
    assert caplog.messages == warnings


@pytest.mark.parametrize(
    ("version", "pair"), [("0.26.0", (0, 26)), ("0.32.0+cpu", (0, 32)), ("0.29.0rc1.dev5", (0, 29)), ("odd", (0, 0))]
)
def test_versions(version: str, pair: tuple[int, int]) -> None:
    assert parse_minor_version(version) == pair


def test_the_spec_lists_every_patch() -> None:
    assert [patch.name for patch in SPEC.patches] == [patch.name for patch in PATCHES]
    assert len({patch.setting for patch in SPEC.patches}) == len(PATCHES)

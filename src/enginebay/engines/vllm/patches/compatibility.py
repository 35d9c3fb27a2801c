"""Decide which patches apply to the installed vLLM.

Each patch declares what it needs of vLLM. It applies if its setting is on, the version is tested, and everything it needs is there.
A patch that only reads also applies to newer versions, where the worst case is missing information. Otherwise vLLM runs unchanged,
and the reason is logged once.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from enginebay.engines.vllm.patches.declarations import VllmPatch


@dataclass(frozen=True, slots=True)
class PatchSelection:
    """Decides for one load. Appends a warning for each patch that is on but does not fit."""

    settings: Mapping[str, Any]
    version: str
    warnings: list[str]

    def applies(self, patch: VllmPatch) -> bool:
        if self.settings.get(patch.setting) == patch.off:
            return False
        reason = find_incompatibility(patch, self.version)
        if reason is not None:
            self.warn(patch, reason)
        return reason is None

    def warn(self, patch: VllmPatch, reason: str) -> None:
        warning = f"{patch.setting}: {reason}; {patch.fallback}"
        if warning not in self.warnings:
            self.warnings.append(warning)
            logging.getLogger(__name__).warning(warning)


def parse_minor_version(version: str) -> tuple[int, int]:
    numbers = re.findall(r"\d+", version)
    return (int(numbers[0]), int(numbers[1])) if len(numbers) > 1 else (0, 0)


def find_incompatibility(patch: VllmPatch, version: str) -> str | None:
    """Return why the patch does not fit the importable vLLM of this version, or None if it does."""
    first, last = map(parse_minor_version, patch.versions)
    installed = parse_minor_version(version)
    if installed < first or (installed > last and not patch.reads_only):
        return f"not tested with vllm {version}"
    for path, names in patch.needs.items():
        missing = _find_missing(path, names)
        if missing is not None:
            return f"vllm {version} has {missing}"
    return None


def _find_missing(path: str, names: tuple[str, ...]) -> str | None:
    module, _, qualified_name = path.partition(":")
    try:
        owner: Any = import_module(module)
    except Exception as error:  # some modules raise other errors where a library is missing
        return f"no usable {module} ({type(error).__name__})"
    for part in qualified_name.split("."):
        owner = getattr(owner, part, None)
    if owner is None:
        return f"no {qualified_name}"
    lacking = [name for name in names if name not in _list_names(owner, names)]
    return f"a different {qualified_name}, without {', '.join(lacking)}" if lacking else None


def _list_names(owner: Any, names: tuple[str, ...]) -> set[str]:
    if isinstance(owner, Mapping):
        return set(owner)
    if not isinstance(owner, type):
        return set(inspect.signature(owner).parameters)
    declared = {name for name in names if hasattr(owner, name)}
    for cls in owner.__mro__:
        code = getattr(cls.__dict__.get("__init__"), "__code__", None)
        declared.update(code.co_names if code is not None else ())  # attributes that the constructor sets
    return declared

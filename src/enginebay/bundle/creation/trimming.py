"""Leaves out of a bundle what an engine does not need on one GPU generation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from enginebay.contract import EngineSpec, TrimProfile
from enginebay.errors import UsageError


def find_trim(name: str, chosen: Sequence[EngineSpec], known: Iterable[EngineSpec]) -> TrimProfile:
    """Return the trim profile of one of the chosen engines. Raises `UsageError` with those of all known engines."""
    for profile in (profile for spec in chosen for profile in spec.trims):
        if profile.name == name:
            return profile
    available = ", ".join(f"{profile.name} for {profile.engine}" for spec in known for profile in spec.trims)
    kinds = " or ".join(spec.kind for spec in chosen)
    raise UsageError(f"no trim profile {name} for {kinds}", f"available: {available}")


def select_trimmed_files(trim: TrimProfile, files: Iterable[str], python: str) -> dict[str, str]:
    """Return the files to remove from a wheel, with reasons. Files built for the target's Python stay."""
    own = f".cpython-{python.replace('.', '')}-"
    return {
        path: reason
        for path in files
        for pattern, reason in trim.files.items()
        if fnmatchcase(path, pattern) and own not in path
    }

"""What the report reads of a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.lab.runs.reader import Run


def part(run: Run, *names: str) -> dict[str, Any]:
    """A mapping inside the manifest; empty where there is none."""
    found: Any = run.manifest
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def cycle(run: Run) -> int | None:
    """Which repetition it is; None for a run that is of no study."""
    found = part(run, "study").get("cycle")
    return found if isinstance(found, int) else None

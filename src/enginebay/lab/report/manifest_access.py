"""What the report reads of a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.lab.store.run_reader import Run


def get_section(run: Run, *names: str) -> dict[str, Any]:
    """A mapping inside the manifest; empty where there is none."""
    found: Any = run.manifest
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def get_external_url(run: Run) -> str:
    """The address of a server that was running already; empty where the lab started it for the run."""
    return "" if "server_start_s" in run.measures else str(get_section(run, "server").get("url") or "")


def get_cycle(run: Run) -> int | None:
    """Which repetition it is; None for a run that is of no study."""
    found = get_section(run, "study").get("cycle")
    return found if isinstance(found, int) else None

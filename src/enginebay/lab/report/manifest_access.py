"""Access to sections of a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enginebay.lab.store.run_reader import Run


def get_section(run: Run, *names: str) -> dict[str, Any]:
    """Return a mapping inside the manifest; empty if there is none."""
    section: Any = run.manifest
    for name in names:
        section = section.get(name) if isinstance(section, Mapping) else None
    return dict(section) if isinstance(section, Mapping) else {}


def get_external_url(run: Run) -> str:
    """Return the URL of an external server; empty if the lab started the server for the run."""
    return "" if "server_start_s" in run.measures else str(get_section(run, "server").get("url") or "")


def get_cycle(run: Run) -> int | None:
    """Return the cycle number; None for a run without a study."""
    cycle = get_section(run, "study").get("cycle")
    return cycle if isinstance(cycle, int) else None

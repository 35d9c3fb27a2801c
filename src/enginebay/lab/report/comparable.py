"""What besides engine and load is not the same in all runs, and so may be the true cause of a difference."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.lab.report.settings import shown
from enginebay.lab.report.source import cycle, part
from enginebay.lab.runs.gpus import products
from enginebay.lab.runs.reader import Run

# (title, part of the manifest, key, what a difference means)
SAME = (
    ("model", "model", "name", "different models: speed and energy are not comparable"),
    ("model files", "model", "sha256", "different weights; with another quantisation the work differs"),
    ("host", "environment", "host", "different machines: the hardware may explain the difference"),
    ("CPU", "environment", "cpu", "different processors"),
    ("Enginebay", "environment", "enginebay", "the server or the lab itself may have changed"),
)


def differences(runs: Sequence[Run]) -> list[tuple[str, list[str], str]]:
    """Rows of what differs, its values and what that means."""
    rows = []
    for title, name, key, why in SAME:
        values = list(dict.fromkeys(shown(found) for run in runs if (found := part(run, name).get(key)) is not None))
        if len(values) > 1:
            rows.append((title, [one[:60] for one in values], why))
    gpus = list(
        dict.fromkeys(" + ".join(dict.fromkeys(found)) for run in runs if (found := products(part(run, "environment"))))
    )
    if len(gpus) > 1:
        rows.append(("GPU", [one[:60] for one in gpus], "different GPUs"))
    mixed = _mixed_cycles(runs)
    if mixed:
        rows.append(("requests", mixed, "not the same requests were sent in the same cycle"))
    return rows


def _mixed_cycles(runs: Sequence[Run]) -> list[str]:
    """Cycles of one study at one load in which engines got different requests; cycles may differ among themselves."""
    sent: dict[tuple[str, str, int | None], set[str]] = {}
    for run in runs:
        digest = part(run, "workload").get("sha256")
        if digest is not None:
            place = (str(part(run, "study").get("id")), repr(run.manifest.get("profile")), cycle(run))
            sent.setdefault(place, set()).add(str(digest))
    return [f"cycle {place[2]}: {len(digests)} workloads" for place, digests in sent.items() if len(digests) > 1]

"""What besides engine and load is not the same in all runs, and so may be the true cause of a difference."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.lab.report.manifest_access import get_cycle, get_section
from enginebay.lab.report.setting_values import format_setting
from enginebay.lab.store.run_environment import list_gpu_products
from enginebay.lab.store.run_reader import Run

# (title, part of the manifest, key, what a difference means)
COMPARED_SECTIONS = (
    ("model", "model", "name", "different models: speed and energy are not comparable"),
    ("model files", "model", "sha256", "different weights; with another quantisation the work differs"),
    ("host", "environment", "host", "different machines: the hardware may explain the difference"),
    ("CPU", "environment", "cpu", "different processors"),
    ("Enginebay", "environment", "enginebay", "the server or the lab itself may have changed"),
)


def find_confounders(runs: Sequence[Run]) -> list[tuple[str, list[str], str]]:
    """Rows of what differs, its values and what that means."""
    rows = []
    for title, name, key, why in COMPARED_SECTIONS:
        values = list(
            dict.fromkeys(
                format_setting(found) for run in runs if (found := get_section(run, name).get(key)) is not None
            )
        )
        if len(values) > 1:
            rows.append((title, [one[:60] for one in values], why))
    gpus = list(
        dict.fromkeys(
            " + ".join(dict.fromkeys(found))
            for run in runs
            if (found := list_gpu_products(get_section(run, "environment")))
        )
    )
    if len(gpus) > 1:
        rows.append(("GPU", [one[:60] for one in gpus], "different GPUs"))
    mixed = _find_mixed_cycles(runs)
    if mixed:
        rows.append(("requests", mixed, "not the same requests were sent in the same cycle"))
    return rows


def _find_mixed_cycles(runs: Sequence[Run]) -> list[str]:
    """Cycles of one study at one load in which engines got different requests; cycles may differ among themselves."""
    sent: dict[tuple[str, str, int | None], set[str]] = {}
    for run in runs:
        digest = get_section(run, "workload").get("sha256")
        if digest is not None:
            place = (str(get_section(run, "study").get("id")), repr(run.manifest.get("profile")), get_cycle(run))
            sent.setdefault(place, set()).add(str(digest))
    return [f"cycle {place[2]}: {len(digests)} workloads" for place, digests in sent.items() if len(digests) > 1]

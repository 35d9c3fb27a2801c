"""Differences between runs besides engine and load, which may explain a difference in results."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.lab.report.manifest_access import get_cycle, get_section
from enginebay.lab.report.setting_values import format_setting
from enginebay.lab.store.run_environment import list_gpu_products
from enginebay.lab.store.run_reader import Run

# (title, manifest section, key, meaning of a difference)
COMPARED_SECTIONS = (
    ("model", "model", "name", "different models: speed and energy are not comparable"),
    ("model files", "model", "sha256", "different weights; another quantization changes the work"),
    ("host", "environment", "host", "different machines: the hardware may explain the difference"),
    ("CPU", "environment", "cpu", "different processors"),
    ("Enginebay", "environment", "enginebay", "the server or the lab may have changed"),
)


def find_confounders(runs: Sequence[Run]) -> list[tuple[str, list[str], str]]:
    """Return rows of what differs, its values and what that means."""
    rows = []
    for title, name, key, why in COMPARED_SECTIONS:
        values = list(
            dict.fromkeys(
                format_setting(value) for run in runs if (value := get_section(run, name).get(key)) is not None
            )
        )
        if len(values) > 1:
            rows.append((title, [value[:60] for value in values], why))
    gpus = list(
        dict.fromkeys(
            " + ".join(dict.fromkeys(products))
            for run in runs
            if (products := list_gpu_products(get_section(run, "environment")))
        )
    )
    if len(gpus) > 1:
        rows.append(("GPU", [value[:60] for value in gpus], "different GPUs"))
    mixed = _find_mixed_cycles(runs)
    if mixed:
        rows.append(("requests", mixed, "engines got different requests in the same cycle"))
    return rows


def _find_mixed_cycles(runs: Sequence[Run]) -> list[str]:
    """Return cycles of one study at one load in which engines got different requests; cycles may differ from each other."""
    sent: dict[tuple[str, str, int | None], set[str]] = {}
    for run in runs:
        digest = get_section(run, "workload").get("sha256")
        if digest is not None:
            key = (str(get_section(run, "study").get("id")), repr(run.manifest.get("profile")), get_cycle(run))
            sent.setdefault(key, set()).add(str(digest))
    return [f"cycle {key[2]}: {len(digests)} workloads" for key, digests in sent.items() if len(digests) > 1]

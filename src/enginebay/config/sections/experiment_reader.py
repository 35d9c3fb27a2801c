"""The keys of an experiment, checked as far as they are not the lab's own matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector
from enginebay.config.entries.value_coercion import split_list
from enginebay.config.sections.config_keys import ConfigKeys, check_entry
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS

ResolvePath = Callable[[str, ConfigEntry], str]


def read_experiment(
    section: ConfigEntry, known_keys: ConfigKeys, problems: ProblemCollector, resolve_path: ResolvePath
) -> dict[str, ConfigEntry]:
    """By dotted name; engines as kinds, and a workload's path made absolute."""
    found: dict[str, ConfigEntry] = {}
    for name, entry in section.children():
        nested = {key.partition(".")[2]: key for key in EXPERIMENT_KEYS if key.startswith(f"{name}.")}
        if nested and entry.value is not None and not entry.is_section:
            problems.add(entry, "expected a section with keys of its own")
        for key, child in entry.children() if nested else [("", entry)]:
            full = nested.get(str(key)) if nested else name
            if full is None:
                known_keys.report_unknown_key(problems, child, nested)
                continue
            value = check_entry(
                EXPERIMENT_KEYS[full],
                _resolve_workload_path(child, resolve_path) if full == "workload" else child,
                problems,
            )
            found.update({full: value} if value else {})
    if "engines" in found:
        found["engines"] = known_keys.require_kinds(
            replace(found["engines"], value=split_list(found["engines"].value)), problems
        )
    _check_profile_conflict(found, problems)
    return found


def _resolve_workload_path(workload: ConfigEntry, resolve_path: ResolvePath) -> ConfigEntry:
    path = workload.value.get("path") if workload.is_section else None
    if path is None or not isinstance(path.value, str) or not path.value:
        return workload
    return replace(workload, value={**workload.value, "path": replace(path, value=resolve_path(path.value, path))})


def _check_profile_conflict(found: Mapping[str, ConfigEntry], problems: ProblemCollector) -> None:
    """Two answers to when requests are sent, from the same source; from different ones `profile` wins."""
    profile, traffic = (
        found.get("profile", ConfigEntry(None)),
        found.get("traffic_simulation.enabled", ConfigEntry(None)),
    )
    if profile.value is not None and traffic.value and profile.origin.rank == traffic.origin.rank:
        problems.add(traffic, f"says the same as {profile.key_path} ({profile.origin}); keep one of them")

"""Reads and checks the keys of an experiment. The lab checks the inner data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector
from enginebay.config.entries.value_coercion import quote_value, split_list
from enginebay.config.sections.config_keys import ConfigKeys, check_entry
from enginebay.config.sections.experiment_section import EXPERIMENT_KEYS

ResolvePath = Callable[[str, ConfigEntry], str]


def read_experiment(
    section: ConfigEntry, known_keys: ConfigKeys, problems: ProblemCollector, resolve_path: ResolvePath
) -> dict[str, ConfigEntry]:
    """Return the checked entries by dotted name, with engines as kinds and an absolute workload path."""
    entries: dict[str, ConfigEntry] = {}
    for name, entry in section.children():
        nested = {key.partition(".")[2]: key for key in EXPERIMENT_KEYS if key.startswith(f"{name}.")}
        if nested and entry.value is not None and not entry.is_section:
            problems.add(entry, f"expected a mapping, got {quote_value(entry.value)}")
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
            entries.update({full: value} if value else {})
    if "engines" in entries:
        entries["engines"] = known_keys.require_kinds(
            replace(entries["engines"], value=split_list(entries["engines"].value)), problems
        )
    if "sweep" in entries:
        entries["sweep"] = replace(entries["sweep"], value=known_keys.fill_tuned_values(entries["sweep"].value))
    _check_profile_conflict(entries, problems)
    return entries


def _resolve_workload_path(workload: ConfigEntry, resolve_path: ResolvePath) -> ConfigEntry:
    path = workload.value.get("path") if workload.is_section else None
    if path is None or not isinstance(path.value, str) or not path.value:
        return workload
    return replace(workload, value={**workload.value, "path": replace(path, value=resolve_path(path.value, path))})


def _check_profile_conflict(entries: Mapping[str, ConfigEntry], problems: ProblemCollector) -> None:
    """Report `profile` and `traffic_simulation` from the same source. From different sources `profile` wins."""
    profile, traffic = (
        entries.get("profile", ConfigEntry(None)),
        entries.get("traffic_simulation.enabled", ConfigEntry(None)),
    )
    if profile.value is not None and traffic.value and profile.origin.rank == traffic.origin.rank:
        problems.add(traffic, f"duplicates {profile.key_path} ({profile.origin}); remove one of them")

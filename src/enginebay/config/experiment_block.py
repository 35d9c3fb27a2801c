"""The keys of an experiment, checked as far as they are not the lab's own matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from enginebay.config.experiment import EXPERIMENT
from enginebay.config.keys import Vocabulary, checked
from enginebay.config.tree import Entry, Problems
from enginebay.config.values import listed

BesideFile = Callable[[str, Entry], str]


def read_experiment(section: Entry, words: Vocabulary, problems: Problems, beside_file: BesideFile) -> dict[str, Entry]:
    """By dotted name; engines as kinds, and a workload's path made absolute."""
    found: dict[str, Entry] = {}
    for name, entry in section.children():
        nested = {key.partition(".")[2]: key for key in EXPERIMENT if key.startswith(f"{name}.")}
        if nested and entry.value is not None and not entry.is_section:
            problems.add(entry, "expected a section with keys of its own")
        for key, child in entry.children() if nested else [("", entry)]:
            full = nested.get(str(key)) if nested else name
            if full is None:
                words.unknown(problems, child, nested)
                continue
            value = checked(EXPERIMENT[full], _with_path(child, beside_file) if full == "workload" else child, problems)
            found.update({full: value} if value else {})
    if "engines" in found:
        found["engines"] = words.known_kinds(replace(found["engines"], value=listed(found["engines"].value)), problems)
    _check_sending(found, problems)
    return found


def _with_path(workload: Entry, beside_file: BesideFile) -> Entry:
    path = workload.value.get("path") if workload.is_section else None
    if path is None or not isinstance(path.value, str) or not path.value:
        return workload
    return replace(workload, value={**workload.value, "path": replace(path, value=beside_file(path.value, path))})


def _check_sending(found: Mapping[str, Entry], problems: Problems) -> None:
    """Two answers to when requests are sent, from the same source; from different ones `profile` wins."""
    profile, traffic = found.get("profile", Entry(None)), found.get("traffic_simulation.enabled", Entry(None))
    if profile.value is not None and traffic.value and profile.origin.rank == traffic.origin.rank:
        problems.add(traffic, f"says the same as {profile.place} ({profile.origin}); keep one of them")

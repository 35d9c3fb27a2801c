"""Settings of one engine, checked against what its spec declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from enginebay.config.keys import SAMPLING, TRUST, UNIVERSAL, Vocabulary, checked, checked_sampling
from enginebay.config.tree import Entry, Problem, Problems
from enginebay.config.values import Misfit, fit
from enginebay.contract import NEUTRAL, Capability, EngineSpec, Retired, Setting, Support


@dataclass(frozen=True, slots=True)
class Block:
    """What one `vllm:` (or other engine's) section says, by dotted name."""

    settings: Mapping[str, Entry] = field(default_factory=dict)
    sampling: Mapping[str, Entry] = field(default_factory=dict)  # request defaults that are no settings of the engine
    trust: Entry | None = None


def read_block(spec: EngineSpec, entry: Entry, words: Vocabulary, problems: Problems) -> Block:
    """Check a section generically: names, types, ranges and choices all come from the spec."""
    settings: dict[str, Entry] = {}
    sampling: dict[str, Entry] = {}
    trust: list[Entry] = []

    def take(name: str, found: Entry) -> bool:
        declared = spec.settings.get(name)
        if name == TRUST:
            value = checked(declared or Setting("bool", ""), found, problems)
            trust.extend([value] if value else [])
        elif name in spec.retired:
            settings[name] = Entry(found.plain(), found.origin, found.place)
        elif declared is not None:
            value = checked(declared, found, problems)
            settings.update({name: value} if value else {})
        elif name in SAMPLING:
            value = checked_sampling(name, found, problems)
            sampling.update({name: value} if value else {})
        else:
            return False
        return True

    known = [*spec.settings, *spec.retired, *SAMPLING, TRUST]
    walk(entry, "", known, take, words, problems)
    return Block(settings, sampling, trust[0] if trust else None)


def read_universal(root: Mapping[str, Entry], words: Vocabulary, problems: Problems) -> dict[str, Entry]:
    """Top-level settings that every engine declares: at least one engine must take the value."""
    found: dict[str, Entry] = {}

    def take(name: str, entry: Entry) -> bool:
        declared = words.universal.get(name)
        if declared is None:
            return False
        reasons: list[str] = []
        for setting in declared:
            try:
                found[name] = Entry(fit(setting, entry), entry.origin, entry.place, entry.raw)
                return True
            except Misfit as misfit:
                reasons.append(str(misfit))
        problems.add(entry, reasons[0])
        return True

    top = Entry({name: root[name] for name in UNIVERSAL if name in root})
    walk(top, "", list(words.universal), take, words, problems)
    return found


def walk(
    entry: Entry,
    prefix: str,
    known: list[str],
    take: Callable[[str, Entry], bool],
    words: Vocabulary,
    problems: Problems,
) -> None:
    """Follow sections down to the names that are declared."""
    for key, child in entry.children():
        name = f"{prefix}{key}"
        deeper = any(one.startswith(f"{name}.") for one in known)
        if deeper and child.is_section:
            walk(child, f"{name}.", known, take, words, problems)
        elif take(name, child) or (deeper and child.value is None):
            continue
        elif deeper:
            problems.add(child, "expected a section with keys of its own")
        else:
            here = (one.removeprefix(prefix).split(".")[0] for one in known if one.startswith(prefix))
            words.unknown(problems, child, here)


def inapplicable(spec: EngineSpec, settings: Mapping[str, Entry], sampling: Mapping[str, Entry]) -> list[Problem]:
    """What loads and has no effect on this engine: one line each, naming what to use instead."""
    found: list[Problem] = []
    for name, entry in settings.items():
        reason = _setting_reason(spec, name, entry)
        if reason:
            found.append(Problem(entry.place, reason, entry.origin))
    for name, entry in sampling.items():
        if refused_sampling(spec, name, entry):
            found.append(Problem(entry.place, _no_effect(spec, spec.request[name]), entry.origin))
    return found


def _setting_reason(spec: EngineSpec, name: str, entry: Entry) -> str:
    retired = spec.retired.get(name)
    if retired is not None:
        return f"{gone(spec.kind, retired)}; instead: {retired.instead}"
    setting = spec.settings.get(name)
    if setting is None:
        return f"has no effect on {spec.kind}, which has no such setting"
    if setting.capability.support is not Support.REFUSES or _asks_nothing(entry, setting.default):
        return ""
    return _no_effect(spec, setting.capability)


def gone(kind: str, retired: Retired) -> str:
    """Since when, as a version of the engine unless the spec names something else."""
    return f"gone since {kind} {retired.since}" if retired.since[:1].isdigit() else f"gone since {retired.since}"


def _no_effect(spec: EngineSpec, capability: Capability) -> str:
    return f"has no effect on {spec.kind}; instead: {capability.detail}"


def refused_sampling(spec: EngineSpec, name: str, entry: Entry) -> bool:
    """Does this default ask for what the engine cannot do?"""
    capability = spec.request.get(name)
    refused = capability is not None and capability.support is Support.REFUSES
    return refused and not _asks_nothing(entry, NEUTRAL.get(name))


def _asks_nothing(entry: Entry, neutral: object) -> bool:
    return entry.value is None or entry.value is False or entry.value == neutral

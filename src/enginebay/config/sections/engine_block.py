"""Settings of one engine, validated against its spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from enginebay.config.entries.config_entry import ConfigEntry, ConfigProblem, ProblemCollector
from enginebay.config.entries.key_aliases import rename_aliases
from enginebay.config.entries.value_coercion import InvalidValue, build_example, coerce_value, quote_value
from enginebay.config.sections.config_keys import (
    MODEL_KEYS,
    SAMPLING_KEYS,
    TRUST_KEY,
    UNIVERSAL_KEYS,
    ConfigKeys,
    check_entry,
    check_sampling_entry,
)
from enginebay.contract import NEUTRAL, Capability, EngineSpec, Retired, Setting, Support


@dataclass(frozen=True, slots=True)
class EngineBlock:
    """The keys of one engine section, such as `vllm:`, by dotted name."""

    settings: Mapping[str, ConfigEntry] = field(default_factory=dict)
    sampling: Mapping[str, ConfigEntry] = field(default_factory=dict)  # request defaults, not engine settings
    trust: ConfigEntry | None = None


def read_engine_block(
    spec: EngineSpec, entry: ConfigEntry, known_keys: ConfigKeys, problems: ProblemCollector
) -> EngineBlock:
    """Validate an engine section. Names, types, ranges and choices come from the spec."""
    entry = rename_aliases(spec.settings, entry, problems)
    settings: dict[str, ConfigEntry] = {}
    sampling: dict[str, ConfigEntry] = {}
    trust: list[ConfigEntry] = []

    def accept(name: str, entry: ConfigEntry) -> bool:
        declared = spec.settings.get(name)
        if name == TRUST_KEY:
            value = check_entry(MODEL_KEYS[TRUST_KEY], entry, problems)
            trust.extend([value] if value else [])
        elif name in spec.retired:
            settings[name] = ConfigEntry(entry.to_plain(), entry.origin, entry.key_path)
        elif declared is not None:
            value = check_entry(declared, entry, problems, name)
            settings.update({name: value} if value else {})
        elif name in SAMPLING_KEYS:
            value = check_sampling_entry(name, entry, problems)
            sampling.update({name: value} if value else {})
        else:
            return False
        return True

    aliases = {alias: setting for setting in spec.settings.values() for alias in setting.aliases}
    others = dict.fromkeys((*spec.retired, TRUST_KEY))
    known: dict[str, Setting | None] = {**spec.settings, **aliases, **others, **SAMPLING_KEYS, **spec.settings}
    walk_section(entry, "", known, accept, known_keys, problems)
    return EngineBlock(settings, sampling, trust[0] if trust else None)


def read_universal_settings(
    root: Mapping[str, ConfigEntry], known_keys: ConfigKeys, problems: ProblemCollector
) -> dict[str, ConfigEntry]:
    """Read the shared top-level settings. At least one engine must accept each value."""
    settings: dict[str, ConfigEntry] = {}

    def accept(name: str, entry: ConfigEntry) -> bool:
        declared = known_keys.universal.get(name)
        if declared is None:
            return False
        reasons: list[str] = []
        for setting in declared:
            try:
                settings[name] = ConfigEntry(coerce_value(setting, entry), entry.origin, entry.key_path, entry.raw)
                return True
            except InvalidValue as error:
                reasons.append(str(error))
        problems.add(entry, reasons[0])
        return True

    top = ConfigEntry({name: root[name] for name in UNIVERSAL_KEYS if name in root})
    known = {name: declared[0] for name, declared in known_keys.universal.items()}
    walk_section(top, "", known, accept, known_keys, problems)
    return settings


def walk_section(
    entry: ConfigEntry,
    prefix: str,
    known: Mapping[str, Setting | None],
    accept: Callable[[str, ConfigEntry], bool],
    known_keys: ConfigKeys,
    problems: ProblemCollector,
) -> None:
    """Pass each declared name below a section to `accept`; report the others."""
    for key, child in entry.children():
        name = f"{prefix}{key}"
        deeper = any(key.startswith(f"{name}.") for key in known)
        if deeper and child.is_section:
            walk_section(child, f"{name}.", known, accept, known_keys, problems)
        elif accept(name, child) or (deeper and child.value is None):
            continue
        elif deeper:
            inner = {
                other.removeprefix(f"{name}."): setting
                for other, setting in known.items()
                if setting is not None and other.startswith(f"{name}.")
            }
            example = f"; for example: {key}: {build_example(inner)}" if inner else ""
            problems.add(child, f"expected a mapping, got {quote_value(child.value)}{example}")
        else:
            siblings = (key.removeprefix(prefix).split(".")[0] for key in known if key.startswith(prefix))
            known_keys.report_unknown_key(problems, child, siblings)


def find_inapplicable(
    spec: EngineSpec, settings: Mapping[str, ConfigEntry], sampling: Mapping[str, ConfigEntry]
) -> list[ConfigProblem]:
    """Return the keys without effect on this engine, with what to use instead."""
    problems: list[ConfigProblem] = []
    for name, entry in settings.items():
        reason = _explain_setting(spec, name, entry)
        if reason:
            problems.append(ConfigProblem(entry.key_path, reason, entry.origin))
    for name, entry in sampling.items():
        if is_sampling_refused(spec, name, entry):
            problems.append(ConfigProblem(entry.key_path, _explain_no_effect(spec, spec.request[name]), entry.origin))
    return problems


def _explain_setting(spec: EngineSpec, name: str, entry: ConfigEntry) -> str:
    retired = spec.retired.get(name)
    if retired is not None:
        return f"{describe_retirement(spec.kind, retired)}; instead: {retired.instead}"
    setting = spec.settings.get(name)
    if setting is None:
        return f"has no effect on {spec.kind}: no such setting"
    if setting.capability.support is not Support.REFUSES or _is_neutral(entry, setting.default):
        return ""
    return _explain_no_effect(spec, setting.capability)


def describe_retirement(kind: str, retired: Retired) -> str:
    """Describe since when a setting is gone: an engine version unless the spec names something else."""
    return f"removed in {kind} {retired.since}" if retired.since[:1].isdigit() else f"removed in {retired.since}"


def _explain_no_effect(spec: EngineSpec, capability: Capability) -> str:
    return f"has no effect on {spec.kind}; instead: {capability.detail}"


def is_sampling_refused(spec: EngineSpec, name: str, entry: ConfigEntry) -> bool:
    """Return whether the engine refuses this default."""
    capability = spec.request.get(name)
    refused = capability is not None and capability.support is Support.REFUSES
    return refused and not _is_neutral(entry, NEUTRAL.get(name))


def _is_neutral(entry: ConfigEntry, neutral: object) -> bool:
    return entry.value is None or entry.value is False or entry.value == neutral

"""Other spellings of keys, declared as `Setting.aliases`: what users of Ollama, llama-swap, llama.cpp and vLLM type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector, as_section
from enginebay.config.entries.value_coercion import InvalidValue, get_unit, parse_unit
from enginebay.contract import Setting

_MEANINGS_OF_ZERO = {"ttl": -1}  # llama-swap's 0 is never; for Ollama's keep_alive 0 is at once


def rename_aliases(settings: Mapping[str, Setting], section: ConfigEntry, problems: ProblemCollector) -> ConfigEntry:
    """Return the section with the declared names of its keys. Reports a key that is set under two names.

    An alias may be the name of a section, whose main key it then is: `quantization: fp8` beside `quantization: {...}`.
    """
    names = {alias: name for name, setting in settings.items() for alias in setting.aliases}
    if not section.is_section or not names.keys() & section.value.keys():
        return section
    renamed: dict[str, ConfigEntry] = {}
    for key, child in section.children():
        name = key if child.is_section and has_section(settings, key) else names.get(key, key)
        if key in _MEANINGS_OF_ZERO and _is_zero(name, settings[name], child):
            child = replace(child, value=_MEANINGS_OF_ZERO[key])
        _add_at_path(renamed, name, child, problems)
    return replace(section, value=renamed)


def _is_zero(name: str, setting: Setting, entry: ConfigEntry) -> bool:
    """Return whether the value is 0, also as 0.0 or with a unit."""
    try:
        value = parse_unit(get_unit(name, setting), entry).value
    except InvalidValue:  # reported later
        return False
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0


def has_section(settings: Mapping[str, Setting], name: str) -> bool:
    return any(declared.startswith(f"{name}.") for declared in settings)


def _add_at_path(target: dict[str, ConfigEntry], name: str, entry: ConfigEntry, problems: ProblemCollector) -> None:
    head, _, rest = name.partition(".") if isinstance(name, str) else (name, "", "")
    present = target.get(head)
    if present is None and not rest:
        target[head] = entry
    elif rest and (present is None or as_section(present).is_section):
        inner = dict(as_section(present).value) if present is not None else {}
        _add_at_path(inner, rest, entry, problems)
        target[head] = replace(present or entry, value=inner)
    elif present is not None and present.is_section and entry.is_section:
        for key, child in entry.children():
            _add_at_path(target, f"{head}.{key}", child, problems)
    elif present is not None:
        first = _find_first(present)
        problems.add(entry, f"duplicates {first.key_path} ({first.origin}); remove one of them")


def _find_first(entry: ConfigEntry) -> ConfigEntry:
    """Return the entry itself, or the first value of a section that an alias has opened."""
    return next((_find_first(child) for _, child in entry.children()), entry)

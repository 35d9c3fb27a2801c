"""Other spellings of keys, declared as `Setting.aliases`: what users of Ollama, llama-swap, llama.cpp and vLLM type. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from enginebay.config.entries.config_entry import ConfigEntry, ProblemCollector, as_section
from enginebay.contract import Setting

_OTHER_MEANINGS = {("ttl", 0): -1}  # llama-swap's 0 is never; for Ollama's keep_alive 0 is at once


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
        if name != key and isinstance(child.value, int):
            child = replace(child, value=_OTHER_MEANINGS.get((key, child.value), child.value))
        _add_at_path(renamed, name, child, problems)
    return replace(section, value=renamed)


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

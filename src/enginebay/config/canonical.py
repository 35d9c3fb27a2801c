"""One layer, brought to one spelling: `inference:` opened, aliases resolved, moved keys at their place.

Done for each layer before they are merged, so that `backend` in a file and `engine` on the command line are one key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from enginebay.config.experiment import EXPERIMENT
from enginebay.config.keys import MODEL, ROOT, ROOT_ALIASES, SECTIONS, TO_SAMPLING, UNIVERSAL, Vocabulary
from enginebay.config.tree import Entry, Problems, section

_EXPERIMENT_TOPS = tuple(dict.fromkeys(name.split(".")[0] for name in EXPERIMENT))


def canonical(layer: Entry, words: Vocabulary, problems: Problems) -> Entry:
    """The layer with only canonical keys; those nobody knows are reported and left out."""
    root: dict[str, Entry] = {}
    for key, entry in _opened(layer, problems):
        _place(root, key, entry, words, problems)
    return replace(layer, value=root)


def _opened(layer: Entry, problems: Problems) -> list[tuple[str, Entry]]:
    """Top-level keys, with the content of `inference:` among them."""
    pairs: list[tuple[str, Entry]] = []
    for key, entry in layer.children():
        if key != "inference":
            pairs.append((str(key), entry))
        elif _is_section(entry, problems):
            pairs += [(str(name), child) for name, child in section(entry).children()]
    return pairs


def _place(root: dict[str, Entry], key: str, entry: Entry, words: Vocabulary, problems: Problems) -> None:
    kind = words.kind(key)
    if key in ROOT or key in ROOT_ALIASES:
        _add(root, ROOT_ALIASES.get(key, key), entry, problems)
    elif key in TO_SAMPLING:
        _into(root, "sampling", TO_SAMPLING[key], entry, problems)
    elif key in ("sampling", "decoder"):
        if _is_section(entry, problems):
            for name, child in section(entry).children():
                _into(root, "sampling", str(name), child, problems)
    elif key in _EXPERIMENT_TOPS:
        _into(root, "experiment", key, entry, problems)
    elif key in SECTIONS:
        if _is_section(entry, problems):
            _add(root, key, section(entry), problems)
    elif key == "models":
        if _is_section(entry, problems):
            _add(root, "models", _models(section(entry), words, problems), problems)
    elif kind is not None:
        if _is_section(entry, problems):
            _add(root, kind, section(entry), problems)
    elif key in UNIVERSAL:
        _add(root, key, entry, problems)
    else:
        words.unknown(problems, entry, words.top_level())


def _models(entry: Entry, words: Vocabulary, problems: Problems) -> Entry:
    models: dict[Any, Entry] = {}
    for name, model in entry.children():
        if not _is_section(model, problems):
            continue
        keys: dict[str, Entry] = {}
        for key, child in section(model).children():
            kind = words.kind(str(key))
            if key == "backend":
                _add(keys, "engine", child, problems)
            elif key in MODEL:
                _add(keys, str(key), child, problems)
            elif key in ("sampling", "loras") or kind is not None:
                if _is_section(child, problems):
                    _add(keys, kind or str(key), section(child), problems)
            else:
                words.unknown(problems, child, [*MODEL, "sampling", "loras", *words.kinds])
        models[str(name)] = replace(model, value=keys)
    return replace(entry, value=models)


def _is_section(entry: Entry, problems: Problems) -> bool:
    if section(entry).is_section:
        return True
    problems.add(entry, "expected a section with keys of its own")
    return False


def _add(target: dict[str, Entry], name: str, entry: Entry, problems: Problems) -> None:
    present = target.get(name)
    if present is None:
        target[name] = entry
    else:
        problems.add(entry, f"says the same as {present.place} ({present.origin}); keep one of them")


def _into(root: dict[str, Entry], group: str, name: str, entry: Entry, problems: Problems) -> None:
    """Put an entry into a section that may be spelled in several places."""
    gathered = root.setdefault(group, Entry({}, entry.origin, group))
    _add(gathered.value, name, entry, problems)

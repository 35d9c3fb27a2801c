"""Config values as a tree of entries that record their origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SOURCE_RANKS = {"default": 0, "preset": 1, "file": 2, "environment": 3, "flag": 4, "sweep": 5}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was set: `source` is a key of SOURCE_RANKS, `name` the preset, file or variable."""

    source: str = "default"
    name: str = ""
    line: int | None = None
    trusted: bool = True  # false for a file that was found in the working directory, unless the user trusted it

    @property
    def rank(self) -> int:
        return SOURCE_RANKS[self.source]

    def __str__(self) -> str:
        if self.source == "file":
            return f"{self.name}:{self.line}"
        return self.name or self.source


DEFAULT = Origin()


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value: a scalar, a list, or a mapping of further entries."""

    value: Any
    origin: Origin = DEFAULT
    key_path: str = ""  # dotted, as the user wrote it
    raw: str | None = None  # the text of an environment variable, before it was read as YAML

    @property
    def is_section(self) -> bool:
        return isinstance(self.value, dict)

    def to_plain(self) -> Any:
        """Return the value without origins. A checked entry already holds plain values."""
        if not isinstance(self.value, dict):
            return self.value
        return {key: child.to_plain() if isinstance(child, ConfigEntry) else child for key, child in self.value.items()}

    def children(self) -> Iterator[tuple[Any, ConfigEntry]]:
        yield from self.value.items() if self.is_section else ()


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem, printed as one line."""

    key: str
    message: str
    origin: Origin = DEFAULT
    sensitive: str = ""  # what the key does that only a trusted file may, if that is the problem

    def __str__(self) -> str:
        where = "" if self.origin.source == "default" else f"{self.origin}: "
        return f"{where}{self.key}: {self.message}" if self.key else f"{where}{self.message}"

    def to_json(self) -> dict[str, Any]:
        return {"key": self.key, "message": self.message, "where": str(self.origin), "line": self.origin.line}


@dataclass(slots=True)
class ProblemCollector:
    """Collects problems, so that the user sees all of them at once."""

    items: list[ConfigProblem] = field(default_factory=list)

    def add(self, entry: ConfigEntry, message: str, sensitive: str = "") -> None:
        self.items.append(ConfigProblem(entry.key_path, message, entry.origin, sensitive))


def as_section(entry: ConfigEntry) -> ConfigEntry:
    """Return the entry as a section. A null value is an empty section."""
    return replace(entry, value={}) if entry.value is None else entry


def find_untrusted_file(entry: ConfigEntry) -> str:
    """Return the name of the untrusted file that sets the entry or part of it; empty if there is none."""
    if not entry.origin.trusted:
        return entry.origin.name
    children = (child for _, child in entry.children() if isinstance(child, ConfigEntry))
    return next(filter(None, map(find_untrusted_file, children)), "")


def merge(base: ConfigEntry, over: ConfigEntry) -> ConfigEntry:
    """Merge `over` onto `base`: sections merge, other values are replaced."""
    if not base.is_section or not over.is_section or _has_other_kind(base, over):
        return over
    merged: dict[Any, ConfigEntry] = dict(base.value)
    for key, child in over.value.items():
        merged[key] = merge(merged[key], child) if key in merged else child
    return replace(base, value=merged)


def _has_other_kind(base: ConfigEntry, over: ConfigEntry) -> bool:
    """Return whether a section such as `profile` changes its kind, so that the keys of the old kind do not apply."""
    kinds = [entry.value.get("kind", ConfigEntry(None)).value for entry in (base, over)]
    return all(isinstance(kind, str) for kind in kinds) and kinds[0] != kinds[1]


def pick_stronger(current: ConfigEntry | None, candidate: ConfigEntry) -> ConfigEntry:
    """Return the entry from the stronger source; at equal sources, the candidate."""
    return current if current is not None and current.origin.rank > candidate.origin.rank else candidate


def overlay(*layers: Mapping[str, ConfigEntry]) -> dict[str, ConfigEntry]:
    """Merge settings from several layers, ordered general to specific."""
    combined: dict[str, ConfigEntry] = {}
    for layer in layers:
        for name, entry in layer.items():
            combined[name] = pick_stronger(combined.get(name), entry)
    return combined

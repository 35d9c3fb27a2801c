"""Observed memory per pool and seconds per operation of each variant, kept in a JSON file.

    observed = ObservedResources.load()
    key = compute_observation_key(model, kind, version, path, settings, loras)
    observed.record_seconds(key, "cold", 4.2)
    observed.get_median_seconds(key, "cold")          the median of the last five, or None
    observed.save()

It only improves estimates, so nothing here raises: an unreadable file counts as empty, and `save` reports a failure.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

from enginebay.util.atomic_file import read_json_or_none, write_atomically
from enginebay.util.paths import home_dir

TimedOperation = Literal["cold", "standby", "wake", "sleep", "drain"]  # the first two are loads

TIMED_OPERATIONS: tuple[str, ...] = get_args(TimedOperation)
SCHEMA_VERSION = 1
MAX_ENTRIES = 500
MAX_KEPT_SECONDS = 5


def compute_observation_key(
    model: str, kind: str, version: str, path: str, settings: Mapping[str, Any], loras: Mapping[str, str]
) -> str:
    """Return a key for this exact configuration: any setting or version may change the resources it takes."""
    content = json.dumps([model, kind, version, path, settings, loras], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


@dataclass(slots=True)
class _ObservedEntry:
    at: float  # last update, unix time
    memory: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "memory": self.memory, "seconds": self.seconds}


class ObservedResources:
    """Owned by one process; others read the file."""

    def __init__(self, path: Path, entries: dict[str, _ObservedEntry] | None = None) -> None:
        self.path = path
        self._entries = entries or {}

    @classmethod
    def load(cls, path: Path | None = None) -> ObservedResources:
        path = path or home_dir() / "fleet" / "measured.json"
        return cls(path, _parse_entries(read_json_or_none(path)))

    def __len__(self) -> int:
        return len(self._entries)

    def get_median_seconds(self, key: str, operation: TimedOperation) -> float | None:
        """Return the median of the latest times."""
        times = self._get_times(key, operation)
        return median(times) if times else None

    def get_last_seconds(self, key: str, operation: TimedOperation) -> float | None:
        times = self._get_times(key, operation)
        return times[-1] if times else None

    def get_peak_memory(self, key: str) -> dict[str, int]:
        """Return the observed peak per pool."""
        entry = self._entries.get(key)
        return dict(entry.memory) if entry else {}

    def record_seconds(self, key: str, operation: TimedOperation, seconds: float, now: float | None = None) -> None:
        if operation not in TIMED_OPERATIONS or not _is_amount(seconds):
            return
        times = self._touch_entry(key, now).seconds.setdefault(operation, [])
        times.append(round(float(seconds), 4))
        del times[:-MAX_KEPT_SECONDS]

    def record_memory(self, key: str, pools: Mapping[str, int], now: float | None = None) -> None:
        memory = self._touch_entry(key, now).memory
        for pool, amount in pools.items():
            if _is_amount(amount):
                memory[pool] = max(memory.get(pool, 0), int(amount))

    def save(self) -> bool:
        """Write the file atomically. Return whether that worked."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "entries": {key: entry.to_json() for key, entry in self._entries.items()},
        }
        try:
            write_atomically(self.path, json.dumps(content))
        except OSError:
            return False
        return True

    def _get_times(self, key: str, operation: str) -> list[float]:
        entry = self._entries.get(key)
        return entry.seconds.get(operation, []) if entry else []

    def _touch_entry(self, key: str, now: float | None) -> _ObservedEntry:
        at = time.time() if now is None else now
        entry = self._entries.setdefault(key, _ObservedEntry(at))
        entry.at = max(entry.at, at)
        _drop_oldest(self._entries, keep=key)
        return entry


def _drop_oldest(entries: dict[str, _ObservedEntry], keep: str | None = None) -> None:
    for _ in range(len(entries) - MAX_ENTRIES):
        del entries[min((key for key in entries if key != keep), key=lambda key: entries[key].at)]


def _parse_entries(content: Any) -> dict[str, _ObservedEntry]:
    """Return the valid entries of a file's content."""
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        return {}
    raw = content.get("entries")
    if not isinstance(raw, dict):
        return {}
    entries = {key: _parse_entry(value) for key, value in raw.items() if isinstance(value, dict)}
    _drop_oldest(entries)
    return entries


def _parse_entry(value: Mapping[str, Any]) -> _ObservedEntry:
    memory, seconds, at = value.get("memory"), value.get("seconds"), value.get("at")
    return _ObservedEntry(
        at=float(at) if at is not None and _is_amount(at) else 0.0,
        memory={pool: int(amount) for pool, amount in _list_items(memory) if _is_amount(amount)},
        seconds={
            operation: [float(taken) for taken in times if _is_amount(taken)][-MAX_KEPT_SECONDS:]
            for operation, times in _list_items(seconds)
            if operation in TIMED_OPERATIONS and isinstance(times, list)
        },
    )


def _list_items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _is_amount(value: Any) -> bool:
    """Return whether the value is a usable number: Python's JSON allows Infinity and integers too large for a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 2**63 and math.isfinite(value)

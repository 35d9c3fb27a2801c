"""What `bay choose` measured to be the best engine for a model on a host, for `engine: auto` to go by.

    save(choice)                            one file for each model and host, the newest measurement
    looked = find(stored, read_host())      looked.choice, or why none of those that are there counts
    forget(stored, host)                    take it back

A choice counts for the very files of the model and for a host with the same processor, memory and GPUs. Nothing about
it may fail: a file that cannot be read is left out with its reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from enginebay.errors import ModelInvalid
from enginebay.models.model_manifest import ModelManifest, StoredModel
from enginebay.util.hardware import HostFacts
from enginebay.util.paths import home_dir

SCHEMA_VERSION = 1
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """One engine of a comparison."""

    engine: str
    version: str  # of its library
    rate: float | None = None  # the highest that kept the objective, requests/s; None: none did
    why_none: str = ""
    confirmed: bool = False
    sure: bool = False
    status: str = "valid"
    reasons: tuple[str, ...] = ()
    j_per_output_token: float | None = None
    energy_of: str = ""
    energy_absent: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TunedEngine:
    """The engine that was the best, and all that was measured to say so."""

    model: str
    model_files: str  # `model_print`
    source: str
    host: Mapping[str, Any]  # `host_print`
    engine: str
    slo: Mapping[str, float]
    measured: tuple[EngineMeasurement, ...]  # the best first
    created: str  # UTC, ISO 8601
    profile: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    resolution: float = 0.1
    decided_by: str = "rate"
    status: str = "valid"  # invalid: whoever measured it insisted
    study: str = ""  # of the runs behind it
    enginebay_version: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def best(self) -> EngineMeasurement:
        return next(one for one in self.measured if one.engine == self.engine)

    @property
    def date(self) -> str:
        return self.created[:10]


@dataclass(frozen=True, slots=True)
class TunedLookup:
    """What there is for a model on this host."""

    tuned: TunedEngine | None = None
    ignored: tuple[str, ...] = ()  # why others do not count


def fingerprint_host(host: HostFacts) -> dict[str, Any]:
    """What of a host has a bearing on which engine is the fastest. Memory by GiB: kernels differ in what they keep."""
    return {
        "machine": host.machine,
        "cpu": host.cpu,
        "cores": host.usable_cores,
        "memory_gib": round(host.memory_bytes / _GIB),
        "gpus": [f"{gpu.name} {round(gpu.memory_bytes / _GIB)} GiB" for gpu in host.gpus],
    }


def fingerprint_model(stored: StoredModel) -> str:
    """The same for the same files: by their hashes where the store has them, else by size and time of change."""
    try:
        records = ModelManifest.read(stored.folder).files
        told: Any = sorted((one.path, one.sha256) for one in records)
    except ModelInvalid:  # used where it lies
        found = stored.path.stat()
        told = [str(stored.path.resolve()), stored.size_bytes, found.st_mtime_ns]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def tuned_engines_dir() -> Path:
    return home_dir() / "choices"


def save(tuned: TunedEngine, folder: Path | None = None) -> Path:
    """Keep it in place of an earlier one. The file is whole at every moment."""
    path = _build_path(tuned.model, tuned.model_files, tuned.host, folder or tuned_engines_dir())
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(tuned), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def find(stored: StoredModel, host: HostFacts, folder: Path | None = None) -> TunedLookup:
    """The newest choice for this model on this host."""
    paths = sorted((folder or tuned_engines_dir()).glob("[!.]*.json"))
    if not paths:
        return TunedLookup()
    files, here = fingerprint_model(stored), fingerprint_host(host)
    usable: list[TunedEngine] = []
    ignored: list[str] = []
    for path in paths:
        found = _read_file(path)
        if isinstance(found, str):
            if path.name.startswith(f"{_slugify(stored.name)}-"):
                ignored.append(f"the measurement in {path} is not used: {found}")
            continue
        if found.model_files != files and found.model != stored.name:
            continue  # another model's
        against = _find_mismatch(found, files, here)
        if against:
            ignored.append(f"the measurement of {found.date} is not used: {against}")
        else:
            usable.append(found)
    return TunedLookup(max(usable, key=lambda one: one.created, default=None), tuple(ignored))


def forget(stored: StoredModel, host: HostFacts, folder: Path | None = None) -> bool:
    """Whether there was one to take back."""
    files, here, there = fingerprint_model(stored), fingerprint_host(host), False
    for path in sorted((folder or tuned_engines_dir()).glob("[!.]*.json")):
        found = _read_file(path)
        if isinstance(found, TunedEngine) and found.model_files == files and found.host == here:
            path.unlink(missing_ok=True)
            there = True
    return there


def format_summary(tuned: TunedEngine) -> str:
    """`measured on 2026-11-15: 3.1 requests/s within ttft_p95=0.8, next llamacpp 1.2`."""
    objective = ", ".join(f"{name}={value:g}" for name, value in tuned.slo.items())
    best = tuned.best
    rivals = [one for one in tuned.measured if one.engine != tuned.engine]
    # Level rates are decided by energy, so the next one may have the higher rate.
    following = max(rivals, key=lambda one: one.rate or 0.0, default=None)
    text = f"measured on {tuned.date}: {best.rate:.3g} requests/s within {objective}"
    if following is not None:
        text += f", next {following.engine} {f'{following.rate:.3g}' if following.rate is not None else 'none'}"
    if tuned.decided_by == "energy" and best.j_per_output_token is not None:
        text += f"; level with it, and the least energy: {best.j_per_output_token:.3g} J per output token"
    return f"{text}; its runs are invalid, and kept with --even-if-invalid" if tuned.status == "invalid" else text


def _read_file(path: Path) -> TunedEngine | str:
    """The choice in a file, or what is wrong with it."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=TunedEngine)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"it cannot be read: {error}"
    if found.schema_version != SCHEMA_VERSION:
        return f"its schema version is {found.schema_version}"
    if not any(one.engine == found.engine and one.rate is not None for one in found.measured):
        return "it does not hold what it says"
    return found


def _find_mismatch(tuned: TunedEngine, files: str, host: Mapping[str, Any]) -> str:
    """Why a choice does not count; empty when it does."""
    if tuned.model_files != files:
        return "the model's files are others now"
    if differing := [name for name, value in host.items() if tuned.host.get(name) != value]:
        name = differing[0]
        return f"it was made on another host ({name} {_format_value(tuned.host.get(name))}, here {_format_value(host[name])})"
    return ""


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _build_path(model: str, files: str, host: Mapping[str, Any], folder: Path) -> Path:
    where = hashlib.sha256(json.dumps(host, sort_keys=True).encode()).hexdigest()
    return folder / f"{_slugify(model)}-{files[:12]}-{where[:8]}.json"


def _slugify(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", Path(name).name)[:60].strip("-.") or "model"

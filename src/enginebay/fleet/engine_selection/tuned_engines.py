"""Results of `bay choose`: the best engine for a model on a host, which `engine: auto` uses.

    save(tuned)                             one file per model and host, with the newest measurement
    lookup = find(stored, read_host())      lookup.tuned, or why the existing ones are ignored
    forget(stored, host)                    delete it

A result is valid for exactly these model files and a host with the same processor, memory and GPUs. `find` never
fails: it ignores an unreadable file and reports why.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from enginebay.errors import ModelInvalid
from enginebay.models.model_manifest import ModelManifest, StoredModel
from enginebay.util.atomic_file import write_atomically
from enginebay.util.hardware import HostFacts
from enginebay.util.paths import home_dir

SCHEMA_VERSION = 1
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """One engine of a comparison."""

    engine: str
    version: str  # of its library
    rate: float | None = None  # highest requests/s within the objective; None: no rate was
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
    """The best engine and the measurements behind it."""

    model: str
    model_files: str  # from `fingerprint_model`
    source: str
    host: Mapping[str, Any]  # from `fingerprint_host`
    engine: str
    slo: Mapping[str, float]
    measured: tuple[EngineMeasurement, ...]  # best first
    created: str  # UTC, ISO 8601
    profile: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    resolution: float = 0.1
    decided_by: str = "rate"
    status: str = "valid"  # invalid: saved with --even-if-invalid
    study: str = ""  # that contains its runs
    enginebay_version: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def best(self) -> EngineMeasurement:
        return next(measurement for measurement in self.measured if measurement.engine == self.engine)

    @property
    def date(self) -> str:
        return self.created[:10]


@dataclass(frozen=True, slots=True)
class TunedLookup:
    """The result for a model on this host, if there is one."""

    tuned: TunedEngine | None = None
    ignored: tuple[str, ...] = ()  # why other results were ignored


def fingerprint_host(host: HostFacts) -> dict[str, Any]:
    """Return the host facts that decide which engine is fastest. Memory in whole GiB: kernels reserve some."""
    return {
        "machine": host.machine,
        "cpu": host.cpu,
        "cores": host.usable_cores,
        "memory_gib": round(host.memory_bytes / _GIB),
        "gpus": [f"{gpu.name} {round(gpu.memory_bytes / _GIB)} GiB" for gpu in host.gpus],
    }


def fingerprint_model(stored: StoredModel) -> str:
    """Return a fingerprint of the model's files: by their hashes if the store has them, else by size and mtime."""
    try:
        records = ModelManifest.read(stored.folder).files
        content: Any = sorted((record.path, record.sha256) for record in records)
    except ModelInvalid:  # a path outside the store
        content = [str(stored.path.resolve()), stored.size_bytes, stored.path.stat().st_mtime_ns]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def tuned_engines_dir() -> Path:
    return home_dir() / "choices"


def save(tuned: TunedEngine, folder: Path | None = None) -> Path:
    """Save a result, replacing an earlier one atomically."""
    path = _build_path(tuned.model, tuned.model_files, tuned.host, folder or tuned_engines_dir())
    write_atomically(path, msgspec.json.format(msgspec.json.encode(tuned), indent=2) + b"\n", sync=True)
    return path


def find(stored: StoredModel, host: HostFacts, folder: Path | None = None) -> TunedLookup:
    """Return the newest result for this model on this host."""
    paths = sorted((folder or tuned_engines_dir()).glob("[!.]*.json"))
    if not paths:
        return TunedLookup()
    files, here = fingerprint_model(stored), fingerprint_host(host)
    usable: list[TunedEngine] = []
    ignored: list[str] = []
    for path in paths:
        tuned = _read_file(path)
        if isinstance(tuned, str):
            if path.name.startswith(f"{_slugify(stored.name)}-"):
                ignored.append(f"ignored the measurement in {path}: {tuned}")
            continue
        if tuned.model_files != files and tuned.model != stored.name:
            continue  # another model's
        mismatch = _find_mismatch(tuned, files, here)
        if mismatch:
            ignored.append(f"ignored the measurement of {tuned.date}: {mismatch}")
        else:
            usable.append(tuned)
    return TunedLookup(max(usable, key=lambda tuned: tuned.created, default=None), tuple(ignored))


def forget(stored: StoredModel, host: HostFacts, folder: Path | None = None) -> bool:
    """Delete the result for this model on this host. Return whether there was one."""
    files, here, deleted = fingerprint_model(stored), fingerprint_host(host), False
    for path in sorted((folder or tuned_engines_dir()).glob("[!.]*.json")):
        tuned = _read_file(path)
        if isinstance(tuned, TunedEngine) and tuned.model_files == files and tuned.host == here:
            path.unlink(missing_ok=True)
            deleted = True
    return deleted


def format_summary(tuned: TunedEngine) -> str:
    """Format a result: `measured on 2026-11-15: 3.1 requests/s within ttft_p95=0.8, next llamacpp 1.2`."""
    objective = ", ".join(f"{name}={value:g}" for name, value in tuned.slo.items())
    best = tuned.best
    others = [measurement for measurement in tuned.measured if measurement.engine != tuned.engine]
    # Energy decides between similar rates, so the runner-up may have the higher rate.
    runner_up = max(others, key=lambda measurement: measurement.rate or 0.0, default=None)
    text = f"measured on {tuned.date}: {best.rate:.3g} requests/s within {objective}"
    if runner_up is not None:
        text += f", next {runner_up.engine} {f'{runner_up.rate:.3g}' if runner_up.rate is not None else 'none'}"
    if tuned.decided_by == "energy" and best.j_per_output_token is not None:
        text += f"; a tie, decided by least energy: {best.j_per_output_token:.3g} J per output token"
    return f"{text}; its runs are invalid (saved with --even-if-invalid)" if tuned.status == "invalid" else text


def _read_file(path: Path) -> TunedEngine | str:
    """Return the result in a file, or what is wrong with the file."""
    try:
        tuned = msgspec.json.decode(path.read_bytes(), type=TunedEngine)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"it cannot be read: {error}"
    if tuned.schema_version != SCHEMA_VERSION:
        return f"unsupported schema version {tuned.schema_version}"
    if not any(entry.engine == tuned.engine and entry.rate is not None for entry in tuned.measured):
        return f"it has no rate for {tuned.engine}"
    return tuned


def _find_mismatch(tuned: TunedEngine, files: str, host: Mapping[str, Any]) -> str:
    """Return why a result does not apply; empty if it does."""
    if tuned.model_files != files:
        return "the model's files have changed"
    if differing := [name for name, value in host.items() if tuned.host.get(name) != value]:
        name = differing[0]
        return (
            f"it is from another host ({name} {_format_value(tuned.host.get(name))}, here {_format_value(host[name])})"
        )
    return ""


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _build_path(model: str, files: str, host: Mapping[str, Any], folder: Path) -> Path:
    host_hash = hashlib.sha256(json.dumps(host, sort_keys=True).encode()).hexdigest()
    return folder / f"{_slugify(model)}-{files[:12]}-{host_hash[:8]}.json"


def _slugify(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", Path(name).name)[:60].strip("-.") or "model"

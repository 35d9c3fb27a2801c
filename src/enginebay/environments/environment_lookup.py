"""Finds the environment of an engine: the current one if it has the library, else the newest built one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from enginebay.contract import EngineSpec, Probe
from enginebay.engines import registry
from enginebay.environments import engine_probe as probing
from enginebay.environments.environment_store import (
    Environment,
    build_environment_name,
    list_broken,
    list_environments,
)
from enginebay.errors import EnginebayError, EngineFailed, EngineMissing, UsageError
from enginebay.util.atomic_file import read_json_object, write_json


def find_environment(kind: str, version: str | None = None) -> Environment:
    """Return the environment of an engine. Raises `EngineMissing` with the command that installs it."""
    spec = registry.get_spec(kind)
    current = _find_current(spec, version)
    if current is not None:
        return current
    for environment in list_environments(spec.kind):
        if version is None or environment.has_version(version):
            return _refresh_probe(environment, spec)
    raise build_missing_error(spec, version)


def build_missing_error(spec: EngineSpec, version: str | None = None) -> EngineMissing:
    """Return the error for a missing engine, with the command that installs or rebuilds it."""
    requirement = f"{spec.kind}=={version}" if version else spec.kind
    shown = f"{spec.kind} {version}" if version else spec.kind
    for broken in list_broken():
        name = broken.path.name
        if broken.is_kind(spec.kind) and (version is None or name == build_environment_name(spec.kind, version)):
            return EngineMissing(
                f"the environment {name} is broken: {broken.reason}",
                f"rebuild it with: bay engines install {requirement} --recreate",
            )
    if not spec.recipes:
        return EngineMissing(
            f"the engine {shown} is not installed", "install the package that provides it: bay engines install PACKAGE"
        )
    return EngineMissing(f"the engine {shown} is not installed", f"install it with: bay engines install {requirement}")


def _find_current(spec: EngineSpec, version: str | None) -> Environment | None:
    """Return the current environment if the engine starts in it; an importable library alone is not enough."""
    if not probing.is_in_current_environment(spec):
        return None
    try:
        probe = probing.probe_current_environment(spec)
    except EngineFailed:
        return None
    current = Environment(spec.kind, probing.read_current_version(spec), Path(sys.executable), "current", probe, spec)
    return current if version is None or current.has_version(version) else None


def _refresh_probe(environment: Environment, spec: EngineSpec) -> Environment:
    """Give a built-in engine the current spec, and probe it again if its adapter changed."""
    if not spec.engine.startswith("enginebay."):
        return environment
    fingerprint = probing.fingerprint_adapter(spec)
    if environment.adapter_fingerprint == fingerprint:
        return replace(environment, spec=spec)
    probe = probing.probe_engine(environment.python, spec)
    _write_probe(environment.python.parent.parent, spec, probe, fingerprint)
    return replace(environment, spec=spec, probe=probe, adapter_fingerprint=fingerprint)


def _write_probe(folder: Path, spec: EngineSpec, probe: Probe, adapter: str) -> None:
    try:
        record = read_json_object(folder / "install.json")
        write_json(folder / "spec.json", spec.to_json())
        write_json(folder / "probe.json", probe.to_json())
        write_json(folder / "install.json", {**record, "adapter": adapter})
    except OSError:
        pass  # a read-only shared environment is probed by every command


class InstalledEngines(Mapping[str, Probe | None]):
    """Each engine's probe, or None if it is not installed. Lazy, since some probes take seconds."""

    def __init__(self) -> None:
        self._kinds = registry.list_kinds()
        self._known: dict[str, Probe | None] = {}

    def __getitem__(self, kind: str) -> Probe | None:
        if kind not in self._kinds:
            raise KeyError(kind)
        if kind not in self._known:
            try:
                self._known[kind] = find_environment(kind).probe
            except (EngineMissing, EngineFailed):
                self._known[kind] = None
        return self._known[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


def get_installed_engines() -> InstalledEngines:
    return InstalledEngines()


def find_removable(requested: str, every: bool = False) -> list[Path]:
    """Return the built environments that match `KIND` or `KIND==VERSION`, including broken ones."""
    name, _, version = (part.strip() for part in requested.partition("=="))
    spec = registry.get_spec(name)
    built = list_environments(spec.kind)
    if version:
        name = build_environment_name(spec.kind, version)
        paths = [environment.path for environment in built if environment.path and environment.has_version(version)]
        paths += [broken.path for broken in list_broken() if broken.path.name == name]
    else:
        paths = [environment.path for environment in built if environment.path]
        paths += [broken.path for broken in list_broken() if broken.is_kind(spec.kind)]
    if not paths:
        raise _build_not_removable_error(spec, version)
    if len(paths) > 1 and not every:
        raise UsageError(
            f"{spec.kind} is installed {len(paths)} times: {', '.join(path.name for path in paths)}",
            f"name one, as in: bay engines remove {spec.kind}=={built[0].version if built else version}; or use --all",
        )
    return paths


def _build_not_removable_error(spec: EngineSpec, version: str) -> EnginebayError:
    if probing.is_in_current_environment(spec) and not spec.distributions:
        return UsageError(f"{spec.kind} is part of bay and has no separate environment", "it cannot be removed")
    if probing.is_in_current_environment(spec):
        return UsageError(
            f"{spec.kind} is installed in the same environment as bay",
            f"remove it with: {sys.executable} -m pip uninstall {spec.distributions[0]}",
        )
    return EngineMissing(
        f"{spec.kind}{f' {version}' if version else ''} is not installed", "see the installed engines: bay engines list"
    )

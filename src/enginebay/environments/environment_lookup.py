"""Which environment hosts an engine: this one if it has the library, else the newest that was built."""

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
    read_json,
    write_json,
)
from enginebay.errors import EnginebayError, EngineFailed, EngineMissing, UsageError


def find_environment(kind: str, version: str | None = None) -> Environment:
    """The environment for an engine. Raises `EngineMissing` with the command that installs it."""
    spec = registry.get_spec(kind)
    here = _find_current(spec, version)
    if here is not None:
        return here
    for one in list_environments(spec.kind):
        if version is None or one.has_version(version):
            return _refresh_probe(one, spec)
    raise build_missing_error(spec, version)


def build_missing_error(spec: EngineSpec, version: str | None = None) -> EngineMissing:
    wanted = f"{spec.kind}=={version}" if version else spec.kind
    shown = f"{spec.kind} {version}" if version else spec.kind
    for one in list_broken():
        if one.is_kind(spec.kind) and (version is None or one.path.name == build_environment_name(spec.kind, version)):
            return EngineMissing(
                f"the environment {one.path.name} is broken: {one.reason}",
                f"build it again with: bay engines install {wanted} --recreate",
            )
    if not spec.recipes:
        return EngineMissing(
            f"the engine {shown} is not installed", "install the package that brings it: bay engines install PACKAGE"
        )
    return EngineMissing(f"the engine {shown} is not installed", f"install it with: bay engines install {wanted}")


def _find_current(spec: EngineSpec, version: str | None) -> Environment | None:
    """This environment, if the engine really starts in it; a library without its own needs does not count."""
    if not probing.is_in_current_environment(spec):
        return None
    try:
        probe = probing.probe_current_environment(spec)
    except EngineFailed:
        return None
    found = Environment(spec.kind, probing.read_current_version(spec), Path(sys.executable), "current", probe, spec)
    return found if version is None or found.has_version(version) else None


def _refresh_probe(environment: Environment, spec: EngineSpec) -> Environment:
    """Our own engines follow the code of today: its spec, and a new probe when the adapter has changed."""
    if not spec.engine.startswith("enginebay."):
        return environment
    today = probing.fingerprint_adapter(spec)
    if environment.adapter_fingerprint == today:
        return replace(environment, spec=spec)
    probe = probing.probe_engine(environment.python, spec)
    _write_probe(environment.python.parent.parent, spec, probe, today)
    return replace(environment, spec=spec, probe=probe, adapter_fingerprint=today)


def _write_probe(folder: Path, spec: EngineSpec, probe: Probe, adapter: str) -> None:
    try:
        record = read_json(folder / "install.json")
        write_json(folder / "spec.json", spec.to_json())
        write_json(folder / "probe.json", probe.to_json())
        write_json(folder / "install.json", {**record, "adapter": adapter})
    except OSError:
        pass  # an environment shared read-only is asked again by each command


class InstalledEngines(Mapping[str, Probe | None]):
    """Each engine's probe, or None where it is not installed; looked up when asked for, since some take seconds."""

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
    """The built environments that `KIND` or `KIND==VERSION` means, broken ones included."""
    name, _, version = (part.strip() for part in requested.partition("=="))
    spec = registry.get_spec(name)
    built = list_environments(spec.kind)
    if version:
        paths = [one.path for one in built if one.path and one.has_version(version)]
        paths += [one.path for one in list_broken() if one.path.name == build_environment_name(spec.kind, version)]
    else:
        paths = [one.path for one in built if one.path]
        paths += [one.path for one in list_broken() if one.is_kind(spec.kind)]
    if not paths:
        raise _build_not_removable_error(spec, version)
    if len(paths) > 1 and not every:
        raise UsageError(
            f"{spec.kind} is installed {len(paths)} times: {', '.join(path.name for path in paths)}",
            f"name one, as in: bay engines remove {spec.kind}=={built[0].version if built else version}; or give --all",
        )
    return paths


def _build_not_removable_error(spec: EngineSpec, version: str) -> EnginebayError:
    if probing.is_in_current_environment(spec) and not spec.distributions:
        return UsageError(f"{spec.kind} comes with bay and has no environment of its own", "there is nothing to remove")
    if probing.is_in_current_environment(spec):
        return UsageError(
            f"{spec.kind} is installed next to bay, not in an environment of its own",
            f"remove it with: {sys.executable} -m pip uninstall {spec.distributions[0]}",
        )
    return EngineMissing(
        f"{spec.kind}{f' {version}' if version else ''} is not installed", "bay engines list shows what is"
    )

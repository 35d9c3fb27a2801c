"""An engine's environment from a bundle's wheels: built where it stays, proven by the probe, published by a link."""

from __future__ import annotations

import secrets
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TextIO

from packaging.requirements import InvalidRequirement, Requirement

from enginebay import __version__
from enginebay.bundle.bundle_manifest import BundledEngine
from enginebay.bundle.installation.host_python import HostPython
from enginebay.bundle.installation.install_plan import EngineInstallPlan, find_conflicts
from enginebay.contract import EngineSpec, Probe
from enginebay.engines import registry
from enginebay.environments import Environment, find_environment
from enginebay.environments import engine_probe as probing
from enginebay.environments.command_runner import CommandRunner
from enginebay.environments.dist_requirements import canonicalize_name
from enginebay.environments.environment_build import Report
from enginebay.environments.environment_store import (
    STORE_FOLDER,
    build_environment_name,
    claim_name,
    is_published,
    publish,
    remove_abandoned,
    write_json,
)
from enginebay.errors import EngineFailed, UsageError
from enginebay.util.paths import engines_dir, logs_dir
from enginebay.util.text_format import pluralize

# pip only unpacks: what goes together was decided when the bundle was made. No index, no settings of this host.
_OFFLINE_OPTIONS = (
    "--no-index",
    "--no-deps",
    "--isolated",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
)
_WITHOUT_PIP_CONFIG = ("/usr/bin/env", "PIP_CONFIG_FILE=/dev/null")
_PTH_FILE = "enginebay-bundle.pth"


@dataclass(frozen=True, slots=True)
class EngineInstall:
    """One engine on its way in: `wheels` are the plan's files, `bundle` the fingerprint of where they come from."""

    engine: BundledEngine
    plan: EngineInstallPlan
    wheels: tuple[Path, ...]
    python: HostPython
    bundle: str


def install_in_own_environment(order: EngineInstall, report: Report) -> Environment:
    """In an environment of its own, which sees the host's packages if the bundle counts on them."""
    name = build_environment_name(order.engine.kind, order.engine.version)
    with claim_name(name, lambda: report("waiting for another install of the same engine", "")) as lock:
        remove_abandoned(name)
        folder = engines_dir() / STORE_FOLDER / f"{name}~{secrets.token_hex(3)}"
        try:
            return _build_environment(order, folder, lock, report)
        finally:
            if not is_published(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _build_environment(order: EngineInstall, folder: Path, lock: TextIO, report: Report) -> Environment:
    started, engine = time.monotonic(), order.engine
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    commands = CommandRunner(logs_dir() / f"install-{engine.kind}-{engine.version}.log", lock, report)
    commands.open()
    try:
        commands.run("making the environment", [order.python.path, "-m", "venv", "--without-pip", str(folder)])
        _pip_install(commands, order, ["--python", str(python)])
    finally:
        commands.close()
    packages = folder / "lib" / f"python{order.python.facts['python']}" / "site-packages"
    _write_pth_file(packages, order.python.paths if engine.sees_host else (), engine.variables or {})
    report("asking the library what it takes", "")
    spec = registry.get_spec(engine.kind)
    probe = _probe_engine(python, spec, f"{engine.kind} {engine.version} was not installed")
    _write_records(order, folder, spec, probe, started)
    path = publish(folder, build_environment_name(engine.kind, engine.version))
    adapter = probing.fingerprint_adapter(spec)
    return Environment(engine.kind, engine.version, python, "environment", probe, spec, path, adapter, engine.device)


def _pip_install(commands: CommandRunner, order: EngineInstall, which: list[str]) -> None:
    if order.wheels:
        pip = [*_WITHOUT_PIP_CONFIG, sys.executable, "-m", "pip", *which, "install", *_OFFLINE_OPTIONS]
        commands.run(f"installing {pluralize(len(order.wheels), 'package')}", [*pip, *map(str, order.wheels)])


def _write_pth_file(packages: Path, paths: tuple[str, ...], variables: Mapping[str, str]) -> None:
    """Python reads it at each start: folders to look into last, and a line that sets what the engine must know."""
    lines = list(paths)
    if variables:
        values = ", ".join(f"os.environ.setdefault({name!r}, {value!r})" for name, value in sorted(variables.items()))
        lines.append(f"import os; {values}")
    if lines:
        (packages / _PTH_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _probe_engine(python: Path, spec: EngineSpec, otherwise: str) -> Probe:
    """Raises `EngineFailed` with `otherwise` and the reason."""
    try:
        return probing.probe_engine(python, spec)
    except EngineFailed as error:
        raise EngineFailed(f"{otherwise}: {error.message}", error.hint) from None


def _write_records(order: EngineInstall, folder: Path, spec: EngineSpec, probe: Probe, started: float) -> None:
    engine = order.engine
    write_json(folder / "spec.json", spec.to_json())
    write_json(folder / "probe.json", probe.to_json())
    lines = [f"{one.name}=={one.version}" for one in order.plan.install]
    lines += [f"# of the host: {name}=={version}" for name, version in order.plan.kept.items()]
    (folder / "freeze.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = {
        "kind": engine.kind,
        "version": engine.version,
        "asked": f"{engine.kind}=={engine.version}",
        "device": engine.device,
        "adapter": probing.fingerprint_adapter(spec),
        "enginebay": __version__,
        "bundle": order.bundle,
        "host_python": order.python.path if engine.sees_host else None,
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "build_s": round(time.monotonic() - started, 1),
    }
    write_json(folder / "install.json", record)


def install_in_current_environment(order: EngineInstall, report: Report) -> Environment:
    """In the environment that runs bay. Refuses to replace what its other packages need."""
    engine = order.engine
    if wrong := find_conflicts(order.plan, _iter_installed_requirements()):
        raise UsageError(
            f"{engine.kind} does not go into this environment: {wrong[0]}", "give it one of its own: --into own"
        )
    with claim_name(f"current-{engine.kind}") as lock:
        commands = CommandRunner(logs_dir() / f"install-{engine.kind}-{engine.version}.log", lock, report)
        commands.open()
        try:
            _pip_install(commands, order, [])
        finally:
            commands.close()
    _write_pth_file(Path(sysconfig.get_paths()["purelib"]), (), engine.variables or {})
    report("asking the library what it takes", "")
    spec = registry.get_spec(engine.kind)
    said = f"the packages of {engine.kind} {engine.version} are in this environment now, but it does not start"
    _probe_engine(Path(sys.executable), spec, said)
    return find_environment(engine.kind, engine.version)


def _iter_installed_requirements() -> Iterator[tuple[str, str]]:
    for one in distributions():
        who = canonicalize_name(one.metadata["Name"] or "")
        for text in one.requires or ():
            try:
                wish = Requirement(text)
            except InvalidRequirement:
                continue
            if wish.marker is None or wish.marker.evaluate({"extra": ""}):
                yield who, f"{wish.name}{wish.specifier}"

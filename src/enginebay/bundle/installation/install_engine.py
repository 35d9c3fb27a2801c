"""Installs an engine from a bundle's wheels, probes it, and publishes its environment."""

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
)
from enginebay.errors import EngineFailed, UsageError
from enginebay.util.atomic_file import write_json
from enginebay.util.paths import engines_dir, logs_dir
from enginebay.util.text_format import pluralize

# pip only unpacks: versions were resolved when the bundle was created. No index, no pip settings of this host.
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
    """One engine to install. `wheels` are the plan's files, `bundle` is the bundle's fingerprint."""

    engine: BundledEngine
    plan: EngineInstallPlan
    wheels: tuple[Path, ...]
    python: HostPython
    bundle: str


def install_in_own_environment(install: EngineInstall, report: Report) -> Environment:
    """Install into a separate environment, which sees the host's packages if the bundle expects them."""
    name = build_environment_name(install.engine.kind, install.engine.version)
    with claim_name(name, lambda: report("waiting for another install of the same engine", "")) as lock:
        remove_abandoned(name)
        folder = engines_dir() / STORE_FOLDER / f"{name}~{secrets.token_hex(3)}"
        try:
            return _build_environment(install, folder, lock, report)
        finally:
            if not is_published(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _build_environment(install: EngineInstall, folder: Path, lock: TextIO, report: Report) -> Environment:
    started, engine = time.monotonic(), install.engine
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    commands = CommandRunner(logs_dir() / f"install-{engine.kind}-{engine.version}.log", lock, report)
    commands.open()
    try:
        commands.run("creating the environment", [install.python.path, "-m", "venv", "--without-pip", str(folder)])
        _pip_install(commands, install, ["--python", str(python)])
    finally:
        commands.close()
    packages = folder / "lib" / f"python{install.python.facts['python']}" / "site-packages"
    _write_pth_file(packages, install.python.paths if engine.sees_host else (), engine.variables or {})
    report("probing the engine", "")
    spec = registry.get_spec(engine.kind)
    probe = _probe_engine(python, spec, f"{engine.kind} {engine.version} was not installed")
    _write_records(install, folder, spec, probe, started)
    path = publish(folder, build_environment_name(engine.kind, engine.version))
    adapter = probing.fingerprint_adapter(spec)
    return Environment(engine.kind, engine.version, python, "environment", probe, spec, path, adapter, engine.device)


def _pip_install(commands: CommandRunner, install: EngineInstall, which: list[str]) -> None:
    if install.wheels:
        pip = [*_WITHOUT_PIP_CONFIG, sys.executable, "-m", "pip", *which, "install", *_OFFLINE_OPTIONS]
        commands.run(f"installing {pluralize(len(install.wheels), 'package')}", [*pip, *map(str, install.wheels)])


def _write_pth_file(packages: Path, paths: tuple[str, ...], variables: Mapping[str, str]) -> None:
    """Write a .pth file, read at every Python start: appends folders to the path and sets variables."""
    lines = list(paths)
    if variables:
        values = ", ".join(f"os.environ.setdefault({name!r}, {value!r})" for name, value in sorted(variables.items()))
        lines.append(f"import os; {values}")
    if lines:
        (packages / _PTH_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _probe_engine(python: Path, spec: EngineSpec, failure: str) -> Probe:
    """Probe the engine. Raises `EngineFailed` with `failure` and the reason."""
    try:
        return probing.probe_engine(python, spec)
    except EngineFailed as error:
        raise EngineFailed(f"{failure}: {error.message}", error.hint) from None


def _write_records(install: EngineInstall, folder: Path, spec: EngineSpec, probe: Probe, started: float) -> None:
    engine = install.engine
    write_json(folder / "spec.json", spec.to_json())
    write_json(folder / "probe.json", probe.to_json())
    lines = [f"{package.name}=={package.version}" for package in install.plan.install]
    lines += [f"# from the host: {name}=={version}" for name, version in install.plan.kept.items()]
    (folder / "freeze.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = {
        "kind": engine.kind,
        "version": engine.version,
        "asked": f"{engine.kind}=={engine.version}",
        "device": engine.device,
        "adapter": probing.fingerprint_adapter(spec),
        "enginebay": __version__,
        "bundle": install.bundle,
        "host_python": install.python.path if engine.sees_host else None,
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "build_s": round(time.monotonic() - started, 1),
    }
    write_json(folder / "install.json", record)


def install_in_current_environment(install: EngineInstall, report: Report) -> Environment:
    """Install into bay's environment. Raises `UsageError` if that would break its other packages."""
    engine = install.engine
    if conflicts := find_conflicts(install.plan, _iter_installed_requirements()):
        raise UsageError(
            f"{engine.kind} conflicts with this environment: {conflicts[0]}", "install it separately: --into own"
        )
    with claim_name(f"current-{engine.kind}") as lock:
        commands = CommandRunner(logs_dir() / f"install-{engine.kind}-{engine.version}.log", lock, report)
        commands.open()
        try:
            _pip_install(commands, install, [])
        finally:
            commands.close()
    _write_pth_file(Path(sysconfig.get_paths()["purelib"]), (), engine.variables or {})
    report("probing the engine", "")
    spec = registry.get_spec(engine.kind)
    failure = f"{engine.kind} {engine.version} was installed in this environment, but it does not start"
    _probe_engine(Path(sys.executable), spec, failure)
    return find_environment(engine.kind, engine.version)


def _iter_installed_requirements() -> Iterator[tuple[str, str]]:
    """Yield each installed package with each of its requirements."""
    for package in distributions():
        name = canonicalize_name(package.metadata["Name"] or "")
        for text in package.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield name, f"{requirement.name}{requirement.specifier}"

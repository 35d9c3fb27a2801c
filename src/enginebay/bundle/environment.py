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
from enginebay.bundle.host_python import HostPython
from enginebay.bundle.manifest import Engine
from enginebay.bundle.plan import Plan, clashes
from enginebay.contract import EngineSpec, Probe
from enginebay.engines import registry
from enginebay.errors import EngineFailed, UsageError
from enginebay.fleet.environments import Environment, find
from enginebay.fleet.environments import probe as probing
from enginebay.fleet.environments.build import Report
from enginebay.fleet.environments.commands import Commands
from enginebay.fleet.environments.requires import canonical
from enginebay.fleet.environments.store import STORE, claim, is_published, name_of, publish, sweep, write_json
from enginebay.home import engines_dir, logs_dir
from enginebay.wording import counted

# pip only unpacks: what goes together was decided when the bundle was made. No index, no settings of this host.
_OFFLINE = (
    "--no-index",
    "--no-deps",
    "--isolated",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
)
_NO_SETTINGS = ("/usr/bin/env", "PIP_CONFIG_FILE=/dev/null")
_PATH_FILE = "enginebay-bundle.pth"


@dataclass(frozen=True, slots=True)
class Order:
    """One engine on its way in: `wheels` are the plan's files, `bundle` the fingerprint of where they come from."""

    engine: Engine
    plan: Plan
    wheels: tuple[Path, ...]
    python: HostPython
    bundle: str


def install_own(order: Order, report: Report) -> Environment:
    """In an environment of its own, which sees the host's packages if the bundle counts on them."""
    name = name_of(order.engine.kind, order.engine.version)
    with claim(name, lambda: report("waiting for another install of the same engine", "")) as lock:
        sweep(name)
        folder = engines_dir() / STORE / f"{name}~{secrets.token_hex(3)}"
        try:
            return _build(order, folder, lock, report)
        finally:
            if not is_published(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _build(order: Order, folder: Path, lock: TextIO, report: Report) -> Environment:
    started, engine = time.monotonic(), order.engine
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    commands = Commands(logs_dir() / f"install-{engine.kind}-{engine.version}.log", lock, report)
    commands.open()
    try:
        commands.run("making the environment", [order.python.path, "-m", "venv", "--without-pip", str(folder)])
        _pip(commands, order, ["--python", str(python)])
    finally:
        commands.close()
    packages = folder / "lib" / f"python{order.python.facts['python']}" / "site-packages"
    _write_path_file(packages, order.python.paths if engine.sees_host else (), engine.variables or {})
    report("asking the library what it takes", "")
    spec = registry.spec(engine.kind)
    probe = _probe(python, spec, f"{engine.kind} {engine.version} was not installed")
    _write_records(order, folder, spec, probe, started)
    path = publish(folder, name_of(engine.kind, engine.version))
    adapter = probing.fingerprint(spec)
    return Environment(engine.kind, engine.version, python, "environment", probe, spec, path, adapter, engine.device)


def _pip(commands: Commands, order: Order, which: list[str]) -> None:
    if order.wheels:
        pip = [*_NO_SETTINGS, sys.executable, "-m", "pip", *which, "install", *_OFFLINE]
        commands.run(f"installing {counted(len(order.wheels), 'package')}", [*pip, *map(str, order.wheels)])


def _write_path_file(packages: Path, paths: tuple[str, ...], variables: Mapping[str, str]) -> None:
    """Python reads it at each start: folders to look into last, and a line that sets what the engine must know."""
    lines = list(paths)
    if variables:
        values = ", ".join(f"os.environ.setdefault({name!r}, {value!r})" for name, value in sorted(variables.items()))
        lines.append(f"import os; {values}")
    if lines:
        (packages / _PATH_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _probe(python: Path, spec: EngineSpec, otherwise: str) -> Probe:
    """Raises `EngineFailed` with `otherwise` and the reason."""
    try:
        return probing.probe(python, spec)
    except EngineFailed as error:
        raise EngineFailed(f"{otherwise}: {error.message}", error.hint) from None


def _write_records(order: Order, folder: Path, spec: EngineSpec, probe: Probe, started: float) -> None:
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
        "adapter": probing.fingerprint(spec),
        "enginebay": __version__,
        "bundle": order.bundle,
        "host_python": order.python.path if engine.sees_host else None,
        "installed_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "build_s": round(time.monotonic() - started, 1),
    }
    write_json(folder / "install.json", record)


def install_current(order: Order, report: Report) -> Environment:
    """In the environment that runs bay. Refuses to replace what its other packages need."""
    engine = order.engine
    if wrong := clashes(order.plan, _wishes_here()):
        raise UsageError(
            f"{engine.kind} does not go into this environment: {wrong[0]}", "give it one of its own: --into own"
        )
    with claim(f"current-{engine.kind}") as lock:
        commands = Commands(logs_dir() / f"install-{engine.kind}-{engine.version}.log", lock, report)
        commands.open()
        try:
            _pip(commands, order, [])
        finally:
            commands.close()
    _write_path_file(Path(sysconfig.get_paths()["purelib"]), (), engine.variables or {})
    report("asking the library what it takes", "")
    spec = registry.spec(engine.kind)
    said = f"the packages of {engine.kind} {engine.version} are in this environment now, but it does not start"
    _probe(Path(sys.executable), spec, said)
    return find(engine.kind, engine.version)


def _wishes_here() -> Iterator[tuple[str, str]]:
    for one in distributions():
        who = canonical(one.metadata["Name"] or "")
        for text in one.requires or ():
            try:
                wish = Requirement(text)
            except InvalidRequirement:
                continue
            if wish.marker is None or wish.marker.evaluate({"extra": ""}):
                yield who, f"{wish.name}{wish.specifier}"

"""Builds an engine environment: venv, pip, probe, then publish."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from enginebay import __version__
from enginebay.contract import EngineSpec, Probe
from enginebay.engines import registry
from enginebay.environments import dist_requirements
from enginebay.environments import engine_probe as probing
from enginebay.environments.command_runner import CommandRunner
from enginebay.environments.environment_store import (
    STORE_FOLDER,
    Environment,
    build_environment_name,
    claim_name,
    is_published,
    list_environments,
    publish,
    remove_abandoned,
)
from enginebay.environments.install_recipe import (
    WORKER_REQUIREMENTS,
    InstallTarget,
    are_satisfied,
    fill_step,
    find_pins,
    is_pin,
    parse_target,
    select_recipe,
    uses_requirements,
)
from enginebay.environments.versions import is_same_version
from enginebay.errors import EnginebayError, EngineFailed, EngineMissing, FetchFailed
from enginebay.util.atomic_file import write_json
from enginebay.util.child_processes import interruptible
from enginebay.util.paths import engines_dir, logs_dir

# Of pip: a version does not exist for this Python, or two requirements contradict each other.
_NOT_INSTALLABLE = ("No matching distribution found", "ResolutionImpossible", "conflicting dependencies")

Report = Callable[[str, str], None]  # (current step, latest output line)


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """One install as requested."""

    requested: str
    device: str  # "cpu" or "cuda"
    recreate: bool = False
    is_package: bool = False
    python: str = sys.executable


@interruptible()
def install_engine(request: InstallRequest, report: Report) -> Environment:
    """Build the requested environment, or return the existing one. A failed build leaves nothing behind."""
    target = parse_target(request.requested, registry.load_specs(), request.is_package)
    if target.spec is not None and target.version is None:
        target = InstallTarget(target.spec, select_recipe(target.spec, request.device).version)
    name = _build_working_name(target)
    with claim_name(name, lambda: report("waiting for another install of the same engine", "")) as lock:
        remove_abandoned(name)
        if not request.recreate and (existing := _find_existing(target, request.device)):
            return existing
        return _EnvironmentBuild(request, target, name, lock, report).run()


def _build_working_name(target: InstallTarget) -> str:
    if target.spec is not None:
        return build_environment_name(target.spec.kind, target.version or "")
    slug = "".join(letter if letter.isalnum() else "-" for letter in target.package).strip("-")
    return build_environment_name("package", slug[-60:].strip("-") or "unnamed")


def _find_existing(target: InstallTarget, device: str) -> Environment | None:
    if target.spec is None or target.version is None:
        return None
    for environment in list_environments(target.spec.kind):
        if environment.has_version(target.version) and _is_same_build(target.spec, environment.device, device):
            return environment
    return None


def _is_same_build(spec: EngineSpec, built_for: str, device: str) -> bool:
    """Return whether both devices use the same recipe."""
    if built_for in ("", device) or not spec.recipes:
        return True
    try:
        return select_recipe(spec, built_for) == select_recipe(spec, device)
    except EngineMissing:
        return False


class _EnvironmentBuild:
    """One environment build, from venv to publish."""

    def __init__(self, request: InstallRequest, target: InstallTarget, name: str, lock: TextIO, report: Report) -> None:
        self.request, self.target, self.report = request, target, report
        self.folder = engines_dir() / STORE_FOLDER / f"{name}~{secrets.token_hex(3)}"
        self.python = self.folder / "bin" / "python"
        self.runner = CommandRunner(logs_dir() / f"install-{name}.log", lock, report)
        self.started = time.monotonic()

    def run(self) -> Environment:
        try:
            self.runner.open()
            self._make_venv()
            return self._install_and_publish()
        except OSError as error:  # a full disk, mostly
            raise FetchFailed(
                f"failed to install {self.request.requested}: {error.strerror or error}",
                f"check the free space and permissions of {engines_dir()}",
            ) from None
        finally:
            if not is_published(self.folder):
                shutil.rmtree(self.folder, ignore_errors=True)
            self.runner.close()

    def _make_venv(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.runner.run("creating the environment", [self.request.python, "-m", "venv", str(self.folder)])

    def _install_and_publish(self) -> Environment:
        if self.target.spec is None:
            self._pip_install("installing the package", [self.target.package])
            self._install_worker_requirements()
            kind, version, spec, probe = self._discover_engine()
        else:
            spec, version = self.target.spec, self.target.version or ""
            self._follow_recipe(spec, version)
            self._install_worker_requirements()
            self.report("probing the engine", "")
            kind, probe = (
                spec.kind,
                Probe.from_json(self._run_probe({"engine": spec.engine}, spec.env_prefixes)["probe"]),
            )
        self._write_records(kind, version, spec, probe)
        path = publish(self.folder, build_environment_name(kind, version))
        adapter = probing.fingerprint_adapter(spec)
        return Environment(kind, version, self.python, "environment", probe, spec, path, adapter, self.request.device)

    def _follow_recipe(self, spec: EngineSpec, version: str) -> None:
        recipe = select_recipe(spec, self.request.device)
        pins = find_pins(recipe) if is_same_version(version, recipe.version) else []
        for number, step in enumerate(recipe.steps, 1):
            requirements = self._list_requirements(spec, recipe.drop) if uses_requirements(step) else None
            doing, arguments = f"step {number} of {len(recipe.steps)}", fill_step(step, version, requirements)
            try:
                self._pip_install(doing, [*pins, *arguments])
            except FetchFailed as error:
                if not pins or not any(text in error.message for text in _NOT_INSTALLABLE):
                    raise
                self._pip_install(f"{doing}, with other versions than the tested ones", arguments)

    def _list_requirements(self, spec: EngineSpec, dropped: tuple[str, ...]) -> list[str]:
        script = [str(self.python), str(dist_requirements.__file__), ",".join(spec.distributions), ",".join(dropped)]
        return self.runner.read_lines(script)

    def _install_worker_requirements(self) -> None:
        """Install what the worker imports. Runs last, with constraints, so that the recipe's versions do not change."""
        frozen = self._freeze()
        if not are_satisfied(WORKER_REQUIREMENTS, frozen):
            pins = self.folder / "constraints.txt"
            pins.write_text("\n".join(line for line in frozen if is_pin(line)), encoding="utf-8")
            self._pip_install("adding gRPC for the worker", ["-c", str(pins), *WORKER_REQUIREMENTS])
            pins.unlink()
            frozen = self._freeze()
        (self.folder / "freeze.txt").write_text("\n".join(frozen) + "\n", encoding="utf-8")

    def _freeze(self) -> list[str]:
        return self.runner.read_lines([str(self.python), "-m", "pip", "freeze", "--all"])

    def _pip_install(self, doing: str, arguments: list[str]) -> None:
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        self.runner.run(doing, [str(self.python), "-m", "pip", "install", *quiet, *arguments])

    def _discover_engine(self) -> tuple[str, str, EngineSpec, Probe]:
        self.report("looking for the engine in the package", "")
        engines: list[dict[str, Any]] = self._run_probe({"discover": True})["found"]
        if len(engines) != 1:
            names = ", ".join(engine["spec"]["kind"] for engine in engines) or "none"
            raise EnginebayError(
                f"{self.target.package} must provide exactly one engine, found: {names}",
                f"declare it in pyproject.toml under [project.entry-points.{registry.GROUP!r}]",
            )
        spec = EngineSpec.from_json(engines[0]["spec"])
        if spec.kind in registry.BUILT_IN:
            raise EnginebayError(f"{self.target.package} names its engine {spec.kind}, which is a built-in engine")
        return spec.kind, engines[0]["version"], spec, Probe.from_json(engines[0]["probe"])

    def _run_probe(self, question: dict[str, Any], env_prefixes: Sequence[str] = ()) -> dict[str, Any]:
        try:
            return probing.run_probe(self.python, question, env_prefixes)
        except EngineFailed as error:
            raise EngineFailed(f"{self.request.requested} was not installed: {error.message}", error.hint) from None

    def _write_records(self, kind: str, version: str, spec: EngineSpec, probe: Probe) -> None:
        write_json(self.folder / "spec.json", spec.to_json())
        write_json(self.folder / "probe.json", probe.to_json())
        record = {
            "kind": kind,
            "version": version,
            "asked": self.request.requested,
            "device": self.request.device,
            "adapter": probing.fingerprint_adapter(spec),
            "enginebay": __version__,
            "installed_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "build_s": round(time.monotonic() - self.started, 1),
        }
        write_json(self.folder / "install.json", record)

"""Building an environment: venv, pip, probe, and only then its name."""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from enginebay import __version__
from enginebay.contract import EngineSpec, Probe
from enginebay.engines import registry
from enginebay.errors import EnginebayError, EngineFailed, EngineMissing, FetchFailed
from enginebay.fleet.children import operation
from enginebay.fleet.environments import probe as probing
from enginebay.fleet.environments import requires
from enginebay.fleet.environments.commands import Commands
from enginebay.fleet.environments.recipe import (
    WORKER_NEEDS,
    Target,
    filled,
    is_pin,
    recipe,
    satisfied,
    target,
    wants_requires,
)
from enginebay.fleet.environments.store import (
    STORE,
    Environment,
    claim,
    environments,
    is_published,
    name_of,
    publish,
    sweep,
    write_json,
)
from enginebay.home import engines_dir, logs_dir

Report = Callable[[str, str], None]  # (what is being done, the line it is at)


@dataclass(frozen=True, slots=True)
class Order:
    """One install as asked for."""

    asked: str
    device: str  # "cpu" or "cuda"
    recreate: bool = False
    is_package: bool = False
    python: str = sys.executable


@operation()
def install(order: Order, report: Report) -> Environment:
    """Build what is asked for, or give back what is there already. Leaves nothing half-made, however it ends."""
    wanted = target(order.asked, registry.specs(), order.is_package)
    if wanted.spec is not None and wanted.version is None:
        wanted = Target(wanted.spec, recipe(wanted.spec, order.device).version)
    name = _working_name(wanted)
    with claim(name, lambda: report("waiting for another install of the same engine", "")) as lock:
        sweep(name)
        if not order.recreate and (there := _already(wanted, order.device)):
            return there
        return _Build(order, wanted, name, lock, report).run()


def _working_name(wanted: Target) -> str:
    if wanted.spec is not None:
        return name_of(wanted.spec.kind, wanted.version or "")
    slug = "".join(letter if letter.isalnum() else "-" for letter in wanted.package).strip("-")
    return name_of("package", slug[-60:].strip("-") or "unnamed")


def _already(wanted: Target, device: str) -> Environment | None:
    if wanted.spec is None or wanted.version is None:
        return None
    for one in environments(wanted.spec.kind):
        if one.has_version(wanted.version) and _same_build(wanted.spec, one.device, device):
            return one
    return None


def _same_build(spec: EngineSpec, there: str, device: str) -> bool:
    """Whether what was built for one device is what would be built for the other."""
    if there in ("", device) or not spec.recipes:
        return True
    try:
        return recipe(spec, there) == recipe(spec, device)
    except EngineMissing:
        return False


class _Build:
    """One environment on its way from nothing to published."""

    def __init__(self, order: Order, wanted: Target, name: str, lock: TextIO, report: Report) -> None:
        self.order, self.wanted, self.report = order, wanted, report
        self.folder = engines_dir() / STORE / f"{name}~{secrets.token_hex(3)}"
        self.python = self.folder / "bin" / "python"
        self.commands = Commands(logs_dir() / f"install-{name}.log", lock, report)
        self.started = time.monotonic()

    def run(self) -> Environment:
        try:
            self.commands.open()
            self._make_venv()
            return self._fill_and_publish()
        except OSError as error:  # a full disk, mostly
            raise FetchFailed(
                f"{self.order.asked} could not be installed: {error.strerror or error}",
                f"check the space and the rights at {engines_dir()}",
            ) from None
        finally:
            if not is_published(self.folder):
                shutil.rmtree(self.folder, ignore_errors=True)
            self.commands.close()

    def _make_venv(self) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.commands.run("making the environment", [self.order.python, "-m", "venv", str(self.folder)])

    def _fill_and_publish(self) -> Environment:
        if self.wanted.spec is None:
            self._pip("installing the package", [self.wanted.package])
            self._add_worker_needs()
            kind, version, spec, probe = self._discover()
        else:
            spec, version = self.wanted.spec, self.wanted.version or ""
            self._follow_recipe(spec, version)
            self._add_worker_needs()
            self.report("asking the library what it takes", "")
            kind, probe = spec.kind, Probe.from_json(self._ask({"engine": spec.engine})["probe"])
        self._write_records(kind, version, spec, probe)
        path = publish(self.folder, name_of(kind, version))
        adapter = probing.fingerprint(spec)
        return Environment(kind, version, self.python, "environment", probe, spec, path, adapter, self.order.device)

    def _follow_recipe(self, spec: EngineSpec, version: str) -> None:
        chosen = recipe(spec, self.order.device)
        for number, step in enumerate(chosen.steps, 1):
            needed = self._requires(spec, chosen.drop) if wants_requires(step) else None
            self._pip(f"step {number} of {len(chosen.steps)}", filled(step, version, needed))

    def _requires(self, spec: EngineSpec, dropped: tuple[str, ...]) -> list[str]:
        script = [str(self.python), str(requires.__file__), ",".join(spec.distributions), ",".join(dropped)]
        return self.commands.read(script)

    def _add_worker_needs(self) -> None:
        """Last, and held to what is installed: nothing the recipe chose may change for our sake."""
        there = self._freeze()
        if not satisfied(WORKER_NEEDS, there):
            pins = self.folder / "constraints.txt"
            pins.write_text("\n".join(line for line in there if is_pin(line)), encoding="utf-8")
            self._pip("adding gRPC for the worker", ["-c", str(pins), *WORKER_NEEDS])
            pins.unlink()
            there = self._freeze()
        (self.folder / "freeze.txt").write_text("\n".join(there) + "\n", encoding="utf-8")

    def _freeze(self) -> list[str]:
        return self.commands.read([str(self.python), "-m", "pip", "freeze", "--all"])

    def _pip(self, doing: str, arguments: list[str]) -> None:
        quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
        self.commands.run(doing, [str(self.python), "-m", "pip", "install", *quiet, *arguments])

    def _discover(self) -> tuple[str, str, EngineSpec, Probe]:
        self.report("looking for the engine in the package", "")
        found: list[dict[str, Any]] = self._ask({"discover": True})["found"]
        if len(found) != 1:
            names = ", ".join(one["spec"]["kind"] for one in found) or "none"
            raise EnginebayError(
                f"{self.wanted.package} must bring exactly one engine, found: {names}",
                f"its pyproject.toml declares it under [project.entry-points.{registry.GROUP!r}]",
            )
        spec = EngineSpec.from_json(found[0]["spec"])
        if spec.kind in registry.BUILT_IN:
            raise EnginebayError(f"{self.wanted.package} calls its engine {spec.kind}, which is one of ours")
        return spec.kind, found[0]["version"], spec, Probe.from_json(found[0]["probe"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            return probing.ask(self.python, question)
        except EngineFailed as error:
            raise EngineFailed(f"{self.order.asked} was not installed: {error.message}", error.hint) from None

    def _write_records(self, kind: str, version: str, spec: EngineSpec, probe: Probe) -> None:
        write_json(self.folder / "spec.json", spec.to_json())
        write_json(self.folder / "probe.json", probe.to_json())
        record = {
            "kind": kind,
            "version": version,
            "asked": self.order.asked,
            "device": self.order.device,
            "adapter": probing.fingerprint(spec),
            "enginebay": __version__,
            "installed_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "build_s": round(time.monotonic() - self.started, 1),
        }
        write_json(self.folder / "install.json", record)

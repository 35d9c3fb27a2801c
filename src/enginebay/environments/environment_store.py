"""Environments on disk: installed ones, their records, and the locks of running builds."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from enginebay.contract import EngineSpec, Probe
from enginebay.environments.versions import is_same_version, version_key
from enginebay.errors import EnginebayError, UsageError
from enginebay.util.atomic_file import read_json_object
from enginebay.util.file_lock import exclusive_lock, try_lock
from enginebay.util.paths import engines_dir

STORE_FOLDER, LOCKS_FOLDER = ".store", ".locks"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python in which an engine can be hosted."""

    kind: str
    version: str
    python: Path
    source: str  # "environment": built by bay; "current": the library is installed next to bay
    probe: Probe
    spec: EngineSpec
    path: Path | None = None  # the published symlink, if built
    adapter_fingerprint: str = ""  # of the code that ran the probe
    device: str = ""  # the device it was built for, if recorded

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for programs that run in it: PATH finds the tools installed with the library."""
        if self.source == "current":
            return {}
        return {"PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def has_version(self, version: str) -> bool:
        return is_same_version(self.version, version) or is_same_version(self.probe.version, version)


@dataclass(frozen=True, slots=True)
class BrokenEnvironment:
    """An installed environment that cannot be used."""

    path: Path
    reason: str

    def is_kind(self, kind: str) -> bool:
        """Return whether the name belongs to the kind. The record may be unreadable."""
        return re.match(rf"{re.escape(kind)}-\d", self.path.name) is not None

    @property
    def requirement(self) -> str:
        """The requirement that rebuilds it: `KIND==VERSION`, or the package that provided it."""
        try:
            record = read_json_object(self.path / "install.json")
            kind, version = record["kind"], record["version"]
            package = str(record.get("asked", kind))
        except (OSError, ValueError, KeyError):
            kind, _, version = self.path.name.rpartition("-")
            package = kind
        return f"{kind}=={version}" if package.partition("==")[0].strip() == kind else package


def build_environment_name(kind: str, version: str) -> str:
    """Return the directory name of an environment. Raises `UsageError` if a part could escape the directory."""
    for part in (kind, version):
        if not _SAFE_NAME.fullmatch(part):
            raise UsageError(f"{part!r} cannot be part of an environment's name", "use letters, digits and . _ + -")
    return f"{kind}-{version}"


def list_environments(kind: str | None = None) -> list[Environment]:
    """Return the usable built environments, newest version first within a kind."""
    environments = [entry for entry in map(_read_environment, _list_published()) if isinstance(entry, Environment)]
    environments.sort(key=lambda environment: version_key(environment.version), reverse=True)
    environments.sort(key=lambda environment: environment.kind)
    return [environment for environment in environments if kind is None or environment.kind == kind]


def list_broken() -> list[BrokenEnvironment]:
    return [entry for entry in map(_read_environment, _list_published()) if isinstance(entry, BrokenEnvironment)]


def _list_published() -> list[Path]:
    base = engines_dir()
    return sorted(path for path in base.glob("[!.]*") if path.is_symlink() or path.is_dir())


def _read_environment(path: Path) -> Environment | BrokenEnvironment:
    try:
        real = path.resolve(strict=True)
        record, spec, probe = (read_json_object(real / name) for name in ("install.json", "spec.json", "probe.json"))
        python = real / "bin" / "python"
        if not python.exists():
            return BrokenEnvironment(path, "its Python is missing")
        return Environment(
            kind=record["kind"],
            version=record["version"],
            python=python,
            source="environment",
            probe=Probe.from_json(probe),
            spec=EngineSpec.from_json(spec),
            path=path,
            adapter_fingerprint=record.get("adapter", ""),
            device=record.get("device", ""),
        )
    except (OSError, RuntimeError):
        return BrokenEnvironment(path, "its files are missing")
    except (ValueError, KeyError, TypeError) as error:
        return BrokenEnvironment(path, f"its record cannot be read ({error})")


def publish(built: Path, name: str) -> Path:
    """Point the name at a finished environment in one step, then remove the previous one."""
    final = engines_dir() / name
    previous = final.resolve() if final.is_symlink() else None
    temporary = engines_dir() / f".{name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path(STORE_FOLDER) / built.name)
    if final.is_dir() and not final.is_symlink():
        shutil.rmtree(final)
    temporary.replace(final)
    if previous is not None and previous != built.resolve():
        shutil.rmtree(previous, ignore_errors=True)
    return final


def remove_environment(environment: Path) -> None:
    """Remove an environment: first the name, so that no one picks a half-removed one."""
    with claim_name(environment.name):
        real = environment.resolve()
        if environment.is_symlink():
            environment.unlink()
        shutil.rmtree(real, ignore_errors=True)


@contextmanager
def claim_name(name: str, waiting: Callable[[], None] | None = None) -> Iterator[TextIO]:
    """Hold the build lock of `name`. The kernel releases it however the holder dies.

    The builder's commands inherit the lock: one that outlives the builder still counts as building.
    """
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(exclusive_lock(engines_dir() / LOCKS_FOLDER / f"{name}.lock", waiting))
        except OSError as error:
            raise _build_unwritable_error(error) from None
        yield lock


def _build_unwritable_error(error: OSError) -> EnginebayError:
    return EnginebayError(
        f"{engines_dir()} cannot be written: {error.strerror}", "set ENGINEBAY_HOME to a writable directory"
    )


def remove_abandoned(mine: str) -> None:
    """Remove the leftovers of dead builders. `mine` is the name whose lock the caller holds."""
    for folder in (engines_dir() / STORE_FOLDER).glob("*~*"):
        name = folder.name.rpartition("~")[0]
        if name == mine:
            _drop_unpublished(folder)
            continue
        with _try_claim(name) as free:
            if free:
                _drop_unpublished(folder)


def is_published(built: Path) -> bool:
    return built.resolve() in {path.resolve() for path in _list_published()}


def _drop_unpublished(folder: Path) -> None:
    """Remove a build that was never published. Needs the lock of its name: builders publish before they release it."""
    if not is_published(folder):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _try_claim(name: str) -> Iterator[bool]:
    with (engines_dir() / LOCKS_FOLDER / f"{name}.lock").open("a") as lock:
        yield try_lock(lock)

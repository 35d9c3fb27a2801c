"""What lies on disk: installed environments, their records and the locks of those being built."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from enginebay.contract import EngineSpec, Probe
from enginebay.environments.versions import is_same_version, version_key
from enginebay.errors import EnginebayError, UsageError
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
    source: str  # "environment": built by us; "current": the library is installed next to bay
    probe: Probe
    spec: EngineSpec
    path: Path | None = None  # the published name, for built ones
    adapter_fingerprint: str = ""  # fingerprint of the code that made the probe
    device: str = ""  # what it was built for, where that was written down

    @property
    def variables(self) -> dict[str, str]:
        """What a program started in it needs besides its Python: the tools that were installed with the library."""
        if self.source == "current":
            return {}
        return {"PATH": f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}

    def has_version(self, version: str) -> bool:
        return is_same_version(self.version, version) or is_same_version(self.probe.version, version)


@dataclass(frozen=True, slots=True)
class BrokenEnvironment:
    """An environment that is there and cannot be used."""

    path: Path
    reason: str

    def is_kind(self, kind: str) -> bool:
        """By its name, since its record cannot be read."""
        return re.match(rf"{re.escape(kind)}-\d", self.path.name) is not None

    @property
    def requirement(self) -> str:
        """What to install to have it again: `KIND==VERSION`, or the package that brought it."""
        try:
            record = read_json(self.path / "install.json")
            kind, version = record["kind"], record["version"]
            package = str(record.get("asked", kind))
        except (OSError, ValueError, KeyError):
            kind, _, version = self.path.name.rpartition("-")
            package = kind
        return f"{kind}=={version}" if package.partition("==")[0].strip() == kind else package


def build_environment_name(kind: str, version: str) -> str:
    """The directory name of an environment. Raises when a part could leave the directory."""
    for part in (kind, version):
        if not _SAFE_NAME.fullmatch(part):
            raise UsageError(f"{part!r} cannot be part of an environment's name", "use letters, digits and . _ + -")
    return f"{kind}-{version}"


def list_environments(kind: str | None = None) -> list[Environment]:
    """Usable built environments, newest version first within a kind."""
    found = [one for one in map(_read_environment, _list_published()) if isinstance(one, Environment)]
    found.sort(key=lambda one: version_key(one.version), reverse=True)
    found.sort(key=lambda one: one.kind)
    return [one for one in found if kind is None or one.kind == kind]


def list_broken() -> list[BrokenEnvironment]:
    return [one for one in map(_read_environment, _list_published()) if isinstance(one, BrokenEnvironment)]


def _list_published() -> list[Path]:
    base = engines_dir()
    return sorted(path for path in base.glob("[!.]*") if path.is_symlink() or path.is_dir())


def _read_environment(path: Path) -> Environment | BrokenEnvironment:
    try:
        real = path.resolve(strict=True)
        record, spec, probe = (read_json(real / name) for name in ("install.json", "spec.json", "probe.json"))
        python = real / "bin" / "python"
        if not python.exists():
            return BrokenEnvironment(path, "its Python is gone")
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
        return BrokenEnvironment(path, "its files are gone")
    except (ValueError, KeyError, TypeError) as error:
        return BrokenEnvironment(path, f"its record cannot be read ({error})")


def read_json(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError(f"{path.name} holds no object")
    return data


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")
    beside.replace(path)


def publish(built: Path, name: str) -> Path:
    """Give a finished environment its name in one step, and remove the one that had it."""
    final = engines_dir() / name
    before = final.resolve() if final.is_symlink() else None
    beside = engines_dir() / f".{name}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(Path(STORE_FOLDER) / built.name)
    if final.is_dir() and not final.is_symlink():
        shutil.rmtree(final)
    beside.replace(final)
    if before is not None and before != built.resolve():
        shutil.rmtree(before, ignore_errors=True)
    return final


def remove_environment(environment: Path) -> None:
    """The name goes first, so that nobody can pick a half-removed environment."""
    with claim_name(environment.name):
        real = environment.resolve()
        if environment.is_symlink():
            environment.unlink()
        shutil.rmtree(real, ignore_errors=True)


@contextmanager
def claim_name(name: str, waiting: Callable[[], None] | None = None) -> Iterator[TextIO]:
    """Be the only builder of `name`. The system frees the lock however the holder dies.

    The lock is given to the programs the builder runs: one that outlives it still counts as building.
    """
    with ExitStack() as held:
        try:
            lock = held.enter_context(exclusive_lock(engines_dir() / LOCKS_FOLDER / f"{name}.lock", waiting))
        except OSError as error:
            raise _build_unwritable_error(error) from None
        yield lock


def _build_unwritable_error(error: OSError) -> EnginebayError:
    return EnginebayError(
        f"{engines_dir()} cannot be written: {error.strerror}", "set ENGINEBAY_HOME to a directory of yours"
    )


def remove_abandoned(mine: str) -> None:
    """Remove what dead builders left. `mine` is the name the caller holds."""
    for left in (engines_dir() / STORE_FOLDER).glob("*~*"):
        name = left.name.rpartition("~")[0]
        if name == mine:
            _drop_unpublished(left)
            continue
        with _try_claim(name) as free:
            if free:
                _drop_unpublished(left)


def is_published(built: Path) -> bool:
    return built.resolve() in {path.resolve() for path in _list_published()}


def _drop_unpublished(left: Path) -> None:
    """Only under the lock of its name: a builder publishes before it lets go."""
    if not is_published(left):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _try_claim(name: str) -> Iterator[bool]:
    with (engines_dir() / LOCKS_FOLDER / f"{name}.lock").open("a") as lock:
        yield try_lock(lock)

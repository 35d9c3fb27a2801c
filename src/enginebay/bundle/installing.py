"""Installing a bundle: everything is unpacked and checked first, then built, and only then seen. No network."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from enginebay.bundle import standalone
from enginebay.bundle.checking import as_our_errors, fingerprint, not_usable, read
from enginebay.bundle.environment import Order, install_current, install_own
from enginebay.bundle.host_python import HostPython, ask, base_python, check_target
from enginebay.bundle.manifest import Engine, Manifest, Model, Package
from enginebay.bundle.models import is_here, locked, put
from enginebay.bundle.plan import Plan, plan, unmet
from enginebay.bundle.standalone import Parts
from enginebay.engines import registry
from enginebay.errors import EnginebayError
from enginebay.fleet.children import operation
from enginebay.fleet.environments import Environment, environments
from enginebay.fleet.environments import probe as probing
from enginebay.fleet.environments.build import Report
from enginebay.fleet.environments.versions import same_version
from enginebay.fleet.lock import exclusive
from enginebay.fleet.models import Store
from enginebay.fleet.models.fetched import check_room, disk_errors
from enginebay.fleet.models.progress import Advance, Say, tracking
from enginebay.home import home

_UNPACKED = 4  # times their size is what wheels take once installed, at most


@dataclass(frozen=True, slots=True)
class Wish:
    """An install as asked for."""

    folder: Path
    current: bool = False  # into the environment that runs bay
    python: str | None = None
    recreate: bool = False
    with_models: bool = True


@dataclass(slots=True)
class Outcome:
    engines: list[Environment] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)  # what was installed before


@operation()
def install(wish: Wish, report: Report, say: Say) -> Outcome:
    """Raises `EnginebayError` in one line; what it leaves undone, the next call does."""
    manifest = read(wish.folder)
    python = ask(_python_for(wish, manifest))
    check_target(manifest, python)
    if missing := standalone.absent(wish.folder, manifest.to_json()):
        raise not_usable(missing)
    outcome = Outcome()
    scratch = home() / ".bundle"
    with (
        disk_errors("the bundle", home()),
        exclusive(home() / ".bundle.lock", lambda: say("another install is at work")),
    ):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            _install(wish, manifest, python, scratch, outcome, report, say)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def _python_for(wish: Wish, manifest: Manifest) -> str:
    if wish.current:
        return sys.executable
    if wish.python is not None:
        return wish.python
    return base_python() if any(one.sees_host for one in manifest.engines) else sys.executable


def _install(
    wish: Wish, manifest: Manifest, python: HostPython, scratch: Path, outcome: Outcome, report: Report, say: Say
) -> None:
    engines = [one for one in manifest.engines if wish.recreate or not _has(one, wish.current)]
    outcome.there += [f"{one.kind} {one.version}" for one in manifest.engines if one not in engines]
    plans = [_plan(wish, manifest, one, python, say) for one in engines]
    packages = {one.file.path: one for chosen in plans for one in chosen.install}
    store, parts = Store(), Parts(wish.folder, manifest.to_json())
    with ExitStack() as held:
        for model in manifest.models if wish.with_models else ():
            held.enter_context(locked(model, store, say))
        models = [one for one in manifest.models if wish.with_models and not is_here(one, store)]
        wheels = _unpack(parts, packages, models, store, scratch, say)
    outcome.models += [one.name for one in models]
    outcome.there += [one.name for one in manifest.models if wish.with_models and one not in models]
    for engine, chosen in zip(engines, plans, strict=True):
        mine = tuple(wheels[one.file.path] for one in chosen.install)
        order = Order(engine, chosen, mine, python, fingerprint(manifest))
        outcome.engines.append((install_current if wish.current else install_own)(order, report))


def _unpack(
    parts: Parts, packages: Mapping[str, Package], models: Sequence[Model], store: Store, scratch: Path, say: Say
) -> dict[str, Path]:
    """Wheels into `scratch`, models to where they stay; all of it is checked before any of it is run."""
    of_wheels = sum(one.file.size for one in packages.values())
    of_models = sum(file.size for model in models for file in model.files)
    check_room("the bundle", _existing(home()), of_wheels * _UNPACKED + of_models)
    with tracking("unpacking", of_wheels + of_models, say) as advance:
        wheels = {path: _wheel(parts, one, scratch, advance) for path, one in packages.items()}
        for model in models:
            put(model, parts, store, advance)
    return wheels


def _has(engine: Engine, current: bool) -> bool:
    """Whether this version is installed where it is wanted, wherever it came from."""
    if current:
        spec = registry.spec(engine.kind)
        return probing.in_current(spec) and same_version(probing.current_version(spec), engine.version)
    return any(one.has_version(engine.version) for one in environments(engine.kind))


def _plan(wish: Wish, manifest: Manifest, engine: Engine, python: HostPython, say: Say) -> Plan:
    gone, other = unmet(engine, python.packages)
    if gone:
        raise EnginebayError(
            f"{python.path} lacks what the bundle counts on: {', '.join(gone)}",
            "name the Python that has it: --python PATH; or make a bundle without --provided",
        )
    for line in other:  # whether it matters, the engine's own import says
        say(f"{engine.kind}: {line}")
    sees = python.packages if wish.current or engine.sees_host else {}
    return plan(engine, manifest.packages_at(engine.packages), sees)


def _wheel(parts: Parts, package: Package, scratch: Path, advance: Advance) -> Path:
    to = scratch / PurePosixPath(package.file.path).name
    with as_our_errors():
        standalone.unpack(parts, asdict(package.file), to, advance)
    return to


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)

"""Installing a bundle: everything is unpacked and checked first, then built, and only then seen. No network."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from enginebay.bundle import standalone
from enginebay.bundle.bundle_manifest import BundledEngine, BundledModel, BundledPackage, BundleManifest
from enginebay.bundle.installation.host_python import HostPython, check_target, find_base_python, inspect_python
from enginebay.bundle.installation.install_engine import (
    EngineInstall,
    install_in_current_environment,
    install_in_own_environment,
)
from enginebay.bundle.installation.install_models import install_model, is_stored, lock_model
from enginebay.bundle.installation.install_plan import EngineInstallPlan, find_unmet, plan_engine_install
from enginebay.bundle.standalone import SplitArchive
from enginebay.bundle.verification import (
    compute_fingerprint,
    incomplete_bundle_error,
    read_bundle_manifest,
    translate_bundle_errors,
)
from enginebay.engines import registry
from enginebay.environments import Environment, list_environments
from enginebay.environments import engine_probe as probing
from enginebay.environments.environment_build import Report
from enginebay.environments.versions import is_same_version
from enginebay.errors import EnginebayError
from enginebay.models import ModelStore
from enginebay.models.fetch_result import check_disk_space, translate_disk_errors
from enginebay.util.child_processes import interruptible
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import home_dir
from enginebay.util.progress import Advance, Say, track_progress

_UNPACKED_RATIO = 4  # times their size is what wheels take once installed, at most


@dataclass(frozen=True, slots=True)
class BundleInstallOptions:
    """An install as asked for."""

    folder: Path
    current: bool = False  # into the environment that runs bay
    python: str | None = None
    recreate: bool = False
    with_models: bool = True


@dataclass(slots=True)
class BundleInstallResult:
    engines: list[Environment] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    already_installed: list[str] = field(default_factory=list)  # what was installed before


@interruptible()
def install_bundle(wish: BundleInstallOptions, report: Report, say: Say) -> BundleInstallResult:
    """Raises `EnginebayError` in one line; what it leaves undone, the next call does."""
    manifest = read_bundle_manifest(wish.folder)
    python = inspect_python(_choose_python(wish, manifest))
    check_target(manifest, python)
    if missing := standalone.find_missing_parts(wish.folder, manifest.to_json()):
        raise incomplete_bundle_error(missing)
    outcome = BundleInstallResult()
    scratch = home_dir() / ".bundle"
    with (
        translate_disk_errors("the bundle", home_dir()),
        exclusive_lock(home_dir() / ".bundle.lock", lambda: say("another install is at work")),
    ):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            _install_contents(wish, manifest, python, scratch, outcome, report, say)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def _choose_python(wish: BundleInstallOptions, manifest: BundleManifest) -> str:
    if wish.current:
        return sys.executable
    if wish.python is not None:
        return wish.python
    return find_base_python() if any(one.sees_host for one in manifest.engines) else sys.executable


def _install_contents(
    wish: BundleInstallOptions,
    manifest: BundleManifest,
    python: HostPython,
    scratch: Path,
    outcome: BundleInstallResult,
    report: Report,
    say: Say,
) -> None:
    engines = [one for one in manifest.engines if wish.recreate or not _is_installed(one, wish.current)]
    outcome.already_installed += [f"{one.kind} {one.version}" for one in manifest.engines if one not in engines]
    plans = [_plan_engine(wish, manifest, one, python, say) for one in engines]
    packages = {one.file.path: one for chosen in plans for one in chosen.install}
    store, parts = ModelStore(), SplitArchive(wish.folder, manifest.to_json())
    with ExitStack() as held:
        for model in manifest.models if wish.with_models else ():
            held.enter_context(lock_model(model, store, say))
        models = [one for one in manifest.models if wish.with_models and not is_stored(one, store)]
        wheels = _unpack_contents(parts, packages, models, store, scratch, say)
    outcome.models += [one.name for one in models]
    outcome.already_installed += [one.name for one in manifest.models if wish.with_models and one not in models]
    for engine, chosen in zip(engines, plans, strict=True):
        mine = tuple(wheels[one.file.path] for one in chosen.install)
        order = EngineInstall(engine, chosen, mine, python, compute_fingerprint(manifest))
        outcome.engines.append(
            (install_in_current_environment if wish.current else install_in_own_environment)(order, report)
        )


def _unpack_contents(
    parts: SplitArchive,
    packages: Mapping[str, BundledPackage],
    models: Sequence[BundledModel],
    store: ModelStore,
    scratch: Path,
    say: Say,
) -> dict[str, Path]:
    """Wheels into `scratch`, models to where they stay; all of it is checked before any of it is run."""
    of_wheels = sum(one.file.size for one in packages.values())
    of_models = sum(file.size for model in models for file in model.files)
    check_disk_space("the bundle", _find_existing_parent(home_dir()), of_wheels * _UNPACKED_RATIO + of_models)
    with track_progress("unpacking", of_wheels + of_models, say) as advance:
        wheels = {path: _unpack_wheel(parts, one, scratch, advance) for path, one in packages.items()}
        for model in models:
            install_model(model, parts, store, advance)
    return wheels


def _is_installed(engine: BundledEngine, current: bool) -> bool:
    """Whether this version is installed where it is wanted, wherever it came from."""
    if current:
        spec = registry.get_spec(engine.kind)
        return probing.is_in_current_environment(spec) and is_same_version(
            probing.read_current_version(spec), engine.version
        )
    return any(one.has_version(engine.version) for one in list_environments(engine.kind))


def _plan_engine(
    wish: BundleInstallOptions, manifest: BundleManifest, engine: BundledEngine, python: HostPython, say: Say
) -> EngineInstallPlan:
    gone, other = find_unmet(engine, python.packages)
    if gone:
        raise EnginebayError(
            f"{python.path} lacks what the bundle counts on: {', '.join(gone)}",
            "name the Python that has it: --python PATH; or make a bundle without --provided",
        )
    for line in other:  # whether it matters, the engine's own import says
        say(f"{engine.kind}: {line}")
    sees = python.packages if wish.current or engine.sees_host else {}
    return plan_engine_install(engine, manifest.get_packages(engine.packages), sees)


def _unpack_wheel(parts: SplitArchive, package: BundledPackage, scratch: Path, advance: Advance) -> Path:
    to = scratch / PurePosixPath(package.file.path).name
    with translate_bundle_errors():
        standalone.unpack(parts, asdict(package.file), to, advance)
    return to


def _find_existing_parent(path: Path) -> Path:
    return path if path.exists() else _find_existing_parent(path.parent)

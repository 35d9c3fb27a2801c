"""Installs a bundle without a network: unpacks and verifies everything, builds, then publishes."""

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

_UNPACKED_RATIO = 4  # upper bound of installed size to wheel size


@dataclass(frozen=True, slots=True)
class BundleInstallOptions:
    """A bundle install as requested."""

    folder: Path
    current: bool = False  # into the environment that runs bay
    python: str | None = None
    recreate: bool = False
    with_models: bool = True


@dataclass(slots=True)
class BundleInstallResult:
    engines: list[Environment] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    already_installed: list[str] = field(default_factory=list)


@interruptible()
def install_bundle(options: BundleInstallOptions, report: Report, say: Say) -> BundleInstallResult:
    """Install the bundle. Raises `EnginebayError`; a second call continues after a failure."""
    manifest = read_bundle_manifest(options.folder)
    python = inspect_python(_choose_python(options, manifest))
    check_target(manifest, python)
    if missing := standalone.find_missing_parts(options.folder, manifest.to_json()):
        raise incomplete_bundle_error(missing)
    result = BundleInstallResult()
    scratch = home_dir() / ".bundle"
    with (
        translate_disk_errors("the bundle", home_dir()),
        exclusive_lock(home_dir() / ".bundle.lock", lambda: say("another install is running; waiting for it")),
    ):
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            _install_contents(options, manifest, python, scratch, result, report, say)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return result


def _choose_python(options: BundleInstallOptions, manifest: BundleManifest) -> str:
    if options.current:
        return sys.executable
    if options.python is not None:
        return options.python
    return find_base_python() if any(engine.sees_host for engine in manifest.engines) else sys.executable


def _install_contents(
    options: BundleInstallOptions,
    manifest: BundleManifest,
    python: HostPython,
    scratch: Path,
    result: BundleInstallResult,
    report: Report,
    say: Say,
) -> None:
    engines = [engine for engine in manifest.engines if options.recreate or not _is_installed(engine, options.current)]
    result.already_installed += [
        f"{engine.kind} {engine.version}" for engine in manifest.engines if engine not in engines
    ]
    plans = [_plan_engine(options, manifest, engine, python, say) for engine in engines]
    packages = {package.file.path: package for plan in plans for package in plan.install}
    store, parts = ModelStore(), SplitArchive(options.folder, manifest.to_json())
    bundled_models = manifest.models if options.with_models else ()
    with ExitStack() as locks:
        for model in bundled_models:
            locks.enter_context(lock_model(model, store, say))
        models = [model for model in bundled_models if not is_stored(model, store)]
        wheels = _unpack_contents(parts, packages, models, store, scratch, say)
    result.models += [model.name for model in models]
    result.already_installed += [model.name for model in bundled_models if model not in models]
    install_engine = install_in_current_environment if options.current else install_in_own_environment
    for engine, plan in zip(engines, plans, strict=True):
        paths = tuple(wheels[package.file.path] for package in plan.install)
        install = EngineInstall(engine, plan, paths, python, compute_fingerprint(manifest))
        result.engines.append(install_engine(install, report))


def _unpack_contents(
    parts: SplitArchive,
    packages: Mapping[str, BundledPackage],
    models: Sequence[BundledModel],
    store: ModelStore,
    scratch: Path,
    say: Say,
) -> dict[str, Path]:
    """Unpack wheels into `scratch` and models into the store. Verifies everything before anything runs."""
    wheel_bytes = sum(package.file.size for package in packages.values())
    model_bytes = sum(file.size for model in models for file in model.files)
    check_disk_space("the bundle", _find_existing_parent(home_dir()), wheel_bytes * _UNPACKED_RATIO + model_bytes)
    with track_progress("unpacking", wheel_bytes + model_bytes, say) as advance:
        wheels = {path: _unpack_wheel(parts, package, scratch, advance) for path, package in packages.items()}
        for model in models:
            install_model(model, parts, store, advance)
    return wheels


def _is_installed(engine: BundledEngine, current: bool) -> bool:
    """Return whether this version is already installed in the requested environment, from any origin."""
    if current:
        spec = registry.get_spec(engine.kind)
        return probing.is_in_current_environment(spec) and is_same_version(
            probing.read_current_version(spec), engine.version
        )
    return any(environment.has_version(engine.version) for environment in list_environments(engine.kind))


def _plan_engine(
    options: BundleInstallOptions, manifest: BundleManifest, engine: BundledEngine, python: HostPython, say: Say
) -> EngineInstallPlan:
    missing, mismatched = find_unmet(engine, python.packages)
    if missing:
        raise EnginebayError(
            f"{python.path} lacks packages that the bundle expects: {', '.join(missing)}",
            "choose the Python that has them with --python PATH, or create the bundle without --provided",
        )
    for line in mismatched:  # only a warning: the probe decides whether it matters
        say(f"{engine.kind}: {line}")
    installed = python.packages if options.current or engine.sees_host else {}
    return plan_engine_install(engine, manifest.get_packages(engine.packages), installed)


def _unpack_wheel(parts: SplitArchive, package: BundledPackage, scratch: Path, advance: Advance) -> Path:
    to = scratch / PurePosixPath(package.file.path).name
    with translate_bundle_errors():
        standalone.unpack(parts, asdict(package.file), to, advance)
    return to


def _find_existing_parent(path: Path) -> Path:
    return path if path.exists() else _find_existing_parent(path.parent)

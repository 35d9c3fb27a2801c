"""Creates a bundle: models from the store and wheels from the index into one archive, then the manifest."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from enginebay import __version__
from enginebay.bundle import standalone
from enginebay.bundle.bundle_manifest import (
    ArchivePart,
    BundledBay,
    BundledEngine,
    BundledModel,
    BundledPackage,
    BundleManifest,
    TrimmedFiles,
)
from enginebay.bundle.creation import wheels
from enginebay.bundle.creation.archive import ARCHIVE_NAME, BundleArchive, check_part_count
from enginebay.bundle.creation.download_wheels import DependencyEdge, DownloadedWheels, download_wheels
from enginebay.bundle.creation.engine_requirements import (
    EngineRequirements,
    collect_host_requirements,
    parse_requirement_name,
)
from enginebay.bundle.creation.target_platform import TargetPlatform, find_required_glibc
from enginebay.bundle.creation.trimming import select_trimmed_files
from enginebay.bundle.creation.wheels import build_own_wheel
from enginebay.bundle.standalone import MANIFEST_FILE
from enginebay.contract import TrimProfile
from enginebay.environments.command_runner import CommandRunner
from enginebay.environments.environment_build import Report
from enginebay.errors import ModelInvalid, UsageError
from enginebay.models import ModelStore, StoredModel
from enginebay.models.fetch_result import translate_disk_errors
from enginebay.models.model_manifest import compute_sha256
from enginebay.util.atomic_file import write_json
from enginebay.util.child_processes import interruptible
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import logs_dir
from enginebay.util.progress import Advance, Say, track_progress

BOOTSTRAP = "install.py"


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """A bundle as requested."""

    out: Path
    target: TargetPlatform
    engines: tuple[EngineRequirements, ...] = ()
    models: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    trim: TrimProfile | None = None
    split: int | None = None

    def trim_for(self, engine: EngineRequirements) -> TrimProfile | None:
        return self.trim if self.trim is not None and self.trim.engine == engine.spec.kind else None


@dataclass(frozen=True, slots=True)
class _WheelSet:
    """The wheels of Enginebay or of one engine, ready for the archive."""

    paths: tuple[Path, ...]
    edges: tuple[DependencyEdge, ...]
    trimmed: dict[str, TrimmedFiles]  # by wheel file name


def check_output_folder(out: Path, force: bool) -> None:
    """Raise `UsageError` if the folder holds a bundle. Called before anything is downloaded."""
    if (out / MANIFEST_FILE).exists() and not force:
        raise UsageError(f"{out} already holds a bundle", "choose another folder, or overwrite it with --force")


@interruptible()
def create_bundle(spec: BundleSpec, report: Report, say: Say) -> BundleManifest:
    """Create the bundle in `spec.out`. Removes an older bundle there only once the new one's files are downloaded."""
    with translate_disk_errors("the bundle", spec.out):
        spec.out.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(
            spec.out / ".lock", lambda: say("another process is creating a bundle there; waiting for it")
        ) as lock:
            commands = CommandRunner(logs_dir() / "bundle.log", lock, report)
            commands.open()
            scratch = spec.out / ".partial"
            try:
                return _collect_and_pack(spec, commands, scratch, report, say)
            finally:
                commands.close()
                shutil.rmtree(scratch, ignore_errors=True)
                (spec.out / ".lock").unlink(missing_ok=True)


def _collect_and_pack(
    spec: BundleSpec, commands: CommandRunner, scratch: Path, report: Report, say: Say
) -> BundleManifest:
    store = ModelStore()
    models = [store.get(name) or store.pull(name, say=say) for name in spec.models]
    bay = _collect_bay_wheels(spec, commands, scratch)
    engines = [_collect_engine_wheels(spec, engine, commands, scratch, say) for engine in spec.engines]
    check_part_count(_iter_archive_files((bay, *engines), models, store), spec.split)
    for stale in (spec.out / MANIFEST_FILE, *spec.out.glob(f"{ARCHIVE_NAME}*")):
        stale.unlink(missing_ok=True)
    report("packing", "")
    return _pack(spec, bay, engines, models, store, say)


def _collect_bay_wheels(spec: BundleSpec, commands: CommandRunner, scratch: Path) -> _WheelSet:
    wheel = build_own_wheel(scratch / "own")
    extras = f"[{','.join(spec.extras)}]" if spec.extras else ""
    downloaded = download_wheels(
        "bay and its dependencies", [f"enginebay{extras} @ {wheel.as_uri()}"], scratch / "bay", spec.target, commands
    )
    return _WheelSet(downloaded.wheels, downloaded.edges, {})


def _collect_engine_wheels(
    spec: BundleSpec, engine: EngineRequirements, commands: CommandRunner, scratch: Path, say: Say
) -> _WheelSet:
    provided = {parse_requirement_name(text) for text in spec.provided}
    requirements = [text for text in engine.requirements if parse_requirement_name(text) not in provided]
    trim = spec.trim_for(engine)
    left_out = [*provided, *(trim.packages if trim else ())]
    kind = engine.spec.kind
    downloaded = download_wheels(kind, requirements, scratch / kind, spec.target, commands, left_out, engine.drop)
    return _trim_wheels(trim, spec.target, downloaded, scratch / f"{kind}-trimmed", say)


def _trim_wheels(
    trim: TrimProfile | None, target: TargetPlatform, downloaded: DownloadedWheels, into: Path, say: Say
) -> _WheelSet:
    if trim is None:
        return _WheelSet(downloaded.wheels, downloaded.edges, {})
    into.mkdir(parents=True, exist_ok=True)
    paths, trimmed = [], {}
    for wheel in downloaded.wheels:
        removed: dict[str, str] = {}
        if wheels.read_name_and_version(wheel)[0] == trim.distribution:
            sizes = wheels.list_file_sizes(wheel)
            removed = select_trimmed_files(trim, sizes, target.python)
        if removed:
            size = sum(sizes[path] for path in removed)
            record = TrimmedFiles(compute_sha256(wheel), removed, size)
            with track_progress(f"trimming {wheel.name}", sum(sizes.values()) - size, say) as advance:
                wheel = wheels.copy_without(wheel, removed, trim.name, into, advance)
            trimmed[wheel.name] = record
        paths.append(wheel)
    return _WheelSet(tuple(paths), downloaded.edges, trimmed)


def _iter_archive_files(
    sets: Iterable[_WheelSet], models: Iterable[StoredModel], store: ModelStore
) -> Iterator[tuple[str, Path]]:
    """Yield the archive path and the file of each entry."""
    for path in _dedupe_wheels(sets).values():
        yield _build_wheel_path(path), path
    for model in models:
        for record in store.read_manifest(model.name).files:
            yield _build_model_path(model, record.path), model.folder / record.path


def _dedupe_wheels(sets: Iterable[_WheelSet]) -> dict[str, Path]:
    """Return each wheel once, by file name."""
    return {path.name: path for wheel_set in sets for path in wheel_set.paths}


def _build_wheel_path(wheel: Path) -> str:
    return f"wheels/{wheel.name}"


def _build_model_path(model: StoredModel, path: str) -> str:
    return f"models/{model.name}/{path}"


def _pack(
    spec: BundleSpec, bay: _WheelSet, engines: list[_WheelSet], models: list[StoredModel], store: ModelStore, say: Say
) -> BundleManifest:
    paths = _dedupe_wheels((bay, *engines))
    total = sum(path.stat().st_size for path in paths.values()) + sum(model.size_bytes for model in models)
    archive = BundleArchive(spec.out, spec.split)
    with track_progress("packing", total, say) as advance:
        packages = tuple(_pack_wheel(archive, path, (bay, *engines), advance) for path in paths.values())
        packed = tuple(_pack_model(archive, model, store, advance) for model in models)
        parts = archive.close()
    bootstrap = spec.out / BOOTSTRAP
    bootstrap.write_bytes(Path(standalone.__file__).read_bytes())
    bootstrap.chmod(0o755)
    manifest = BundleManifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target={**asdict(spec.target), "glibc": find_required_glibc(paths)},
        bay=BundledBay(__version__, spec.extras, _list_archive_paths(bay)),
        engines=tuple(
            _describe_engine(spec, engine, wheel_set, packages)
            for engine, wheel_set in zip(spec.engines, engines, strict=True)
        ),
        packages=packages,
        models=packed,
        parts=parts,
        bootstrap=ArchivePart(BOOTSTRAP, bootstrap.stat().st_size, hashlib.sha256(bootstrap.read_bytes()).hexdigest()),
        trim=spec.trim.name if spec.trim else "",
    )
    write_json(spec.out / MANIFEST_FILE, manifest.to_json())
    return manifest


def _pack_wheel(archive: BundleArchive, path: Path, sets: Iterable[_WheelSet], advance: Advance) -> BundledPackage:
    name, version = wheels.read_name_and_version(path)
    edges = [edge for wheel_set in sets for edge in wheel_set.edges if (edge.name, edge.version) == (name, version)]
    trimmed = {file: record for wheel_set in sets for file, record in wheel_set.trimmed.items()}
    stored = archive.add(_build_wheel_path(path), path, advance)
    return BundledPackage(
        name, version, stored, tuple(sorted({edge.requires for edge in edges})), trimmed.get(path.name)
    )


def _pack_model(archive: BundleArchive, model: StoredModel, store: ModelStore, advance: Advance) -> BundledModel:
    manifest = store.read_manifest(model.name)
    files = []
    for record in manifest.files:
        stored = archive.add(_build_model_path(model, record.path), model.folder / record.path, advance)
        if stored.sha256 != record.sha256:
            raise ModelInvalid(
                f"{model.name}: {record.path} has changed since it was stored", f"run: bay models verify {model.name}"
            )
        files.append(stored)
    return BundledModel(asdict(manifest), tuple(files))


def _describe_engine(
    spec: BundleSpec, engine: EngineRequirements, wheel_set: _WheelSet, packages: tuple[BundledPackage, ...]
) -> BundledEngine:
    paths = _list_archive_paths(wheel_set)
    bundled = {(package.name, package.version) for package in packages if package.file.path in paths}
    unmet = [edge for edge in wheel_set.edges if not edge.followed and (edge.name, edge.version) in bundled]
    absent = {parse_requirement_name(edge.requires) for edge in unmet}
    needed = absent | {parse_requirement_name(text) for text in engine.requirements}
    provided = [text for text in spec.provided if parse_requirement_name(text) in needed]
    reasons = dict.fromkeys(
        (name for names in engine.drop.values() for name in names), "dropped by the engine's recipe"
    )
    trim = spec.trim_for(engine)
    reasons |= trim.packages if trim else {}
    unmet_requirements = [(edge.name, edge.requires) for edge in unmet]
    return BundledEngine(
        kind=engine.spec.kind,
        version=engine.version,
        device=engine.device,
        distributions=tuple(name for name, _ in sorted(bundled) if name in engine.spec.distributions),
        packages=paths,
        needs=engine.requirements,
        provided=tuple(sorted({parse_requirement_name(text) for text in provided})),
        expects=collect_host_requirements(
            engine, [text for text in provided if parse_requirement_name(text) not in reasons], unmet_requirements
        ),
        left_out={name: reasons[name] for name in sorted(absent & set(reasons))},
        variables=dict(trim.variables) if trim else {},
    )


def _list_archive_paths(wheel_set: _WheelSet) -> tuple[str, ...]:
    return tuple(map(_build_wheel_path, wheel_set.paths))

"""Making a bundle: models from the store, wheels from the index, all into one archive, the manifest last."""

from __future__ import annotations

import hashlib
import json
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
from enginebay.bundle.creation.trimming import TrimProfile, select_trimmed_files
from enginebay.bundle.creation.wheels import build_own_wheel
from enginebay.bundle.standalone import MANIFEST_FILE
from enginebay.environments.command_runner import CommandRunner
from enginebay.environments.environment_build import Report
from enginebay.errors import ModelInvalid, UsageError
from enginebay.models import ModelStore, StoredModel
from enginebay.models.fetch_result import translate_disk_errors
from enginebay.models.model_manifest import compute_sha256
from enginebay.util.child_processes import interruptible
from enginebay.util.file_lock import exclusive_lock
from enginebay.util.paths import logs_dir
from enginebay.util.progress import Advance, Say, track_progress

BOOTSTRAP = "install.py"


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """A bundle as asked for."""

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
    """The wheels of Enginebay or of one engine, as they go into the archive."""

    paths: tuple[Path, ...]
    edges: tuple[DependencyEdge, ...]
    cuts: dict[str, TrimmedFiles]  # by the wheel's file name


def check_output_folder(out: Path, force: bool) -> None:
    """Said before anything is fetched, not after."""
    if (out / MANIFEST_FILE).exists() and not force:
        raise UsageError(f"{out} holds a bundle already", "take another folder, or write over it with --force")


@interruptible()
def create_bundle(order: BundleSpec, report: Report, say: Say) -> BundleManifest:
    """Make the bundle in `order.out`. What is there of an older one goes only when the new one's files are at hand."""
    with translate_disk_errors("the bundle", order.out):
        order.out.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(
            order.out / ".lock", lambda: say("another process makes a bundle there; waiting for it")
        ) as lock:
            commands = CommandRunner(logs_dir() / "bundle.log", lock, report)
            commands.open()
            scratch = order.out / ".partial"
            try:
                return _collect_and_pack(order, commands, scratch, report, say)
            finally:
                commands.close()
                shutil.rmtree(scratch, ignore_errors=True)
                (order.out / ".lock").unlink(missing_ok=True)


def _collect_and_pack(
    order: BundleSpec, commands: CommandRunner, scratch: Path, report: Report, say: Say
) -> BundleManifest:
    store = ModelStore()
    models = [store.get(name) or store.pull(name, say=say) for name in order.models]
    bay = _collect_bay_wheels(order, commands, scratch)
    engines = [_collect_engine_wheels(order, one, commands, scratch, say) for one in order.engines]
    check_part_count(_iter_archive_files((bay, *engines), models, store), order.split)
    for stale in (order.out / MANIFEST_FILE, *order.out.glob(f"{ARCHIVE_NAME}*")):
        stale.unlink(missing_ok=True)
    report("packing", "")
    return _pack(order, bay, engines, models, store, say)


def _collect_bay_wheels(order: BundleSpec, commands: CommandRunner, scratch: Path) -> _WheelSet:
    wheel = build_own_wheel(scratch / "own")
    extras = f"[{','.join(order.extras)}]" if order.extras else ""
    found = download_wheels(
        "bay and its needs", [f"enginebay{extras} @ {wheel.as_uri()}"], scratch / "bay", order.target, commands
    )
    return _WheelSet(found.wheels, found.edges, {})


def _collect_engine_wheels(
    order: BundleSpec, one: EngineRequirements, commands: CommandRunner, scratch: Path, say: Say
) -> _WheelSet:
    provided = {parse_requirement_name(text) for text in order.provided}
    asked = [text for text in one.requirements if parse_requirement_name(text) not in provided]
    trim = order.trim_for(one)
    left_out = [*provided, *(trim.packages if trim else ())]
    found = download_wheels(one.spec.kind, asked, scratch / one.spec.kind, order.target, commands, left_out, one.drop)
    return _trim_wheels(trim, order.target, found, scratch / f"{one.spec.kind}-trimmed", say)


def _trim_wheels(
    trim: TrimProfile | None, target: TargetPlatform, found: DownloadedWheels, into: Path, say: Say
) -> _WheelSet:
    if trim is None:
        return _WheelSet(found.wheels, found.edges, {})
    into.mkdir(parents=True, exist_ok=True)
    paths, cuts = [], {}
    for wheel in found.wheels:
        gone: dict[str, str] = {}
        if wheels.read_name_and_version(wheel)[0] == trim.distribution:
            sizes = wheels.list_file_sizes(wheel)
            gone = select_trimmed_files(trim, sizes, target.python)
        if gone:
            size = sum(sizes[path] for path in gone)
            cuts_of = TrimmedFiles(compute_sha256(wheel), gone, size)
            with track_progress(f"trimming {wheel.name}", sum(sizes.values()) - size, say) as advance:
                wheel = wheels.copy_without(wheel, gone, trim.name, into, advance)
            cuts[wheel.name] = cuts_of
        paths.append(wheel)
    return _WheelSet(tuple(paths), found.edges, cuts)


def _iter_archive_files(
    sets: Iterable[_WheelSet], models: Iterable[StoredModel], store: ModelStore
) -> Iterator[tuple[str, Path]]:
    """What goes into the archive: each path in it, and the file."""
    for path in _unique_wheels(sets).values():
        yield _wheel_path(path), path
    for model in models:
        for record in store.read_manifest(model.name).files:
            yield _model_path(model, record.path), model.folder / record.path


def _unique_wheels(sets: Iterable[_WheelSet]) -> dict[str, Path]:
    """Each once, by its file's name."""
    return {path.name: path for one in sets for path in one.paths}


def _wheel_path(wheel: Path) -> str:
    return f"wheels/{wheel.name}"


def _model_path(model: StoredModel, path: str) -> str:
    return f"models/{model.name}/{path}"


def _pack(
    order: BundleSpec, bay: _WheelSet, engines: list[_WheelSet], models: list[StoredModel], store: ModelStore, say: Say
) -> BundleManifest:
    every = _unique_wheels((bay, *engines))
    total = sum(path.stat().st_size for path in every.values()) + sum(one.size_bytes for one in models)
    archive = BundleArchive(order.out, order.split)
    with track_progress("packing", total, say) as advance:
        packages = tuple(_pack_wheel(archive, path, (bay, *engines), advance) for path in every.values())
        packed = tuple(_pack_model(archive, one, store, advance) for one in models)
        parts = archive.close()
    bootstrap = order.out / BOOTSTRAP
    bootstrap.write_bytes(Path(standalone.__file__).read_bytes())
    bootstrap.chmod(0o755)
    manifest = BundleManifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target={**asdict(order.target), "glibc": find_required_glibc(every)},
        bay=BundledBay(__version__, order.extras, _archive_paths(bay)),
        engines=tuple(
            _describe_engine(order, one, made, packages) for one, made in zip(order.engines, engines, strict=True)
        ),
        packages=packages,
        models=packed,
        parts=parts,
        bootstrap=ArchivePart(BOOTSTRAP, bootstrap.stat().st_size, hashlib.sha256(bootstrap.read_bytes()).hexdigest()),
        trim=order.trim.name if order.trim else "",
    )
    beside = order.out / f".{MANIFEST_FILE}"
    beside.write_text(json.dumps(manifest.to_json(), indent=1) + "\n", encoding="utf-8")
    beside.replace(order.out / MANIFEST_FILE)
    return manifest


def _pack_wheel(archive: BundleArchive, path: Path, sets: Iterable[_WheelSet], advance: Advance) -> BundledPackage:
    name, version = wheels.read_name_and_version(path)
    edges = [edge for one in sets for edge in one.edges if (edge.name, edge.version) == (name, version)]
    cuts = {file: made for one in sets for file, made in one.cuts.items()}
    stored = archive.add(_wheel_path(path), path, advance)
    return BundledPackage(name, version, stored, tuple(sorted({edge.requires for edge in edges})), cuts.get(path.name))


def _pack_model(archive: BundleArchive, model: StoredModel, store: ModelStore, advance: Advance) -> BundledModel:
    manifest = store.read_manifest(model.name)
    files = []
    for record in manifest.files:
        stored = archive.add(_model_path(model, record.path), model.folder / record.path, advance)
        if stored.sha256 != record.sha256:
            raise ModelInvalid(
                f"{model.name}: {record.path} has changed since it was stored", f"run: bay models verify {model.name}"
            )
        files.append(stored)
    return BundledModel(asdict(manifest), tuple(files))


def _describe_engine(
    order: BundleSpec, one: EngineRequirements, made: _WheelSet, packages: tuple[BundledPackage, ...]
) -> BundledEngine:
    paths = _archive_paths(made)
    there = {(package.name, package.version) for package in packages if package.file.path in paths}
    unmet = [edge for edge in made.edges if not edge.followed and (edge.name, edge.version) in there]
    asked = {parse_requirement_name(edge.requires) for edge in unmet}
    needed = asked | {parse_requirement_name(text) for text in one.requirements}
    provided = [text for text in order.provided if parse_requirement_name(text) in needed]
    reasons = dict.fromkeys(
        (name for names in one.drop.values() for name in names), "the engine's recipe leaves it out"
    )
    trim = order.trim_for(one)
    reasons |= trim.packages if trim else {}
    wishes = [(edge.name, edge.requires) for edge in unmet]
    return BundledEngine(
        kind=one.spec.kind,
        version=one.version,
        device=one.device,
        distributions=tuple(name for name, _ in sorted(there) if name in one.spec.distributions),
        packages=paths,
        needs=one.requirements,
        provided=tuple(sorted({parse_requirement_name(text) for text in provided})),
        expects=collect_host_requirements(
            one, [text for text in provided if parse_requirement_name(text) not in reasons], wishes
        ),
        left_out={name: reasons[name] for name in sorted(asked & set(reasons))},
        variables=dict(trim.variables) if trim else {},
    )


def _archive_paths(made: _WheelSet) -> tuple[str, ...]:
    return tuple(map(_wheel_path, made.paths))

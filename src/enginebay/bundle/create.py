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
from enginebay.bundle import standalone, wheels
from enginebay.bundle.archive import ARCHIVE, Archive, check_parts
from enginebay.bundle.gather import Edge, Gathered, gather
from enginebay.bundle.manifest import Bay, Cut, Engine, Manifest, Model, Package, Part
from enginebay.bundle.own_wheel import own_wheel
from enginebay.bundle.standalone import MANIFEST
from enginebay.bundle.target import Target, glibc_needed
from enginebay.bundle.trimming import Trim, cut
from enginebay.bundle.wanted import Wanted, expected, name_in
from enginebay.errors import ModelInvalid, UsageError
from enginebay.fleet.children import operation
from enginebay.fleet.environments.build import Report
from enginebay.fleet.environments.commands import Commands
from enginebay.fleet.lock import exclusive
from enginebay.fleet.models import Store, StoredModel
from enginebay.fleet.models.fetched import disk_errors
from enginebay.fleet.models.manifest import sha256_of
from enginebay.fleet.models.progress import Advance, Say, tracking
from enginebay.home import logs_dir

BOOTSTRAP = "install.py"


@dataclass(frozen=True, slots=True)
class Order:
    """A bundle as asked for."""

    out: Path
    target: Target
    engines: tuple[Wanted, ...] = ()
    models: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    trim: Trim | None = None
    split: int | None = None

    def trim_of(self, engine: Wanted) -> Trim | None:
        return self.trim if self.trim is not None and self.trim.engine == engine.spec.kind else None


@dataclass(frozen=True, slots=True)
class _Set:
    """The wheels of Enginebay or of one engine, as they go into the archive."""

    paths: tuple[Path, ...]
    edges: tuple[Edge, ...]
    cuts: dict[str, Cut]  # by the wheel's file name


def check_place(out: Path, force: bool) -> None:
    """Said before anything is fetched, not after."""
    if (out / MANIFEST).exists() and not force:
        raise UsageError(f"{out} holds a bundle already", "take another folder, or write over it with --force")


@operation()
def create(order: Order, report: Report, say: Say) -> Manifest:
    """Make the bundle in `order.out`. What is there of an older one goes only when the new one's files are at hand."""
    with disk_errors("the bundle", order.out):
        order.out.mkdir(parents=True, exist_ok=True)
        with exclusive(
            order.out / ".lock", lambda: say("another process makes a bundle there; waiting for it")
        ) as lock:
            commands = Commands(logs_dir() / "bundle.log", lock, report)
            commands.open()
            scratch = order.out / ".partial"
            try:
                return _create(order, commands, scratch, report, say)
            finally:
                commands.close()
                shutil.rmtree(scratch, ignore_errors=True)
                (order.out / ".lock").unlink(missing_ok=True)


def _create(order: Order, commands: Commands, scratch: Path, report: Report, say: Say) -> Manifest:
    store = Store()
    models = [store.get(name) or store.pull(name, say=say) for name in order.models]
    bay = _bay_set(order, commands, scratch)
    engines = [_engine_set(order, one, commands, scratch, say) for one in order.engines]
    check_parts(_contents((bay, *engines), models, store), order.split)
    for stale in (order.out / MANIFEST, *order.out.glob(f"{ARCHIVE}*")):
        stale.unlink(missing_ok=True)
    report("packing", "")
    return _pack(order, bay, engines, models, store, say)


def _bay_set(order: Order, commands: Commands, scratch: Path) -> _Set:
    wheel = own_wheel(scratch / "own")
    extras = f"[{','.join(order.extras)}]" if order.extras else ""
    found = gather(
        "bay and its needs", [f"enginebay{extras} @ {wheel.as_uri()}"], scratch / "bay", order.target, commands
    )
    return _Set(found.wheels, found.edges, {})


def _engine_set(order: Order, one: Wanted, commands: Commands, scratch: Path, say: Say) -> _Set:
    provided = {name_in(text) for text in order.provided}
    asked = [text for text in one.requirements if name_in(text) not in provided]
    trim = order.trim_of(one)
    left_out = [*provided, *(trim.packages if trim else ())]
    found = gather(one.spec.kind, asked, scratch / one.spec.kind, order.target, commands, left_out, one.drop)
    return _trimmed(trim, order.target, found, scratch / f"{one.spec.kind}-trimmed", say)


def _trimmed(trim: Trim | None, target: Target, found: Gathered, into: Path, say: Say) -> _Set:
    if trim is None:
        return _Set(found.wheels, found.edges, {})
    into.mkdir(parents=True, exist_ok=True)
    paths, cuts = [], {}
    for wheel in found.wheels:
        gone: dict[str, str] = {}
        if wheels.name_and_version(wheel)[0] == trim.distribution:
            sizes = wheels.sizes(wheel)
            gone = cut(trim, sizes, target.python)
        if gone:
            size = sum(sizes[path] for path in gone)
            cuts_of = Cut(sha256_of(wheel), gone, size)
            with tracking(f"trimming {wheel.name}", sum(sizes.values()) - size, say) as advance:
                wheel = wheels.without(wheel, gone, trim.name, into, advance)
            cuts[wheel.name] = cuts_of
        paths.append(wheel)
    return _Set(tuple(paths), found.edges, cuts)


def _contents(sets: Iterable[_Set], models: Iterable[StoredModel], store: Store) -> Iterator[tuple[str, Path]]:
    """What goes into the archive: each path in it, and the file."""
    for path in _wheels(sets).values():
        yield _wheel_path(path), path
    for model in models:
        for record in store.manifest(model.name).files:
            yield _model_path(model, record.path), model.folder / record.path


def _wheels(sets: Iterable[_Set]) -> dict[str, Path]:
    """Each once, by its file's name."""
    return {path.name: path for one in sets for path in one.paths}


def _wheel_path(wheel: Path) -> str:
    return f"wheels/{wheel.name}"


def _model_path(model: StoredModel, path: str) -> str:
    return f"models/{model.name}/{path}"


def _pack(order: Order, bay: _Set, engines: list[_Set], models: list[StoredModel], store: Store, say: Say) -> Manifest:
    every = _wheels((bay, *engines))
    total = sum(path.stat().st_size for path in every.values()) + sum(one.size_bytes for one in models)
    archive = Archive(order.out, order.split)
    with tracking("packing", total, say) as advance:
        packages = tuple(_package(archive, path, (bay, *engines), advance) for path in every.values())
        packed = tuple(_model(archive, one, store, advance) for one in models)
        parts = archive.close()
    bootstrap = order.out / BOOTSTRAP
    bootstrap.write_bytes(Path(standalone.__file__).read_bytes())
    bootstrap.chmod(0o755)
    manifest = Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        target={**asdict(order.target), "glibc": glibc_needed(every)},
        bay=Bay(__version__, order.extras, _inside(bay)),
        engines=tuple(_engine(order, one, made, packages) for one, made in zip(order.engines, engines, strict=True)),
        packages=packages,
        models=packed,
        parts=parts,
        bootstrap=Part(BOOTSTRAP, bootstrap.stat().st_size, hashlib.sha256(bootstrap.read_bytes()).hexdigest()),
        trim=order.trim.name if order.trim else "",
    )
    beside = order.out / f".{MANIFEST}"
    beside.write_text(json.dumps(manifest.to_json(), indent=1) + "\n", encoding="utf-8")
    beside.replace(order.out / MANIFEST)
    return manifest


def _package(archive: Archive, path: Path, sets: Iterable[_Set], advance: Advance) -> Package:
    name, version = wheels.name_and_version(path)
    edges = [edge for one in sets for edge in one.edges if (edge.name, edge.version) == (name, version)]
    cuts = {file: made for one in sets for file, made in one.cuts.items()}
    stored = archive.add(_wheel_path(path), path, advance)
    return Package(name, version, stored, tuple(sorted({edge.requires for edge in edges})), cuts.get(path.name))


def _model(archive: Archive, model: StoredModel, store: Store, advance: Advance) -> Model:
    manifest = store.manifest(model.name)
    files = []
    for record in manifest.files:
        stored = archive.add(_model_path(model, record.path), model.folder / record.path, advance)
        if stored.sha256 != record.sha256:
            raise ModelInvalid(
                f"{model.name}: {record.path} has changed since it was stored", f"run: bay models verify {model.name}"
            )
        files.append(stored)
    return Model(asdict(manifest), tuple(files))


def _engine(order: Order, one: Wanted, made: _Set, packages: tuple[Package, ...]) -> Engine:
    paths = _inside(made)
    there = {(package.name, package.version) for package in packages if package.file.path in paths}
    unmet = [edge for edge in made.edges if not edge.followed and (edge.name, edge.version) in there]
    asked = {name_in(edge.requires) for edge in unmet}
    needed = asked | {name_in(text) for text in one.requirements}
    provided = [text for text in order.provided if name_in(text) in needed]
    reasons = dict.fromkeys(
        (name for names in one.drop.values() for name in names), "the engine's recipe leaves it out"
    )
    trim = order.trim_of(one)
    reasons |= trim.packages if trim else {}
    wishes = [(edge.name, edge.requires) for edge in unmet]
    return Engine(
        kind=one.spec.kind,
        version=one.version,
        device=one.device,
        distributions=tuple(name for name, _ in sorted(there) if name in one.spec.distributions),
        packages=paths,
        needs=one.requirements,
        provided=tuple(sorted({name_in(text) for text in provided})),
        expects=expected(one, [text for text in provided if name_in(text) not in reasons], wishes),
        left_out={name: reasons[name] for name in sorted(asked & set(reasons))},
        variables=dict(trim.variables) if trim else {},
    )


def _inside(made: _Set) -> tuple[str, ...]:
    return tuple(map(_wheel_path, made.paths))

"""The manifest as data: what is in a bundle, for whom, and what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.bundle.standalone import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of the archive, and where its bytes begin in it."""

    path: str
    size: int
    sha256: str
    offset: int


@dataclass(frozen=True, slots=True)
class TrimmedFiles:
    """What was taken out of a wheel."""

    original_sha256: str
    files: Mapping[str, str]  # each with the reason
    bytes: int  # what they take unpacked


@dataclass(frozen=True, slots=True)
class BundledPackage:
    name: str
    version: str
    file: ArchivedFile
    requires: tuple[str, ...] = ()  # what holds for the target: markers are decided
    trimmed: TrimmedFiles | None = None


@dataclass(frozen=True, slots=True)
class BundledBay:
    """Enginebay itself; `packages` are paths in the archive."""

    version: str
    extras: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BundledEngine:
    kind: str
    version: str
    device: str
    distributions: tuple[str, ...]  # names of the wheels that are the engine itself
    packages: tuple[str, ...]  # paths in the archive
    needs: tuple[str, ...]  # what was asked for, as requirements
    provided: tuple[str, ...] = ()  # names that are on the host already
    expects: Mapping[str, tuple[str, ...]] | None = None  # requirement the host must meet: who needs it
    left_out: Mapping[str, str] | None = None  # package: why it can be done without
    variables: Mapping[str, str] | None = None  # what the engine needs to know to do without

    @property
    def sees_host(self) -> bool:
        return bool(self.provided)


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model, with the manifest it has in the store."""

    manifest: Mapping[str, Any]
    files: tuple[ArchivedFile, ...]

    @property
    def name(self) -> str:
        return str(self.manifest["name"])


@dataclass(frozen=True, slots=True)
class ArchivePart:
    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BundleManifest:
    created: str
    target: Mapping[str, str]
    bay: BundledBay
    engines: tuple[BundledEngine, ...]
    packages: tuple[BundledPackage, ...]
    models: tuple[BundledModel, ...]
    parts: tuple[ArchivePart, ...]
    bootstrap: ArchivePart
    trim: str = ""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BundleManifest:
        return cls(
            created=data["created"],
            target=data["target"],
            bay=BundledBay(data["bay"]["version"], tuple(data["bay"]["extras"]), tuple(data["bay"]["packages"])),
            engines=tuple(map(_parse_engine, data["engines"])),
            packages=tuple(map(_parse_package, data["packages"])),
            models=tuple(
                BundledModel(one["manifest"], tuple(ArchivedFile(**f) for f in one["files"])) for one in data["models"]
            ),
            parts=tuple(ArchivePart(**one) for one in data["parts"]),
            bootstrap=ArchivePart(**data["bootstrap"]),
            trim=data["trim"],
            schema_version=data["schema_version"],
        )

    def get_packages(self, paths: tuple[str, ...]) -> list[BundledPackage]:
        known = {one.file.path: one for one in self.packages}
        return [known[path] for path in paths]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def _parse_engine(data: Mapping[str, Any]) -> BundledEngine:
    lists = {key: tuple(data[key]) for key in ("distributions", "packages", "needs", "provided")}
    expects = {requirement: tuple(by) for requirement, by in (data["expects"] or {}).items()}
    return BundledEngine(**{**data, **lists, "expects": expects})


def _parse_package(data: Mapping[str, Any]) -> BundledPackage:
    cut = TrimmedFiles(**data["trimmed"]) if data["trimmed"] else None
    return BundledPackage(data["name"], data["version"], ArchivedFile(**data["file"]), tuple(data["requires"]), cut)

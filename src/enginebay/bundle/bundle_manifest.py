"""The bundle manifest as data: contents, target platform, and what was trimmed and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.bundle.standalone import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file in the archive and the offset of its bytes."""

    path: str
    size: int
    sha256: str
    offset: int


@dataclass(frozen=True, slots=True)
class TrimmedFiles:
    """Files removed from a wheel."""

    original_sha256: str
    files: Mapping[str, str]  # path: reason
    bytes: int  # unpacked size


@dataclass(frozen=True, slots=True)
class BundledPackage:
    name: str
    version: str
    file: ArchivedFile
    requires: tuple[str, ...] = ()  # with markers evaluated for the target
    trimmed: TrimmedFiles | None = None


@dataclass(frozen=True, slots=True)
class BundledBay:
    """Enginebay itself. `packages` are paths in the archive."""

    version: str
    extras: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BundledEngine:
    kind: str
    version: str
    device: str
    distributions: tuple[str, ...]  # distribution names of the engine itself
    packages: tuple[str, ...]  # paths in the archive
    needs: tuple[str, ...]  # top-level requirements
    provided: tuple[str, ...] = ()  # names of packages that the host provides
    expects: Mapping[str, tuple[str, ...]] | None = None  # requirement on the host: who needs it
    left_out: Mapping[str, str] | None = None  # package: why it is not needed
    variables: Mapping[str, str] | None = None  # environment variables that the trimmed engine needs

    @property
    def sees_host(self) -> bool:
        return bool(self.provided)


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model, with its manifest in the store."""

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
                BundledModel(model["manifest"], tuple(ArchivedFile(**file) for file in model["files"]))
                for model in data["models"]
            ),
            parts=tuple(ArchivePart(**part) for part in data["parts"]),
            bootstrap=ArchivePart(**data["bootstrap"]),
            trim=data["trim"],
            schema_version=data["schema_version"],
        )

    def get_packages(self, paths: tuple[str, ...]) -> list[BundledPackage]:
        by_path = {package.file.path: package for package in self.packages}
        return [by_path[path] for path in paths]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def _parse_engine(data: Mapping[str, Any]) -> BundledEngine:
    lists = {key: tuple(data[key]) for key in ("distributions", "packages", "needs", "provided")}
    expects = {requirement: tuple(by) for requirement, by in (data["expects"] or {}).items()}
    return BundledEngine(**{**data, **lists, "expects": expects})


def _parse_package(data: Mapping[str, Any]) -> BundledPackage:
    trimmed = TrimmedFiles(**data["trimmed"]) if data["trimmed"] else None
    return BundledPackage(data["name"], data["version"], ArchivedFile(**data["file"]), tuple(data["requires"]), trimmed)

"""The manifest as data: what is in a bundle, for whom, and what was left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from enginebay.bundle.standalone import SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of the archive, and where its bytes begin in it."""

    path: str
    size: int
    sha256: str
    offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What was taken out of a wheel."""

    original_sha256: str
    files: Mapping[str, str]  # each with the reason
    bytes: int  # what they take unpacked


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    file: Stored
    requires: tuple[str, ...] = ()  # what holds for the target: markers are decided
    trimmed: Cut | None = None


@dataclass(frozen=True, slots=True)
class Bay:
    """Enginebay itself; `packages` are paths in the archive."""

    version: str
    extras: tuple[str, ...]
    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Engine:
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
class Model:
    """A model, with the manifest it has in the store."""

    manifest: Mapping[str, Any]
    files: tuple[Stored, ...]

    @property
    def name(self) -> str:
        return str(self.manifest["name"])


@dataclass(frozen=True, slots=True)
class Part:
    file: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    created: str
    target: Mapping[str, str]
    bay: Bay
    engines: tuple[Engine, ...]
    packages: tuple[Package, ...]
    models: tuple[Model, ...]
    parts: tuple[Part, ...]
    bootstrap: Part
    trim: str = ""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        return cls(
            created=data["created"],
            target=data["target"],
            bay=Bay(data["bay"]["version"], tuple(data["bay"]["extras"]), tuple(data["bay"]["packages"])),
            engines=tuple(map(_engine, data["engines"])),
            packages=tuple(map(_package, data["packages"])),
            models=tuple(Model(one["manifest"], tuple(Stored(**f) for f in one["files"])) for one in data["models"]),
            parts=tuple(Part(**one) for one in data["parts"]),
            bootstrap=Part(**data["bootstrap"]),
            trim=data["trim"],
            schema_version=data["schema_version"],
        )

    def packages_at(self, paths: tuple[str, ...]) -> list[Package]:
        known = {one.file.path: one for one in self.packages}
        return [known[path] for path in paths]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


def _engine(data: Mapping[str, Any]) -> Engine:
    lists = {key: tuple(data[key]) for key in ("distributions", "packages", "needs", "provided")}
    expects = {requirement: tuple(by) for requirement, by in (data["expects"] or {}).items()}
    return Engine(**{**data, **lists, "expects": expects})


def _package(data: Mapping[str, Any]) -> Package:
    cut = Cut(**data["trimmed"]) if data["trimmed"] else None
    return Package(data["name"], data["version"], Stored(**data["file"]), tuple(data["requires"]), cut)

"""A stored model's manifest.json: its description, source and file hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from enginebay.errors import ModelInvalid
from enginebay.text.tokenization.tokenizer import MANIFEST_FILE
from enginebay.util.atomic_file import write_atomically
from enginebay.util.child_processes import raise_if_interrupted

SCHEMA_VERSION = 1
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A local model. Engines load `path`; files derived from the model are cached in `folder`."""

    name: str
    format: str  # "gguf" or "safetensors"
    path: Path
    architecture: str
    context_length: int | None
    size_bytes: int
    parameters: int
    quantisation: str
    source: str
    folder: Path


@dataclass(frozen=True, slots=True)
class FileRecord:
    path: str  # relative to the model's folder
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class ModelManifest:
    name: str
    source: str
    revision: str | None  # the hub's commit
    path: str  # what engines load, relative to the model's folder
    files: tuple[FileRecord, ...]
    format: str
    architecture: str
    context_length: int | None
    parameters: int
    quantisation: str
    created: str  # UTC, ISO 8601
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def read(cls, folder: Path) -> ModelManifest:
        """Read and validate the manifest. Raises `ModelInvalid`."""
        path = folder / MANIFEST_FILE
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content["schema_version"] > SCHEMA_VERSION:
                raise ModelInvalid(f"{path} was written by a newer Enginebay", "upgrade enginebay")
            manifest = cls(**{**content, "files": tuple(FileRecord(**record) for record in content["files"])})
            manifest.to_stored_model(folder)  # fails for values of the wrong type
            return manifest
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelInvalid(
                f"{path} cannot be read: {error}", f"run: bay models remove {folder.name}, then pull the model again"
            ) from error

    def write(self, folder: Path) -> None:
        write_atomically(folder / MANIFEST_FILE, json.dumps(asdict(self), indent=2), sync=True)

    def to_stored_model(self, folder: Path) -> StoredModel:
        return StoredModel(
            name=self.name,
            format=self.format,
            path=folder / self.path,
            architecture=self.architecture,
            context_length=self.context_length,
            size_bytes=sum(record.size for record in self.files),
            parameters=self.parameters,
            quantisation=self.quantisation,
            source=self.source,
            folder=folder,
        )


def compute_sha256(path: Path, advance: Callable[[int], None] = lambda _: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            raise_if_interrupted()
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()

"""Register files of the user's own: linked, never copied."""

from __future__ import annotations

from pathlib import Path

from enginebay.models.fetch_result import MODEL_DIRECTORY, FetchResult
from enginebay.models.model_description import describe_model
from enginebay.models.model_sources import FileSource


def link_files(source: FileSource, folder: Path) -> FetchResult:
    found = describe_model(source.path)
    if found.format == "safetensors":
        (folder / MODEL_DIRECTORY).symlink_to(found.path, target_is_directory=True)
        return FetchResult(folder / MODEL_DIRECTORY)
    for file in found.files:
        (folder / file.name).symlink_to(file)
    return FetchResult(folder / found.path.name)

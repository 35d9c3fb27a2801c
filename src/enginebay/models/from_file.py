"""Registers local model files by symlink, without a copy."""

from __future__ import annotations

from pathlib import Path

from enginebay.models.fetch_result import MODEL_DIRECTORY, FetchResult
from enginebay.models.model_description import describe_model
from enginebay.models.model_sources import FileSource


def link_files(source: FileSource, folder: Path) -> FetchResult:
    """Link the model's files into `folder`."""
    model = describe_model(source.path)
    if model.format == "safetensors":
        (folder / MODEL_DIRECTORY).symlink_to(model.path, target_is_directory=True)
        return FetchResult(folder / MODEL_DIRECTORY)
    for file in model.files:
        (folder / file.name).symlink_to(file)
    return FetchResult(folder / model.path.name)

"""Register files of the user's own: linked, never copied."""

from __future__ import annotations

from pathlib import Path

from enginebay.fleet.models.describe import describe
from enginebay.fleet.models.fetched import DIRECTORY, Fetched
from enginebay.fleet.models.sources import FileSource


def link(source: FileSource, folder: Path) -> Fetched:
    found = describe(source.path)
    if found.format == "safetensors":
        (folder / DIRECTORY).symlink_to(found.path, target_is_directory=True)
        return Fetched(folder / DIRECTORY)
    for file in found.files:
        (folder / file.name).symlink_to(file)
    return Fetched(folder / found.path.name)

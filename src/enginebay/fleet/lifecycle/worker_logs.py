"""Worker logs: their paths and their last lines."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from enginebay.util.paths import logs_dir

_LINE_BYTES = 4096  # generous average length of a line


def get_worker_log_path(kind: str, model: str) -> Path:
    """Return the log path of the worker that runs this model on this engine."""
    return logs_dir() / f"{kind}-{_to_file_name(model)}.log"


def find_newest_log(model: str, kinds: Collection[str]) -> Path | None:
    """Return the most recently written log of a model on these engines. MODEL@ENGINE selects one engine."""
    name, _, engine = model.rpartition("@")
    kind = engine.partition("==")[0]
    selected = [(kind, name)] if name and kind in kinds else [(other, model) for other in kinds]
    paths = (get_worker_log_path(*pair) for pair in selected)
    return max((path for path in paths if path.is_file()), key=lambda path: path.stat().st_mtime, default=None)


def _to_file_name(model: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in Path(model).name)[:80]


def read_last_lines(path: Path, count: int) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - count * _LINE_BYTES))
            return log.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []

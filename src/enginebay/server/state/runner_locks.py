"""Which server processes are alive: each holds a lock on a file of its own, which the kernel releases when it dies."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from enginebay.util.file_lock import try_lock


class RunnerLock:
    """Held as long as this process may finish its responses in the background."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.runner = secrets.token_hex(8)
        self._path = folder / f"{self.runner}.lock"
        self._file: TextIO = self._path.open("a")
        try_lock(self._file)

    def is_alive(self, runner: str) -> bool:
        """Return whether the process with this name is alive. Removes the file of a dead one."""
        if runner == self.runner:
            return True
        path = self._path.with_name(f"{Path(runner).name}.lock")
        try:
            with path.open("r+") as file:
                if not try_lock(file):
                    return True
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        return False

    def close(self) -> None:
        with suppress(OSError):
            self._path.unlink()
        self._file.close()

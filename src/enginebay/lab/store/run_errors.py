"""Errors of stored runs and studies."""

from __future__ import annotations

from pathlib import Path

from enginebay.errors import EnginebayError, UsageError


class CorruptRun(EnginebayError):
    """A run's folder does not match its manifest."""

    kind = "corrupt_run"

    def __init__(self, folder: Path, wrong: str, hint: str = "") -> None:
        super().__init__(f"the run in {folder} is corrupt: {wrong}", hint or "remove the folder and repeat the run")
        self.folder = folder
        self.wrong = wrong


class CorruptStudy(EnginebayError):
    """The plan of a study cannot be read."""

    kind = "corrupt_study"


class BusyStudy(UsageError):
    """Another process is running the study."""

    kind = "busy_study"


class UnknownRun(UsageError):
    """No run or study has that name, or several match it."""

    kind = "unknown_run"


class MixedEngines(UsageError):
    """Runs of several engines cannot be averaged."""

    kind = "mixed_engines"

"""What can be wrong with a stored run."""

from __future__ import annotations

from pathlib import Path

from enginebay.errors import EnginebayError, UsageError


class CorruptRun(EnginebayError):
    """A run's folder does not hold what its manifest says."""

    kind = "corrupt_run"

    def __init__(self, folder: Path, wrong: str, hint: str = "") -> None:
        super().__init__(f"the run in {folder} is corrupt: {wrong}", hint or "measure it again, and remove the folder")
        self.folder = folder
        self.wrong = wrong


class CorruptStudy(EnginebayError):
    """The plan of a study cannot be read."""

    kind = "corrupt_study"


class BusyStudy(UsageError):
    """Another process carries the study out."""

    kind = "busy_study"


class UnknownRun(UsageError):
    """No run or study of that name, or more than one."""

    kind = "unknown_run"


class MixedEngines(UsageError):
    """Runs of several engines cannot be put into one average."""

    kind = "mixed_engines"

"""What a person sees while engines are compared: which one runs, at which load, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.cli.experiment_progress import StudyProgress
from enginebay.cli.output import note

if TYPE_CHECKING:
    from enginebay.lab.candidates import Candidate
    from enginebay.lab.runs.reader import Run


class ChoiceProgress(StudyProgress):
    """As of a study, whose number of runs nobody knows beforehand."""

    def engine(self, label: str, number: int, count: int) -> None:
        """The next engine."""
        self._engine = f"[{number}/{count}] {label}"
        self._load(self._engine)

    def began_load(self, what: str) -> None:
        """The next run on it."""
        self._load(f"{self._engine} {what}")

    def ended_load(self, run: Run, what: str) -> None:
        self.clear()
        if run.manifest["profile"]["kind"] == "closed":  # it shows where to begin, and decides nothing
            note(f"{self._head}: {what}")
            return
        codes = ", ".join(reason["code"] for reason in run.reasons)
        note(f"{self._head}: {what} ({run.status}{f': {codes}' if codes else ''})")

    def ended_engine(self, found: Candidate) -> None:
        self.clear()
        if found.rate is None:
            note(f"{self._engine}: {found.why_none}")
            return
        above = f", missed at {found.above:g}" if found.above is not None else f", {found.limit}" if found.limit else ""
        note(f"{self._engine}: {found.rate:g} requests/s{above}")

    def _load(self, head: str) -> None:
        self._head = head
        self._before = (0.0, 0)

    def _outlook(self) -> str:
        return ""

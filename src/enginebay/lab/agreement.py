"""Whether the engines of a choice did the same work: their answers to the same prompts, each against the first one's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.lab.candidates import Candidate
from enginebay.lab.parity import Parity
from enginebay.lab.runs.comparison import compare_points
from enginebay.lab.runs.points import Point
from enginebay.lab.runs.reader import Run, load_run
from enginebay.lab.validity.answer_checks import parity_broken
from enginebay.lab.validity.facts import RunFacts
from enginebay.lab.validity.verdict import Reason


def with_parity(found: Sequence[Candidate], folder: Path) -> list[Candidate]:
    """The candidates, those with a reason more whose answers are not the first one's."""
    first = next((one for one in found if one.runs), None)
    if first is None:
        return list(found)
    reference = _run(folder, first)
    return [one if one is first or not one.runs else _compared(one, first, reference, folder) for one in found]


def _compared(one: Candidate, first: Candidate, reference: Run, folder: Path) -> Candidate:
    parity = compare_points(Point((reference,)), Point((_run(folder, one),)))["parity"]
    if parity is None:
        return one
    finding = parity_broken(RunFacts((), parity=Parity(**parity), parity_with=first.label))
    return one.with_reason(finding.code, finding.severity, finding.message) if isinstance(finding, Reason) else one


def _run(folder: Path, one: Candidate) -> Run:
    """The first of its runs: it asked the parity prompts."""
    return load_run(folder / one.runs[0], verify=False)

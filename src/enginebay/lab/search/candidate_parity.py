"""Whether the engines of a choice did the same work: their answers to the same prompts, each against the first one's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebay.lab.measures.parity import Parity
from enginebay.lab.search.candidates import Candidate
from enginebay.lab.statistics.run_comparison import compare_groups
from enginebay.lab.statistics.run_groups import RunGroup
from enginebay.lab.store.run_reader import Run, load_run
from enginebay.lab.validity.answer_checks import parity_broken
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import Reason


def flag_parity_breaks(candidates: Sequence[Candidate], folder: Path) -> list[Candidate]:
    """The candidates, those with a reason more whose answers are not the first one's."""
    first = next((one for one in candidates if one.runs), None)
    if first is None:
        return list(candidates)
    reference = _load_first_run(folder, first)
    return [one if one is first or not one.runs else _check_parity(one, first, reference, folder) for one in candidates]


def _check_parity(candidate: Candidate, reference_candidate: Candidate, reference: Run, folder: Path) -> Candidate:
    parity = compare_groups(RunGroup((reference,)), RunGroup((_load_first_run(folder, candidate),)))["parity"]
    if parity is None:
        return candidate
    finding = parity_broken(RunFacts((), parity=Parity(**parity), parity_with=reference_candidate.label))
    return (
        candidate.add_reason(finding.code, finding.severity, finding.message)
        if isinstance(finding, Reason)
        else candidate
    )


def _load_first_run(folder: Path, candidate: Candidate) -> Run:
    """The first of its runs: it asked the parity prompts."""
    return load_run(folder / candidate.runs[0], verify=False)

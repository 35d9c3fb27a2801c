"""Check that the candidates of `bay choose` did the same work: compare their parity answers with the first one's."""

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
    """Return the candidates, with a reason added where the answers differ from the first one's."""
    first = next((candidate for candidate in candidates if candidate.runs), None)
    if first is None:
        return list(candidates)
    reference = _load_first_run(folder, first)
    return [
        candidate if candidate is first or not candidate.runs else _check_parity(candidate, first, reference, folder)
        for candidate in candidates
    ]


def _check_parity(candidate: Candidate, reference_candidate: Candidate, reference: Run, folder: Path) -> Candidate:
    parity = compare_groups(RunGroup((reference,)), RunGroup((_load_first_run(folder, candidate),)))["parity"]
    if parity is None:
        return candidate
    finding = parity_broken(RunFacts((), parity=Parity(**parity), parity_with=reference_candidate.label))
    if not isinstance(finding, Reason):
        return candidate
    return candidate.add_reason(finding.code, finding.severity, finding.message)


def _load_first_run(folder: Path, candidate: Candidate) -> Run:
    """Load the candidate's first run, the one with parity answers."""
    return load_run(folder / candidate.runs[0], verify=False)

from __future__ import annotations

import json
import math
from pathlib import Path

from enginebay.lab.validity.codes import ALL, CODES, codes_about, markdown_table
from enginebay.lab.validity.facts import RunFacts
from enginebay.lab.validity.judge import CHECKS, judge
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Reason, graded, graver
from enginebay.meters.energy import Energy
from tests.unit.lab.validity.runs import closed_loop, failed, open_loop, paced

PAGE = Path(__file__).parents[4] / "docs" / "validity.md"


def test_the_page_has_the_table_of_codes() -> None:
    assert markdown_table() in PAGE.read_text(encoding="utf-8")


def test_every_code_has_a_check_and_every_check_a_code() -> None:
    assert list(CODES) == list(CHECKS)


def test_a_sound_open_and_a_sound_closed_run_are_valid() -> None:
    for facts in (open_loop(), closed_loop()):
        verdict = judge(facts)
        assert (verdict.status, verdict.reasons) == ("valid", ())


def test_a_run_without_records_is_never_valid() -> None:
    verdict = judge(RunFacts([]))
    assert verdict.status == "invalid"
    assert [reason.code for reason in verdict.reasons] == ["no_requests"]


def test_of_facts_that_are_not_there_nothing_is_claimed() -> None:
    verdict = judge(RunFacts(paced(20)))
    assert set(verdict.checked) | set(verdict.unchecked) == set(CODES)
    assert set(verdict.checked) == {"no_requests", "errors", "impossible_records", "stream_bunched"}


def test_the_worst_reason_decides_and_comes_first() -> None:
    few_errors = [*paced(), *(failed(index, 40.0, "status") for index in range(400, 402))]
    verdict = judge(open_loop(few_errors, energy={"gpu:0": Energy(100.0, source="counter", window_s=2.0)}))
    assert verdict.status == "invalid"
    assert [(reason.code, reason.severity) for reason in verdict.reasons] == [
        ("energy_window_short", "invalid"),
        ("errors", "informative"),
    ]


def test_a_fault_of_the_energy_leaves_latencies_alone() -> None:
    verdict = judge(open_loop(energy={"gpu:0": Energy(100.0, source="counter", window_s=2.0)}))
    assert verdict.status_within(codes_about("energy")) == "invalid"
    assert verdict.status_within(codes_about("latency")) == "valid"


def test_the_verdict_can_be_written_down() -> None:
    written = json.loads(json.dumps(judge(RunFacts([])).as_dict()))
    assert written["reasons"] == [
        {"code": "no_requests", "severity": "invalid", "message": "no request was sent", "figure": 0.0, "limit": 1.0}
    ]
    assert written["status"] == "invalid" and "send_lag" in written["unchecked"]


def test_every_code_concerns_something_and_can_do_something() -> None:
    for code in CODES.values():
        assert code.concerns and set(code.concerns) <= set(ALL)
        assert (code.informative, code.invalid) != ("-", "-")


def test_a_figure_is_held_against_two_limits() -> None:
    def severity(figure: float) -> object:
        found = graded("errors", figure, 1.0, 2.0, "")
        return (found.severity, found.limit) if isinstance(found, Reason) else found

    assert [severity(figure) for figure in (1.0, 1.5, 2.5)] == [FINE, ("informative", 1.0), ("invalid", 2.0)]
    assert severity(math.nan) == ("invalid", 2.0)


def test_the_gravest_finding_counts() -> None:
    mild, grave = Reason("a", "informative", ""), Reason("a", "invalid", "")
    assert graver(mild, UNKNOWN, grave) is grave
    assert graver(UNKNOWN, FINE) is FINE
    assert graver(UNKNOWN) is UNKNOWN and graver() is UNKNOWN

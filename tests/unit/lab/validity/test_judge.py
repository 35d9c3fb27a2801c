from __future__ import annotations

import json
import math
from pathlib import Path

from enginebay.lab.validity.codes import ALL_CONCERNS, REASON_RULES, codes_about, render_markdown_table
from enginebay.lab.validity.judge import CHECKS, judge_run
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import FINE, UNKNOWN, Reason, grade_figure, pick_gravest
from enginebay.meters.analysis.window_energy import WindowEnergy
from tests.unit.lab.validity.judged_runs import make_closed_loop, make_failed, make_open_loop, make_paced

PAGE = Path(__file__).parents[4] / "docs" / "validity.md"


def test_the_page_has_the_table_of_codes() -> None:
    assert render_markdown_table() in PAGE.read_text(encoding="utf-8")


def test_every_code_has_a_check_and_every_check_a_code() -> None:
    assert list(REASON_RULES) == list(CHECKS)


def test_a_sound_open_and_a_sound_closed_run_are_valid() -> None:
    for facts in (make_open_loop(), make_closed_loop()):
        verdict = judge_run(facts)
        assert (verdict.status, verdict.reasons) == ("valid", ())


def test_a_run_without_records_is_never_valid() -> None:
    verdict = judge_run(RunFacts([]))
    assert verdict.status == "invalid"
    assert [reason.code for reason in verdict.reasons] == ["no_requests"]


def test_missing_facts_claim_nothing() -> None:
    verdict = judge_run(RunFacts(make_paced(20)))
    assert set(verdict.checked) | set(verdict.unchecked) == set(REASON_RULES)
    assert set(verdict.checked) == {"no_requests", "errors", "impossible_records", "stream_bunched"}


def test_the_worst_reason_decides_and_comes_first() -> None:
    few_errors = [*make_paced(), *(make_failed(index, 40.0, "status") for index in range(400, 402))]
    verdict = judge_run(
        make_open_loop(few_errors, energy={"gpu:0": WindowEnergy(100.0, source="counter", window_s=2.0)})
    )
    assert verdict.status == "invalid"
    assert [(reason.code, reason.severity) for reason in verdict.reasons] == [
        ("energy_window_short", "invalid"),
        ("errors", "informative"),
    ]


def test_an_energy_fault_does_not_affect_latencies() -> None:
    verdict = judge_run(make_open_loop(energy={"gpu:0": WindowEnergy(100.0, source="counter", window_s=2.0)}))
    codes = {reason.code for reason in verdict.reasons}
    assert codes and codes <= codes_about("energy") and not codes & codes_about("latency")


def test_the_verdict_can_be_written_down() -> None:
    written = json.loads(json.dumps(judge_run(RunFacts([])).to_dict()))
    assert written["reasons"] == [
        {"code": "no_requests", "severity": "invalid", "message": "no request was sent", "figure": 0.0, "limit": 1.0}
    ]
    assert written["status"] == "invalid" and "send_lag" in written["unchecked"]


def test_every_code_has_concerns_and_a_threshold() -> None:
    for code in REASON_RULES.values():
        assert code.concerns and set(code.concerns) <= set(ALL_CONCERNS)
        assert (code.informative, code.invalid) != ("-", "-")


def test_a_figure_is_graded_against_two_limits() -> None:
    def severity(figure: float) -> object:
        found = grade_figure("errors", figure, 1.0, 2.0, "")
        return (found.severity, found.limit) if isinstance(found, Reason) else found

    assert [severity(figure) for figure in (1.0, 1.5, 2.5)] == [FINE, ("informative", 1.0), ("invalid", 2.0)]
    assert severity(math.nan) == ("invalid", 2.0)


def test_the_gravest_finding_counts() -> None:
    mild, grave = Reason("a", "informative", ""), Reason("a", "invalid", "")
    assert pick_gravest(mild, UNKNOWN, grave) is grave
    assert pick_gravest(UNKNOWN, FINE) is FINE
    assert pick_gravest(UNKNOWN) is UNKNOWN and pick_gravest() is UNKNOWN

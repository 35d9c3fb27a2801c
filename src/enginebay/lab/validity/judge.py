"""The verdict on a run: the worst result of all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from enginebay.lab.validity import answer_checks, client_checks, energy_checks, machine_checks, steady_checks
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import UNKNOWN, Finding, Reason, Verdict, worst_status

Check = Callable[[RunFacts], Finding]

_CHECK_FUNCTIONS: tuple[Check, ...] = (
    answer_checks.no_requests,
    answer_checks.errors,
    client_checks.impossible_records,
    client_checks.send_lag,
    client_checks.delivered_rate,
    client_checks.drawn_rate,
    client_checks.delivered_concurrency,
    client_checks.client_saturated,
    steady_checks.littles_law,
    steady_checks.backlog_grows,
    steady_checks.unstable_warmup,
    answer_checks.too_few_for_percentile,
    answer_checks.too_few_cycles,
    answer_checks.output_lengths_off,
    answer_checks.input_lengths_off,
    answer_checks.unasked_cache_hits,
    answer_checks.stream_bunched,
    answer_checks.parity_broken,
    machine_checks.engine_warned,
    machine_checks.machine_busy,
    machine_checks.thermal_drift,
    machine_checks.throttled,
    energy_checks.energy_window_short,
    energy_checks.energy_sources_apart,
    energy_checks.energy_counter,
    energy_checks.energy_baseline,
)
CHECKS: Mapping[str, Check] = {
    check.__name__: check for check in _CHECK_FUNCTIONS
}  # each check is named after its code


def judge_run(facts: RunFacts) -> Verdict:
    """Run every check and return the verdict, gravest reasons first."""
    findings = {code: check(facts) for code, check in CHECKS.items()}
    reasons = [finding for finding in findings.values() if isinstance(finding, Reason)]
    return Verdict(
        status=worst_status(reason.severity for reason in reasons),
        reasons=tuple(sorted(reasons, key=lambda reason: reason.severity != "invalid")),
        checked=tuple(code for code, finding in findings.items() if finding is not UNKNOWN),
        unchecked=tuple(code for code, finding in findings.items() if finding is UNKNOWN),
    )

"""Every collected fact of a run reaches its check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enginebay.lab.loadgen.calibration import ClientCeiling
from enginebay.lab.loadgen.sender_pool import LoadgenResult
from enginebay.lab.measures.parity import ParityAnswer
from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.study.collect_facts import RunContext, collect_run_facts
from enginebay.lab.study.machine_monitor import MachineReadings
from enginebay.lab.study.parity_reference import ParityReference
from enginebay.lab.study.run_measurement import RunMeasurement
from enginebay.lab.study.server_facts import ServerFacts
from enginebay.lab.study.study_point import StudyPoint, plan_run
from enginebay.lab.validity.judge import judge_run
from enginebay.lab.validity.run_facts import RunFacts
from enginebay.lab.validity.verdict import Verdict
from enginebay.lab.workload.request_records import Record
from enginebay.lab.workload.workload_builder import Workload
from enginebay.meters.sample import Sample
from tests.unit.lab.validity.judged_runs import make_paced, make_requests

CEILING = ClientCeiling(tokens_per_s=1e6, requests_per_s=1e5, processes=1)
POINT = StudyPoint("p", "fake", "m", {"kind": "synthetic", "input_tokens": 32, "output_tokens": 16},
              {"kind": "constant", "rate": 10})  # fmt: skip
HERE = ParityAnswer((1, 2), ("a", "b"), (-0.1, -0.2))
OTHER = ParityAnswer((1, 2), ("x", "y"), (-0.1, -0.2))


def facts(
    point: StudyPoint = POINT, context: RunContext | None = None, records: list[Record] | None = None, prepared: int = 400, **changes: Any
) -> RunFacts:  # fmt: skip
    """Collect the facts of a sound run of 40 s at 10 requests/s, with some of them changed."""
    run_records = make_paced() if records is None else records
    result = LoadgenResult(run_records, {}, 1000.0, 41.0, changes.pop("core_share", None))
    readings = changes.pop("observation", MachineReadings())
    workload = Workload(tuple(make_requests(prepared)), shared=changes.pop("shared", None))
    measurement = RunMeasurement(changes.pop("server", ServerFacts()), workload, result, (990.0, 991.0), **changes)
    figures = compute_measures(run_records, {}, 41.0)
    return collect_run_facts(plan_run(point), measurement, figures, readings, {}, context or RunContext(CEILING))


def find_severity(verdict: Verdict, code: str) -> str:
    """Return the severity of a code, "fine" if it was checked without a finding, or "unchecked"."""
    severities = [reason.severity for reason in verdict.reasons if reason.code == code]
    return severities[0] if severities else ("fine" if code in verdict.checked else "unchecked")


def test_a_sound_run_with_few_known_facts_is_valid() -> None:
    verdict = judge_run(facts())
    assert verdict.status == "valid", verdict.reasons
    assert {"too_few_cycles", "parity_broken", "machine_busy"} <= set(verdict.unchecked)


@pytest.mark.parametrize(("share", "said"), [(0.2, "fine"), (0.8, "informative"), (0.97, "invalid")])
def test_a_busy_client(share: float, said: str) -> None:
    assert find_severity(judge_run(facts(core_share=share)), "client_saturated") == said


@pytest.mark.parametrize(("cycles", "said"), [(None, "unchecked"), (1, "informative"), (2, "informative"), (3, "fine")])
def test_a_study_of_few_cycles(cycles: int | None, said: str) -> None:
    assert find_severity(judge_run(facts(context=RunContext(CEILING, cycles))), "too_few_cycles") == said


@pytest.mark.parametrize(
    ("answers", "said"),
    [((HERE,), "fine"), ((OTHER,), "invalid"), ((), "unchecked"), ((HERE, HERE), "unchecked")],
)
def test_answers_are_compared_with_the_reference(answers: tuple[ParityAnswer, ...], said: str) -> None:
    context = RunContext(CEILING, reference=ParityReference(0, "llamacpp c4", (HERE,)))
    verdict = judge_run(facts(context=context, parity_answers=answers))
    assert find_severity(verdict, "parity_broken") == said
    assert all(reason.message.startswith("against llamacpp c4: ") for reason in verdict.reasons)


def test_without_a_reference_parity_is_not_claimed() -> None:
    assert find_severity(judge_run(facts(parity_answers=(HERE,))), "parity_broken") == "unchecked"


@pytest.mark.parametrize(
    ("share", "said"), [(0.98, "fine"), (1.0, "fine"), (1.1, "informative"), (1.5, "invalid"), (None, "unchecked")]
)
def test_requests_of_other_clients(share: float | None, said: str) -> None:
    """400 requests of 1 s each are ours; the server may count slightly less, and more only for other clients."""
    verdict = judge_run(facts(server_request_s=None if share is None else 400.0 * share))
    assert find_severity(verdict, "machine_busy") == said


@pytest.mark.parametrize(("others_s", "said"), [(0.0, "fine"), (8.2, "informative"), (41.0, "invalid")])
def test_other_processes_on_the_servers_machine(others_s: float, said: str) -> None:
    """Two cores and a window of 41 s, of which the server takes 20 s."""
    samples = [
        Sample(at_s, "host", cpu_s=cpu_s) for at_s, cpu_s in ((990.0, 0.0), (1000.0, 0.0), (1041.0, 20 + others_s))
    ]
    samples += [
        Sample(at_s, "tree:server", cpu_s=cpu_s) for at_s, cpu_s in ((990.0, 0.0), (1000.0, 0.0), (1041.0, 20.0))
    ]
    assert (
        find_severity(judge_run(facts(observation=MachineReadings(samples=samples, cores=2))), "machine_busy") == said
    )


def test_a_run_that_stops_once_stable_need_not_send_the_rest() -> None:
    stable = replace(POINT, limits={"until_stable": True})
    assert find_severity(judge_run(facts(stable, prepared=5000)), "delivered_rate") == "fine"
    assert find_severity(judge_run(facts(POINT, prepared=5000)), "delivered_rate") == "invalid"
    missing = [record for record in make_paced() if record.index % 10]
    assert find_severity(judge_run(facts(stable, records=missing, prepared=5000)), "delivered_rate") == "invalid"


@pytest.mark.parametrize(
    ("shared", "cached", "said"),
    [
        (0.0, 0, "fine"),
        (0.0, 4, "informative"),
        (0.0, 30, "invalid"),
        (0.25, 8, "fine"),  # of 32: the prefix of another line
        (0.25, 30, "invalid"),
        (0.7, 32, "unchecked"),  # lines share too much to tell
        (None, 32, "unchecked"),
    ],
)
def test_cache_hits_on_the_lines_of_a_file(shared: float | None, cached: int, said: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}')
    records = [replace(one, cached_tokens=cached) for one in make_paced()]
    point = replace(POINT, workload={"kind": "jsonl", "path": str(file)})
    verdict = judge_run(facts(point, records=records, shared=shared))
    assert find_severity(verdict, "unasked_cache_hits") == said
    for reason in verdict.reasons:
        if reason.code == "unasked_cache_hits":
            assert all(way in reason.message for way in ("--cycles 1", "shuffle", "restart", "lab"))
            assert "workload.seed" not in reason.message


def test_engine_warnings_reach_the_verdict() -> None:
    warning = "batching.strategy continuous is not possible: it has an encoder; batching is dynamic"
    verdict = judge_run(facts(server=ServerFacts(is_enginebay=True, warnings=[warning])))
    (reason,) = verdict.reasons
    assert (reason.code, reason.severity, reason.message) == (
        "engine_warned",
        "informative",
        f"the engine warns: {warning}",
    )
    assert find_severity(judge_run(facts(server=ServerFacts(is_enginebay=True))), "engine_warned") == "fine"
    assert find_severity(judge_run(facts()), "engine_warned") == "unchecked"  # other servers report no warnings


@pytest.mark.parametrize(
    ("varied", "warning", "said"),
    [
        ("batching.strategy", "batching.strategy continuous is not possible: it has an encoder", "invalid"),
        ("dtype", "dtype: fp8 is not known", "invalid"),
        ("dtype", "kv_cache_dtype: fp8 needs a GPU", "informative"),
        ("batching", "batching.strategy continuous is not possible", "informative"),
        ("max_num_seqs", "cpu_kvcache_space_gib: only counts on a CPU; see max_num_seqs", "informative"),
    ],
)
def test_an_engine_warning_about_a_varied_setting(varied: str, warning: str, said: str) -> None:
    context = RunContext(CEILING, varied=[varied])
    verdict = judge_run(facts(context=context, server=ServerFacts(is_enginebay=True, warnings=[warning])))
    assert find_severity(verdict, "engine_warned") == said

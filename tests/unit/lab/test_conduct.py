"""One whole run against the built-in server, with a meter whose joules are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginebay.lab import observing
from enginebay.lab.client.ceiling import Ceiling, known_server
from enginebay.lab.conduct import Bench, conduct
from enginebay.lab.parity import Answer
from enginebay.lab.points import Point
from enginebay.lab.references import Reference
from enginebay.lab.runs.reader import Run, load_run
from enginebay.lab.runs.study import Step
from enginebay.lab.workload.byte_tokenizer import NAME, ByteTokenizer
from enginebay.meters.replay import PowerTrace, ReplayMeter
from enginebay.meters.sample import Absent

TTFT_S, ITL_S, TOKENS, REQUESTS = 0.5, 0.125, 5, 2
WATTS = 200.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with known_server(TTFT_S, ITL_S) as found:
        yield found


def run(url: str, folder: Path, **given: Any) -> Run:
    """One request after the other."""
    point = Point("p", "", "known", {"kind": "synthetic", "input_tokens": 8, "output_tokens": TOKENS},
                  {"kind": "closed", "concurrency": 1}, {"requests": REQUESTS}, url=url, warmup=False, parity=False,
                  tokenizer=NAME)  # fmt: skip
    bench = Bench(runs=folder, study_id="s", ceiling=Ceiling(1e6, 1e5, 1), cycles=given.pop("cycles", None),
                  tokenizer=lambda path: ByteTokenizer())  # fmt: skip
    return load_run(conduct(bench, point, Step(0, 1, "p"), **given))


def test_the_energy_of_a_run_is_told_apart_by_phase(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power stands still, so each phase's joules are its seconds."""
    meter = ReplayMeter(PowerTrace(((0.0, WATTS),)))
    monkeypatch.setattr(observing, "find_meters", lambda trees: ([meter], []))
    found = run(url, tmp_path)
    measures, records = found.measures, found.records()
    seconds = {
        "prefill_energy_j": sum((one.first_s or 0) - one.sent_s for one in records),
        "decode_energy_j": sum((one.end_s or 0) - (one.first_s or 0) for one in records),
    }
    for name, phase_s in seconds.items():
        assert measures[name] == pytest.approx(WATTS * phase_s, rel=0.001)
    assert seconds["prefill_energy_j"] >= REQUESTS * TTFT_S
    phases = sum(measures[name] for name in (*seconds, "idle_phase_energy_j"))
    assert phases == pytest.approx(measures["energy_j"], rel=0.001)
    assert measures["decode_j_per_output_token"] == pytest.approx(measures["decode_energy_j"] / REQUESTS / TOKENS)


def test_without_a_meter_phases_are_absent_and_the_rest_is_judged(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "find_meters", lambda trees: ([], [Absent("nvml", "no GPU here")]))
    reference = Reference(1, "other", [Answer((1,), ("a",))])
    found = run(url, tmp_path, cycles=1, reference=reference)
    assert found.measures["absent"]["prefill_energy_j"] == "no energy was read"
    verdict = found.manifest["verdict"]
    assert {"too_few_cycles", "client_saturated"} <= set(verdict["checked"])
    assert [one["code"] for one in verdict["reasons"] if one["code"] == "too_few_cycles"]
    assert "parity_broken" in verdict["unchecked"]  # it was not asked for

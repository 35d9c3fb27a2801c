"""One whole run against the calibration server, with a meter of known energy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from enginebay.errors import ConfigError
from enginebay.lab.loadgen.calibration import ClientCeiling, run_calibration_server
from enginebay.lab.measures.parity import ParityAnswer
from enginebay.lab.profiles.profile import PoissonProfile, TraceProfile
from enginebay.lab.store.run_reader import Run, load_run
from enginebay.lab.store.study_plan import StudyStep
from enginebay.lab.study import machine_monitor
from enginebay.lab.study import run_point as run_point_module
from enginebay.lab.study.parity_reference import ParityReference
from enginebay.lab.study.run_point import SETTLE_S, StudyContext, check_ceiling, run_point
from enginebay.lab.study.study_point import StudyPoint
from enginebay.lab.workload.byte_tokenizer import BYTE_TOKENIZER_NAME, ByteTokenizer
from enginebay.lab.workload.request_records import Request
from enginebay.meters.sample import Absent
from tests.unit.meters.replay_meter import PowerTrace, ReplayMeter

TTFT_S, ITL_S, TOKENS, REQUESTS = 0.5, 0.125, 5, 2
WATTS = 200.0


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_calibration_server(TTFT_S, ITL_S) as found:
        yield found


def run(url: str, folder: Path, **given: Any) -> Run:
    """One request after the other."""
    usual = {"workload": {"kind": "synthetic", "input_tokens": 8, "output_tokens": TOKENS}, "warmup": False,
             "parity": False, "limits": {"requests": REQUESTS}}  # fmt: skip
    usual |= {
        name: given.pop(name) for name in ("workload", "warmup", "parity", "limits", "arrivals_seed") if name in given
    }
    point = StudyPoint(
        "p", "", "known", profile={"kind": "closed", "concurrency": 1}, url=url, tokenizer=BYTE_TOKENIZER_NAME, **usual
    )
    context = StudyContext(runs_dir=folder, study_id="s", ceiling=ClientCeiling(1e6, 1e5, 1), cycles=given.pop("cycles", None),
                  load_tokenizer=lambda path: ByteTokenizer())  # fmt: skip
    return load_run(run_point(context, point, StudyStep(0, 1, "p"), **given))


def test_the_energy_of_a_run_is_split_by_phase(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power is constant, so each phase's energy is proportional to its duration."""
    slept = list[float]()
    monkeypatch.setattr(run_point_module, "sleep", lambda seconds: (slept.append(seconds), sleep(seconds)))
    meter = ReplayMeter(PowerTrace(((0.0, WATTS),)))
    monkeypatch.setattr(machine_monitor, "find_meters", lambda *trees, **only: ([meter], []))
    found = run(url, tmp_path)
    assert slept == [
        SETTLE_S,
        run_point_module.IDLE_WITH_ENERGY_S,
    ]  # a GPU's utilisation is a mean over what was before
    measures, records = found.measures, found.read_records()
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
    monkeypatch.setattr(machine_monitor, "find_meters", lambda *trees, **only: ([], [Absent("nvml", "no GPU here")]))
    slept = list[float]()
    monkeypatch.setattr(run_point_module, "sleep", slept.append)
    reference = ParityReference(1, "other", [ParityAnswer((1,), ("a",))])
    found = run(url, tmp_path, cycles=1, reference=reference)
    assert found.measures["absent"]["prefill_energy_j"] == "no energy was read"
    verdict = found.manifest["verdict"]
    assert {"too_few_cycles", "client_saturated"} <= set(verdict["checked"])
    assert [one["code"] for one in verdict["reasons"] if one["code"] == "too_few_cycles"]
    assert "parity_broken" in verdict["unchecked"]  # it was not asked for
    assert slept == [run_point_module.IDLE_S]


@pytest.fixture
def no_meters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_monitor, "find_meters", lambda *trees, **only: ([], []))
    monkeypatch.setattr(run_point_module, "sleep", lambda seconds: None)


def lines(folder: Path, count: int) -> dict[str, Any]:
    file = folder / "prompts.jsonl"
    file.write_text(
        "\n".join(json.dumps({"prompt": f"prompt {number}", "output_tokens": 1}) for number in range(count))
    )
    return {"kind": "jsonl", "path": str(file)}


@pytest.fixture
def sent_prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Record the prompts of parity, warm-up and the measured requests."""
    prompts = list[list[Any]]()
    original = run_point_module.run_loadgen

    def record_loadgen(orders: Any, requests: Sequence[Request], *more: Any) -> Any:
        prompts.append([request.prompt for request in requests])
        return original(orders, requests, *more)

    def record_parity(target: Any, requests: Sequence[Request], plan: Any) -> list[ParityAnswer]:
        prompts.append([request.prompt for request in requests])
        return []

    monkeypatch.setattr(run_point_module, "run_loadgen", record_loadgen)
    monkeypatch.setattr(run_point_module, "ask_parity_prompts", record_parity)
    return prompts


def test_a_file_with_fewer_lines_than_warm_up_and_parity_would_send_is_measured(
    url: str, tmp_path: Path, no_meters: None, sent_prompts: list[list[Any]]
) -> None:
    found = run(url, tmp_path, workload=lines(tmp_path, 2), warmup=None, parity=None, limits={})
    assert [one.error for one in found.read_records()] == [None, None]
    assert sent_prompts == [["prompt 0", "prompt 1"]] * 3


def test_the_measured_lines_of_a_file_were_not_sent_before(
    url: str, tmp_path: Path, no_meters: None, sent_prompts: list[list[Any]]
) -> None:
    file = {**lines(tmp_path, 9), "shuffle": True}
    run(url, tmp_path, workload=file, warmup={"requests": 3}, parity={"prompts": 4})
    parity, warmup, load = sent_prompts
    assert (len(parity), len(warmup), len(load)) == (4, 3, REQUESTS)
    assert len({*parity, *warmup, *load}) == 9


def test_a_server_that_fails_at_parity_is_measured_without_it(url: str, tmp_path: Path, no_meters: None) -> None:
    """The calibration server always streams, which is not a valid parity answer."""
    found = run(url, tmp_path, workload=lines(tmp_path, 2), parity={"tokens": 1})
    assert "failed a simple request" in found.manifest["absent"]["parity"]
    assert [one.error for one in found.read_records()] == [None, None]
    assert "parity_broken" in found.manifest["verdict"]["unchecked"]


def test_arrivals_have_their_own_seed(url: str, tmp_path: Path, no_meters: None) -> None:
    found = run(url, tmp_path, workload=lines(tmp_path, 2), arrivals_seed=40)
    assert found.manifest["seeds"] == {"requests": 1, "arrivals": 41}
    assert found.manifest["config"]["traffic_simulation"] == {"seed": 40}


def test_the_ceiling_applies_to_the_busiest_second_of_a_trace() -> None:
    ceiling = ClientCeiling(tokens_per_s=100.0, requests_per_s=10.0, processes=1)
    burst = [number / 20 for number in range(15)]
    check_ceiling(ceiling, TraceProfile(), [float(number) for number in range(100)], 90.0)
    with pytest.raises(ConfigError, match="15 requests/s is above"):
        check_ceiling(ceiling, TraceProfile(), burst, 1.0)
    check_ceiling(ceiling, TraceProfile(), burst[:9], 100.0)  # 900 tokens, which come over more than that second
    with pytest.raises(ConfigError, match="tokens/s"):
        check_ceiling(ceiling, TraceProfile(), [float(number) for number in range(100)], 110.0)
    with pytest.raises(ConfigError, match="11 requests/s"):
        check_ceiling(ceiling, PoissonProfile(11.0), [0.0], 1.0)

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from enginebay.lab.measures.energy_figures import EnergyPhases
from enginebay.lab.measures.flat_figures import better_direction, flatten_figures
from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.workload.request_records import Record

# Two answers in 10 s: the second left 0.5 s late.
FIRST = Record(
    0,
    1.0,
    1.0,
    first_s=1.2,
    last_s=3.2,
    end_s=3.3,
    input_tokens=100,
    output_tokens=11,
    events=3,
    queue_s=0.05,
    cached_tokens=64,
)
SECOND = Record(1, 2.0, 2.5, first_s=2.9, last_s=6.9, end_s=7.0, input_tokens=50, output_tokens=41, events=3)
FAILED = Record(2, 4.0, 4.0, end_s=4.5, error="status", status=503)
RECORDS = [FIRST, SECOND, FAILED]
TOKENS = {0: [1.2, 2.2, 3.2], 1: [2.9, 3.9, 6.9]}


@dataclass(frozen=True)
class Use:
    total_j: float | None
    idle_j: float | None = None
    active_j: float | None = None
    devices: tuple[str, ...] = ()


def test_latencies_are_given_from_the_actual_and_the_intended_send_time() -> None:
    found = compute_measures(RECORDS, TOKENS, 10.0)
    assert found["ttft_s"]["mean"] == pytest.approx((0.2 + 0.4) / 2)
    assert found["ttft_from_intended_s"]["mean"] == pytest.approx((0.2 + 0.9) / 2)
    assert found["e2e_s"]["maximum"] == pytest.approx(4.5)
    assert found["e2e_from_intended_s"]["maximum"] == pytest.approx(5.0)
    assert found["tpot_s"]["minimum"] == pytest.approx(4.0 / 40)
    assert found["tpot_s"]["maximum"] == pytest.approx(2.0 / 10)
    assert (found["queue_s"]["count"], found["queue_s"]["mean"]) == (1, 0.05)
    assert found["send_lag_s"]["count"] == 3
    assert found["send_lag_s"]["maximum"] == pytest.approx(0.5)


def test_gaps_are_those_inside_each_answer() -> None:
    found = compute_measures(RECORDS, TOKENS, 10.0)["itl_s"]
    assert found["count"] == 4
    assert found["mean"] == pytest.approx((1 + 1 + 1 + 3) / 4)
    assert found["maximum"] == pytest.approx(3.0)


def test_rates_count_tokens_by_the_servers_usage() -> None:
    found = compute_measures(RECORDS, TOKENS, 10.0)
    assert found["input_tokens_per_s"] == pytest.approx(15.0)
    assert found["output_tokens_per_s"] == pytest.approx(5.2)
    assert found["total_tokens_per_s"] == pytest.approx(20.2)
    assert found["requests_per_s"] == pytest.approx(0.2)
    assert found["output_tokens_per_event"] == pytest.approx(52 / 6)
    assert found["cached_input_tokens"] == 64


def test_a_failed_request_is_counted_and_adds_no_tokens() -> None:
    failed = replace(FIRST, index=5, error="closed")
    found = compute_measures([*RECORDS, failed], {**TOKENS, 5: [1.2, 99.0]}, 10.0)
    assert (found["requests"], found["answered"], found["errors"]) == (4, 2, 2)
    assert found["errors_by_code"] == {"closed": 1, "status": 1}
    assert found["output_tokens"] == 52
    assert found["itl_s"]["count"] == 4


def test_an_answer_that_ends_after_the_window_has_latencies_and_no_share_in_its_rates() -> None:
    found = compute_measures(RECORDS, TOKENS, 5.0)
    assert (found["answered"], found["answered_in_window"]) == (2, 1)
    assert found["output_tokens_per_s"] == pytest.approx(11 / 5)
    assert found["ttft_s"]["count"] == 2


def test_a_window_that_ends_with_the_last_answer_holds_it() -> None:
    assert compute_measures(RECORDS, TOKENS, 7.0 - 1e-9)["answered_in_window"] == 2


def test_a_request_that_was_never_sent_has_no_lag() -> None:
    unsent = Record(3, 9.0, 0.0, error="unsent")
    assert compute_measures([*RECORDS, unsent], TOKENS, 10.0)["send_lag_s"]["count"] == 3


def test_goodput_counts_what_keeps_the_limits() -> None:
    found = compute_measures(RECORDS, TOKENS, 10.0, slo={"ttft_s": 0.5})
    assert found["goodput_requests_per_s"] == pytest.approx(0.1)
    assert found["goodput_output_tokens_per_s"] == pytest.approx(1.1)
    assert found["goodput_share"] == pytest.approx(1 / 3)
    assert "slo_met" not in found
    assert "slo_met" in found["absent"]


def test_an_objective_is_met_or_missed_by_name() -> None:
    assert compute_measures(RECORDS, TOKENS, 10.0, slo={"ttft_p50": 1.0})["slo_met"] is True
    found = compute_measures(RECORDS, TOKENS, 10.0, slo={"ttft_p95": 1.0})
    assert found["slo_met"] is False
    assert found["slo_missed"] == {"ttft_p95": pytest.approx(2 / 3)}


PHASES = EnergyPhases({"idle": 920.0, "prefill": 300.0, "decode": 340.0})


def test_joules_per_token_are_of_the_whole_window() -> None:
    energy = {"gpu": Use(1040.0, 400.0, 640.0, ("gpu:1", "gpu:3")), "cpu": Use(520.0)}
    found = compute_measures(RECORDS, TOKENS, 10.0, {"ttft_s": 0.5}, energy, phases=PHASES)
    assert found["energy_of"] == "cpu+gpu:1+gpu:3"
    assert found["energy_j"] == pytest.approx(1560.0)
    assert found["j_per_output_token"] == pytest.approx(30.0)
    assert found["gpu_j_per_output_token"] == pytest.approx(20.0)
    assert found["gpu_j_per_total_token"] == pytest.approx(1040 / 202)
    assert found["gpu_j_per_good_token"] == pytest.approx(1040 / 11)
    assert (found["gpu_idle_energy_j"], found["gpu_active_energy_j"]) == (400.0, 640.0)
    assert (found["idle_phase_energy_j"], found["prefill_energy_j"], found["decode_energy_j"]) == (920.0, 300.0, 340.0)
    assert found["prefill_j_per_input_token"] == pytest.approx(2.0)
    assert found["decode_j_per_output_token"] == pytest.approx(340 / 52)
    assert "cpu_idle_energy_j" not in found


def test_the_processors_joules_do_not_pass_for_the_whole() -> None:
    energy = {"gpu": Use(None, devices=("gpu:1",)), "cpu": Use(520.0)}
    found = compute_measures(RECORDS, TOKENS, 10.0, None, energy, phases=PHASES)
    assert found["cpu_j_per_output_token"] == pytest.approx(10.0)
    told = {name: why for name, why in found["absent"].items() if why == "the energy of gpu:1 could not be read"}
    assert {"energy_j", "j_per_output_token", "decode_energy_j", "prefill_j_per_input_token"} <= set(told)
    assert not {"energy_j", "energy_of", "j_per_output_token", "decode_energy_j"} & set(found)


def test_a_million_tokens_cost_what_the_machine_costs_meanwhile() -> None:
    found = compute_measures(RECORDS, TOKENS, 10.0, price=3.6)
    assert found["cost_per_million_output_tokens"] == pytest.approx(0.01 / 52 * 1e6)
    assert found["cost_per_million_total_tokens"] == pytest.approx(0.01 / 202 * 1e6)


def test_unknown_figures_are_absent_with_a_reason() -> None:
    found = compute_measures(
        [SECOND], {}, 10.0, energy={"gpu": Use(None)}, absent={"gpu_energy_j": "no GPU here", "ttft_s": "stale"}
    )
    absent = found["absent"]
    assert absent["queue_s"] == "the server does not report queue times"
    assert absent["itl_s"] == "no response arrived in more than one piece"
    assert absent["j_per_output_token"] == "no energy was read"
    assert absent["cost_per_million_output_tokens"] == "no price is set"
    assert absent["goodput_requests_per_s"] == "no SLO is set"
    assert absent["gpu_energy_j"] == "no GPU here"
    assert not set(absent) & set(found)


def test_tokens_that_a_server_does_not_count_make_no_rate() -> None:
    found = compute_measures([FIRST, replace(SECOND, input_tokens=None)], TOKENS, 10.0, price=1.0)
    assert {"input_tokens_per_s", "total_tokens_per_s", "cost_per_million_total_tokens"} <= set(found["absent"])
    assert found["output_tokens_per_s"] == pytest.approx(5.2)


@pytest.mark.parametrize("records", [[], [FAILED], [Record(0, 0.0, 0.0, error="unsent")]])
def test_a_run_without_answers_has_no_latencies(records: list[Record]) -> None:
    found = compute_measures(records, {}, 10.0, slo={"ttft_p95": 1.0}, energy={"gpu": Use(5.0)}, price=1.0)
    assert found["output_tokens_per_s"] == 0
    assert "ttft_s" in found["absent"]
    assert "j_per_output_token" in found["absent"]
    assert found.get("slo_met") is not True


@pytest.mark.parametrize("window_s", [0.0, -1.0, float("nan")])
def test_a_window_must_be_positive(window_s: float) -> None:
    with pytest.raises(ValueError, match="window_s must be above 0"):
        compute_measures(RECORDS, TOKENS, window_s)


def test_measures_are_plain_data() -> None:
    found = compute_measures(RECORDS, TOKENS, 10.0, {"ttft_p95": 1.0}, {"gpu": Use(5.0)}, 1.0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_figures_have_dotted_names() -> None:
    measures: dict[str, Any] = {
        "a": {"p95": 1, "count": 2},
        "b": 3.5,
        "slo_met": True,
        "energy_of": "gpu",
        "absent": {"c": "x"},
    }
    assert flatten_figures(measures) == {"a.p95": 1.0, "a.count": 2.0, "b": 3.5}


@pytest.mark.parametrize(
    ("figure", "direction"),
    [
        ("output_tokens_per_s", "higher"), ("goodput_share", "higher"), ("requests_per_s", "higher"),
        ("ttft_from_intended_s.p95", "lower"), ("itl_s.mean", "lower"), ("gpu_j_per_good_token", "lower"),
        ("energy_j", "lower"), ("gpu_energy_j", "lower"), ("cost_per_million_total_tokens", "lower"), ("errors", "lower"),
        ("ttft_s.count", None), ("requests", None), ("window_s", None), ("output_tokens", None),
    ],
)  # fmt: skip
def test_which_way_a_figure_is_better(figure: str, direction: str | None) -> None:
    assert better_direction(figure) == direction

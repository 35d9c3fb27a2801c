"""Energy by phase, from what requests were waiting for."""

from __future__ import annotations

import pytest

from enginebay.lab.measures.energy_figures import EnergyPhases
from enginebay.lab.measures.energy_phases import build_phase_timeline, split_energy_by_phase
from enginebay.lab.measures.run_measures import compute_measures
from enginebay.lab.workload.request_records import Record
from enginebay.meters.analysis.phase_energy import merge_intervals
from enginebay.meters.analysis.window_energy import WindowEnergy
from enginebay.meters.analysis.window_energy import measure_energy as measure_energy
from enginebay.meters.sample import Sample
from tests.unit.meters.replay_meter import PowerTrace
from tests.unit.meters.trace_playback import GPU, make_sample_times, play_trace

ZERO_S = 5.0  # the window begins so long after the meter
WINDOW_S = 260.0
END_S = ZERO_S + WINDOW_S + 5.0
# Two requests one after the other, each first read and then written, with a pause between them.
ALONE = [
    Record(0, 0.0, 0.0, 40.0, 100.0, 100.0, 1000, 300, events=300),
    Record(1, 160.0, 160.0, 200.0, 260.0, 260.0, 500, 300, events=300),
]
COURSE = ((0.0, 600.0), (40.0, 350.0), (100.0, 100.0), (160.0, 600.0), (200.0, 350.0), (260.0, 100.0))
TRACE = PowerTrace(((0.0, 100.0), *((ZERO_S + start_s, watts) for start_s, watts in COURSE)))
JOULES = {"idle": 60 * 100.0, "prefill": 80 * 600.0, "decode": 120 * 350.0}


def energies(samples: list[Sample], *devices: str) -> dict[str, WindowEnergy]:
    return {device: measure_energy(samples, device, ZERO_S, ZERO_S + WINDOW_S) for device in devices}


def test_a_request_waits_for_its_first_token_and_then_writes() -> None:
    told = [(one.start_s, one.end_s, one.label) for one in merge_intervals(build_phase_timeline(ALONE, WINDOW_S))]
    assert told == [
        (0.0, 40.0, "prefill"), (40.0, 100.0, "decode"), (100.0, 160.0, "idle"), (160.0, 200.0, "prefill"),
        (200.0, 260.0, "decode"),
    ]  # fmt: skip


def test_one_that_waits_makes_it_prefill_whatever_the_others_do() -> None:
    late = Record(2, 50.0, 50.0, 60.0, 70.0, 70.0, 10, 10, events=10)
    told = [
        (one.start_s, one.end_s, one.label) for one in merge_intervals(build_phase_timeline([ALONE[0], late], 110.0))
    ]
    assert told == [
        (0.0, 40.0, "prefill"), (40.0, 50.0, "decode"), (50.0, 60.0, "mixed"), (60.0, 100.0, "decode"),
        (100.0, 110.0, "idle"),
    ]  # fmt: skip


def test_one_that_failed_waited_to_its_end_and_one_that_never_left_did_not() -> None:
    failed = Record(0, 0.0, 1.0, end_s=4.0, error="closed")
    never = Record(1, 0.0, 0.0, end_s=9.0, error="connect")
    told = [(one.start_s, one.end_s, one.label) for one in build_phase_timeline([failed, never], 10.0)]
    assert told == [(0.0, 1.0, "idle"), (1.0, 4.0, "prefill"), (4.0, 10.0, "idle")]


def test_what_reaches_beyond_the_window_is_cut() -> None:
    beyond = Record(0, 0.0, -0.5, 12.0, 15.0, 15.0, 1, 1, events=1)
    assert [(one.start_s, one.end_s, one.label) for one in build_phase_timeline([beyond], 10.0)] == [
        (0.0, 10.0, "prefill")
    ]
    assert [one.label for one in build_phase_timeline([], 10.0)] == ["idle"]


@pytest.mark.parametrize("period_s", [0.0, 0.1])
def test_a_known_trace_gives_the_joules_of_each_phase(period_s: float) -> None:
    samples = play_trace(TRACE, make_sample_times(END_S), period_s=period_s)
    found = split_energy_by_phase(samples, energies(samples, GPU), ALONE, ZERO_S, WINDOW_S)
    assert found.joules == pytest.approx(JOULES, rel=0.001)
    assert found.mixed == 0.0 and not found.why


def test_the_phases_of_all_devices_add_up_to_the_whole() -> None:
    cpu = play_trace(PowerTrace(((0.0, 50.0),)), make_sample_times(END_S, seed=2), device="cpu:package-0")
    samples = [*play_trace(TRACE, make_sample_times(END_S)), *cpu]
    used = energies(samples, GPU, "cpu:package-0")
    found = split_energy_by_phase(samples, used, ALONE, ZERO_S, WINDOW_S)
    assert found.joules["idle"] == pytest.approx(JOULES["idle"] + 60 * 50.0, rel=0.001)
    assert sum(found.joules.values()) == pytest.approx(sum(one.total_j or 0.0 for one in used.values()), rel=1e-6)


def test_the_figures_are_among_the_measures() -> None:
    samples = play_trace(TRACE, make_sample_times(END_S))
    used = energies(samples, GPU)
    phases = split_energy_by_phase(samples, used, ALONE, ZERO_S, WINDOW_S)
    found = compute_measures(ALONE, {}, WINDOW_S, energy={"gpu": used[GPU]}, phases=phases)
    assert found["prefill_energy_j"] == pytest.approx(JOULES["prefill"], rel=0.001)
    assert found["decode_energy_j"] == pytest.approx(JOULES["decode"], rel=0.001)
    assert found["idle_phase_energy_j"] == pytest.approx(JOULES["idle"], rel=0.001)
    assert found["prefill_j_per_input_token"] == pytest.approx(JOULES["prefill"] / 1500, rel=0.001)
    assert found["decode_j_per_output_token"] == pytest.approx(JOULES["decode"] / 600, rel=0.001)


def test_a_phase_that_did_not_occur_drew_nothing() -> None:
    samples = play_trace(TRACE, make_sample_times(END_S))
    found = split_energy_by_phase(
        samples, energies(samples, GPU), [Record(0, 0.0, 0.0, end_s=100.0, error="stalled")], 5.0, 100.0
    )
    assert found.joules["decode"] == found.joules["idle"] == 0.0 and found.joules["prefill"] > 0


def test_phases_that_take_turns_too_fast_for_the_meter_are_absent_with_the_reason() -> None:
    quick = [Record(n, n / 10, n / 10, n / 10 + 0.05, n / 10 + 0.1, n / 10 + 0.1, 1, 2, events=2) for n in range(2600)]
    samples = play_trace(TRACE, make_sample_times(END_S), period_s=0.1)
    used = energies(samples, GPU)
    found = split_energy_by_phase(samples, used, quick, ZERO_S, WINDOW_S)
    assert not found.joules and found.why.startswith("gpu:0: ") and "phases shorter than" in found.why
    absent = compute_measures(quick, {}, WINDOW_S, energy={"gpu": used[GPU]}, phases=found)["absent"]
    for name in ("prefill_energy_j", "decode_energy_j", "idle_phase_energy_j", "decode_j_per_output_token"):
        assert absent[name] == found.why


def test_without_joules_there_are_no_phases() -> None:
    assert split_energy_by_phase([], {}, ALONE, ZERO_S, WINDOW_S) == EnergyPhases(why="no energy was read")
    found = compute_measures(ALONE, {}, WINDOW_S)
    assert found["absent"]["prefill_energy_j"] == "no energy was read"


def test_prefill_that_overlaps_decoding_has_no_joules_per_token() -> None:
    both = [*ALONE, Record(2, 4.0, 4.0, 8.0, 60.0, 60.0, 100, 100, events=100)]  # writes while the first is read
    samples = play_trace(TRACE, make_sample_times(END_S))
    used = energies(samples, GPU)
    phases = split_energy_by_phase(samples, used, both, ZERO_S, WINDOW_S)
    assert phases.mixed == pytest.approx(32 / 80)
    found = compute_measures(both, {}, WINDOW_S, energy={"gpu": used[GPU]}, phases=phases)
    assert found["prefill_energy_j"] == pytest.approx(JOULES["prefill"], rel=0.001)
    assert "prefill_j_per_input_token" not in found
    assert found["absent"]["decode_j_per_output_token"].endswith("during 40% of the prefill time")

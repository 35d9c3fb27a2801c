from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.fleet.lifecycle.switch_history import PHASES, Switch, SwitchHistory


def switch(model: str = "b", loaded_from: str = "cold", **phases: float) -> Switch:
    named = {name.rstrip("_"): taken for name, taken in phases.items()}
    return Switch(1000.0, model, "vllm", loaded_from, ("a",), named, slo_s=60.0)


def test_total_and_slowest_phase() -> None:
    one = switch(drain=1, load=50, capture=8.5)
    assert (
        one.total_s == 59.5
        and one.met_slo
        and one.find_slowest_phase() == ("load", 50)
        and one.format_slo_warning() is None
    )
    assert switch(load=60).met_slo, "the objective itself is met"


def test_a_missed_slo_names_the_slowest_phase_and_gives_advice() -> None:
    warning = switch(drain=1, import_=45, load=20).format_slo_warning()
    assert warning is not None
    for word in ("b on vllm", "cold", "replacing a", "66.0 s", "switch_slo_s 60", "import took 45.0 s", "standby"):
        assert word in warning
    assert "\n" not in warning
    unknown = Switch(0, "b", "x", "cold", (), {"bake": 70}).format_slo_warning()
    assert unknown is not None and unknown.endswith("bake took 70.0 s")


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_advice(phase: str) -> None:
    warning = Switch(0, "b", "x", "cold", (), {phase: 70}).format_slo_warning()
    assert warning is not None and "; " in warning


def test_a_switch_without_phases() -> None:
    empty = Switch(0.0, "b", "fake", "asleep")
    assert (
        empty.total_s == 0
        and empty.met_slo
        and empty.find_slowest_phase() == ("", 0.0)
        and empty.to_json()["slowest"] is None
    )


@given(st.dictionaries(st.sampled_from([*PHASES, "other"]), st.integers(0, 500).map(float)), st.integers(0, 100))
def test_json_and_back(phases: dict[str, float], slo: int) -> None:
    one = Switch(1.5, "b", "vllm", "standby", ("a", "c"), phases, float(slo))
    data = json.loads(json.dumps(one.to_json()))
    assert Switch.from_json(data) == one
    assert data["met"] == one.met_slo and data["total_s"] == one.total_s
    assert [name for name in data["phases"] if name in PHASES] == [name for name in PHASES if name in phases]


def test_only_the_latest_are_kept() -> None:
    switches = SwitchHistory(kept=3)
    assert switches.last is None and switches.compute_means() == {}
    for number in range(5):
        switches.add(switch(model=f"m{number}", load=1))
    assert [one.model for one in switches] == ["m2", "m3", "m4"] and len(switches) == 3
    assert switches.last is not None and switches.last.model == "m4"


def test_the_first_token_is_added_when_it_comes() -> None:
    switches = SwitchHistory()
    first, second = switch(load=59), switch(model="c", load=2)
    switches.add(first)
    switches.add(second)
    updated = switches.add_phase(first, "first_token", 2.0)
    assert updated.total_s == 61 and not updated.met_slo and list(updated.phases) == ["load", "first_token"]
    assert list(switches) == [updated, second] and switches.count_missed() == 1
    switches.add_phase(first, "drain", 1.0)
    assert list(switches) == [updated, second], "a record that is no longer kept changes nothing"


def test_means_by_origin() -> None:
    switches = SwitchHistory()
    for one in (switch(load=10), switch(load=20), switch(loaded_from="asleep", load=0.5), switch(load=90)):
        switches.add(one)
    assert switches.compute_means() == {"cold": 40.0, "asleep": 0.5}
    data = switches.to_json()
    assert data["mean_s"] == {"cold": 40.0, "asleep": 0.5} and data["missed"] == 1 and len(data["switches"]) == 4

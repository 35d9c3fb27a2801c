"""The switching benchmark's configuration, and when its targets are met."""

from __future__ import annotations

import json
from pathlib import Path

from bench.gpu.model_switching import SwitchMeasurement, build_config, judge_switches
from enginebay.config.loader import load_config

RECORD = {"from": "asleep", "replaced": ["first"], "phases": {"free": 0.4, "load": 0.85, "first_token": 0.02}}


def met(*measurements: SwitchMeasurement) -> list[bool]:
    return [verdict for _, verdict in judge_switches(measurements, switches=2)]


def test_the_configuration_lets_one_be_awake(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for standby in (False, True):
        built = build_config({"max_model_len": 2048}, tmp_path, "auto", standby)
        file.write_text(json.dumps(built))
        config = load_config(file)
        assert (config.fleet.max_awake, config.fleet.min_residency_s) == (1, 0)
        assert config.fleet.standby == (("vllm",) if standby else ())
        assert list(config.models) == ["first", "second"]


def test_time_outside_all_phases_is_shown() -> None:
    one = SwitchMeasurement("asleep", "second", 1.3, RECORD)
    assert round(one.rest_s, 3) == 0.03
    assert one.format_line().endswith("free 0.400, load 0.850, first token 0.020, rest 0.030  (replaced first)")
    assert one.to_json()["switch"] == RECORD


def test_every_switch_must_be_fast_and_there_must_be_enough() -> None:
    fast, slow = SwitchMeasurement("asleep", "first", 1.49, RECORD), SwitchMeasurement("asleep", "first", 1.5, RECORD)
    spare, late = (
        SwitchMeasurement("standby", "first", 44.0, RECORD),
        SwitchMeasurement("standby", "first", 45.0, RECORD),
    )
    assert met(fast, fast, spare, spare) == [True, True]
    assert met(fast, slow, spare, late) == [False, False]
    assert met(fast, spare) == [False, False]
    assert met() == [False, False]
    pinning = SwitchMeasurement("first sleep", "first", 12.0, RECORD)
    assert met(pinning, fast, fast, spare, spare) == [True, True]

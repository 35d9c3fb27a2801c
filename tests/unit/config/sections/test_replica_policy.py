"""The `replicas` key of a model."""

from __future__ import annotations

from typing import Any

import pytest

from enginebay.config.config_dump import to_json
from enginebay.config.entries.value_coercion import InvalidValue
from enginebay.config.sections.replica_policy import MAX_REPLICAS, ReplicaPolicy, parse_replicas
from tests.unit.config.sections.test_fleet_section import accepts, refusal


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, ReplicaPolicy(2, 2)),
        ({"max": 4}, ReplicaPolicy(1, 4, None, 300.0)),
        ({"min": 0, "max": 8, "target_running": 64, "idle_s": 5}, ReplicaPolicy(0, 8, 64, 5.0)),
        ({"min": 3}, ReplicaPolicy(3, 3, None, 300.0)),
        ({"max": 2, "idle_s": "5m"}, ReplicaPolicy(1, 2, None, 300.0)),
    ],
)
def test_replicas_are_parsed(value: object, expected: ReplicaPolicy) -> None:
    assert parse_replicas(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "replicas is 0; it must be from 1 to 256"),
        (MAX_REPLICAS + 1, "it must be from 1 to 256"),
        ({"min": 3, "max": 2}, "min is 3, but max is 2; min must not exceed max"),
        ({"min": -1}, "min is -1; it must be from 0"),
        ({"max": 0}, "max is 0; it must be from 1"),
        ({"max": 2, "target_running": 0}, "target_running is 0"),
        ({"max": "many"}, "max: expected a whole number, got 'many'"),
        ({"max": 2, "idle_s": -1}, "idle_s: expected seconds"),
        ({"maximum": 2}, "unknown key 'maximum'; available: min, max, target_running, idle_s"),
    ],
)
def test_bad_replicas_are_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        parse_replicas(value)


def test_the_key_of_a_model(load: Any, specs: Any) -> None:
    text = "models: {a: {engine: fast}, b: {engine: fast, replicas: 3}, c: {engine: fast, replicas: {min: 0, max: 4}}}"
    config = load(text)
    assert [model.replicas for model in config.models.values()] == [
        None, ReplicaPolicy(3, 3), ReplicaPolicy(0, 4, None, 300.0)
    ]  # fmt: skip
    assert accepts(specs, text)
    assert to_json(config)["config"]["models"]["c"]["replicas"] == {"min": 0, "max": 4}


def test_a_bad_key_is_named(load: Any) -> None:
    assert "models.a.replicas: min is 3, but max is 2" in refusal(
        load, "models: {a: {engine: fast, replicas: {min: 3, max: 2}}}"
    )
    assert "models.a.replicas: expected a whole number or a mapping" in refusal(
        load, "models: {a: {engine: fast, replicas: two}}"
    )


def test_a_model_cannot_have_the_name_of_a_replica(load: Any) -> None:
    clash = 'models: {{a: {{source: smollm2, replicas: {count}}}, "a#2": {{source: smollm2}}}}'
    assert "a#2 is also the name of a replica of a" in refusal(load, clash.format(count=2))
    assert list(load(clash.format(count=1)).models) == ["a", "a#2"]

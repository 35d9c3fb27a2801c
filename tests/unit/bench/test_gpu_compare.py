"""The order of a comparison's runs, its prompts, its time, and its table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.gpu.compare import Work, blocks, enough_time, server_key, with_own_prompts
from enginebay.lab.points import Point, steps
from enginebay.lab.references import References
from enginebay.lab.runs.study import Study


def point(engine: str, streams: int, **given: object) -> Point:
    profile = {"kind": "closed", "concurrency": streams}
    known = {"serve": {engine: {}}, "seed": 1, **given}
    return Point(f"{engine} c{streams}", engine, "m", {"kind": "synthetic"}, profile, **known)  # type: ignore[arg-type]


def work(name: str, loads: tuple[int, ...], cycles: int = 2) -> Work:
    points = [point(engine, streams) for engine in ("a", "b") for streams in loads]
    study = Study(name, "", tuple(steps([one.label for one in points], cycles)))
    return Work(study, points, References(points, {}))


def test_one_load_after_the_other_in_all_its_cycles_every_second_backwards() -> None:
    order = blocks([work("s", (64, 1))])
    assert [[(step.label, step.cycle) for step in block.steps] for block in order] == [
        [("a c64", 1), ("b c64", 1), ("b c64", 2), ("a c64", 2)],
        [("a c1", 1), ("b c1", 1), ("b c1", 2), ("a c1", 2)],
    ]


def test_the_first_load_of_every_study_goes_before_the_second_of_any() -> None:
    order = blocks([work("s", (256, 1)), work("t", (64,))])
    assert [(block.work.study.id, block.steps[0].label) for block in order] == [
        ("s", "a c256"), ("t", "a c64"), ("s", "a c1"),
    ]  # fmt: skip


def test_a_load_has_the_same_prompts_on_all_engines_and_no_other_load_has_them() -> None:
    found = with_own_prompts([point("a", 64), point("a", 1), point("b", 64), point("b", 1)])
    assert found[0].seed == found[2].seed and found[1].seed == found[3].seed
    cycles = range(1, 10)
    first, second = ({one.seeds(cycle)["requests"] for cycle in cycles} for one in found[:2])
    assert not first & second


def test_loads_share_a_server_and_settings_do_not() -> None:
    assert server_key(point("a", 64)) == server_key(point("a", 1))
    assert server_key(point("a", 64)) != server_key(replace(point("a", 64), serve={"a": {"x": 1}}))


@pytest.mark.parametrize(
    ("left_s", "took_s", "fits"),
    [(26, {}, False), (28, {}, True), (18, {0: 17, 1: 10}, False), (18, {0: 16, 1: 10}, True), (12, {1: 10}, True), (10, {1: 10}, False)],
)  # fmt: skip
def test_a_run_is_begun_only_when_it_can_end(left_s: float, took_s: dict[int, float], fits: bool) -> None:
    assert enough_time(left_s, took_s, 0) is fits

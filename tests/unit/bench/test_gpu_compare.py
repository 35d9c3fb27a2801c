"""The order of a comparison's runs, its prompts, its time, and its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu import compare
from bench.gpu.compare import (
    StudyWork,
    assign_own_seeds,
    has_time_for,
    list_missing_servers,
    order_blocks,
    run_blocks,
    server_key,
)
from bench.gpu.compare_table import build_table
from enginebay.lab.loadgen.calibration import ClientCeiling
from enginebay.lab.store.study_plan import Study
from enginebay.lab.study.parity_reference import ParityReferences
from enginebay.lab.study.study_point import StudyPoint, schedule_steps
from tests.unit.lab.store.run_files import INVALID, write_cycles, write_run


def point(engine: str, streams: int, **changes: object) -> StudyPoint:
    profile = {"kind": "closed", "concurrency": streams}
    fields = {"serve": {engine: {}}, "seed": 1, **changes}
    return StudyPoint(f"{engine} c{streams}", engine, "m", {"kind": "synthetic"}, profile, **fields)  # type: ignore[arg-type]


def work(name: str, loads: tuple[int, ...], cycles: int = 2) -> StudyWork:
    points = [point(engine, streams) for engine in ("a", "b") for streams in loads]
    study = Study(name, "", tuple(schedule_steps([one.label for one in points], cycles)))
    return StudyWork(study, points, ParityReferences(points, {}))


def test_one_load_after_the_other_in_all_its_cycles_every_second_backwards() -> None:
    order = order_blocks([work("s", (64, 1))])
    assert [[(step.label, step.cycle) for step in block.steps] for block in order] == [
        [("a c64", 1), ("b c64", 1), ("b c64", 2), ("a c64", 2)],
        [("a c1", 1), ("b c1", 1), ("b c1", 2), ("a c1", 2)],
    ]


def test_the_first_load_of_every_study_goes_before_the_second_of_any() -> None:
    order = order_blocks([work("s", (256, 1)), work("t", (64,))])
    assert [(block.work.study.id, block.steps[0].label) for block in order] == [
        ("s", "a c256"), ("t", "a c64"), ("s", "a c1"),
    ]  # fmt: skip


def test_a_load_has_the_same_prompts_on_all_engines_and_no_other_load_has_them() -> None:
    points = assign_own_seeds([point("a", 64), point("a", 1), point("b", 64), point("b", 1)])
    assert points[0].seed == points[2].seed and points[1].seed == points[3].seed
    cycles = range(1, 10)
    first, second = ({one.derive_seeds(cycle)["requests"] for cycle in cycles} for one in points[:2])
    assert not first & second


def test_loads_share_a_server_and_settings_do_not() -> None:
    assert server_key(point("a", 64)) == server_key(point("a", 1))
    assert server_key(point("a", 64)) != server_key(replace(point("a", 64), serve={"a": {"x": 1}}))


@pytest.mark.parametrize(
    ("left_s", "took_s", "fits"),
    [(26, {}, False), (28, {}, True), (18, {0: 17, 1: 10}, False), (18, {0: 16, 1: 10}, True), (12, {1: 10}, True), (10, {1: 10}, False)],
)  # fmt: skip
def test_a_run_starts_only_if_it_can_finish(left_s: float, took_s: dict[int, float], fits: bool) -> None:
    assert has_time_for(left_s, took_s, 0) is fits


def test_a_planned_server_that_is_not_up_is_named_once() -> None:
    planned = [point("a", 64), point("a", 1), point("b", 64), point("b", 1)]
    assert list_missing_servers(planned, {server_key(planned[0])}) == ["b (m)"]
    assert list_missing_servers(planned, {server_key(one) for one in planned}) == []


def test_runs_that_no_longer_fit_are_skipped_and_a_faster_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """100 s; a run of a takes 30 s, one of b 10 s."""
    clock, completed, study = [0.0], list[str](), work("s", (64,), cycles=4)
    runs = iter(write_cycles(tmp_path, "a", [1.0] * 8))

    def run_point(context: Any, point: StudyPoint, step: Any, *others: Any) -> Path:
        clock[0] += {"a": 30.0, "b": 10.0}[point.engine]
        completed.append(f"{step.cycle} {point.engine}")
        return Path()

    for name, fake in {
        "run_point": run_point,
        "load_run": lambda _: next(runs),
        "monotonic": lambda: clock[0],
    }.items():
        monkeypatch.setattr(compare, name, fake)
    servers = SimpleNamespace(up={server_key(one): object() for one in study.points})
    complete = run_blocks(order_blocks([study]), servers, tmp_path, ClientCeiling(1e6, 1e6, 1), 100.0)  # type: ignore[arg-type]
    assert completed == ["1 a", "1 b", "2 b", "2 a", "3 b"] and not complete
    assert "no time left for 3 of 8 runs: a c64 (m), cycle 3; b c64 (m), cycle 4; a c64" in capsys.readouterr().out


def cells(lines: list[str]) -> list[dict[str, str]]:
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert set(split[1]) == {"---"}
    return [dict(zip(split[0], row, strict=True)) for row in split[2:]]


def test_the_table_has_means_with_intervals_and_ratios_against_the_first_engine(tmp_path: Path) -> None:
    runs = [*write_cycles(tmp_path, "a", [1000.0, 2000.0]), *write_cycles(tmp_path, "b", [1100.0, 2200.0])]
    first, second = cells(build_table(runs))
    assert (first["model"], first["runs counted"], first["verdict"]) == ("tiny", "2 of 2", "valid")
    assert first["output tok/s"].startswith("1,500 [-4,853, 7,853]")  # Student's t with 1 degree: 12.706 * 500
    assert first["median TTFT, ms"].startswith("0.75 [")
    assert first["median ITL, ms"] == first["GPU J/output token"] == "–"
    assert (first["tok/s / first"], first["parity with first"]) == ("", "")
    assert second["tok/s / first"].startswith("1.1")
    assert second["parity with first"] == "–"  # no responses were kept


def test_the_table_compares_only_what_had_the_same_load_and_says_why_runs_do_not_count(tmp_path: Path) -> None:
    study = {"id": "s1", "point": 0, "cycle": 2, "label": "c1"}
    runs = [
        *write_cycles(tmp_path, "a", [10.0]),
        write_run(tmp_path, "late", "a", {"output_tokens_per_s": 99.0}, INVALID, study=study),
        *write_cycles(tmp_path, "b", [20.0], profile={"kind": "closed", "concurrency": 8}),
    ]
    first, other = cells(build_table(runs))
    assert (first["runs counted"], first["output tok/s"]) == ("1 of 2", "10")
    assert first["verdict"] == "valid: send_lag (1)"
    assert other["tok/s / first"] == ""  # another load: it is itself the first


def test_the_table_has_the_parity_of_responses(tmp_path: Path) -> None:
    def parity(*ids: int) -> dict[str, object]:
        return {"answers": [{"prompt_ids": [1], "token_ids": [one], "logprobs": [-0.5], "text": ""} for one in ids]}

    runs = [
        *write_cycles(tmp_path, "a", [10.0], parity=parity(7, 8)),
        *write_cycles(tmp_path, "b", [10.0], parity=parity(7, 9)),
    ]
    assert cells(build_table(runs))[1]["parity with first"].endswith("50% identical")

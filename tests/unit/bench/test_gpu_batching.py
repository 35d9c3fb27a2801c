"""The comparison of the transformers engine with the library's continuous batching, with ways that only pretend to compute."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from bench.gpu.transformers_batching import batching_study
from bench.gpu.transformers_batching.batching_study import (
    BatchingComparison,
    WayFailed,
    WayProcess,
    Workload,
    divide_time,
    judge_ratio,
    parse_workload,
)

# Stands in for the interpreter: one row takes the library twice as long; "bad" fails, "slow" loses its trial, "dead" ends the process.
CHILD = """#!PYTHON
import json, sys
library = sys.argv[3] == "library"
print(json.dumps({"seconds": 0.1} | ({"candidates": ["bad", "good", "slow", "dead"]} if library else {})), flush=True)
candidate = ""
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "prepare":
        candidate = command["candidate"]
        if candidate == "dead":
            print("out of memory", file=sys.stderr)
            break
        reply = {"error": "not here"} if candidate == "bad" else {"seconds": 0.0, "config": {}}
    else:
        seconds = command["rows"] * (2 if library else 1) * (9 if candidate == "slow" else 1)
        reply = {"tokens": command["rows"] * command["output"], "seconds": seconds + command["seed"] / 100}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def child(tmp_path: Path) -> str:
    path = tmp_path / "child"
    path.write_text(CHILD.replace("PYTHON", sys.executable))
    path.chmod(0o755)
    return str(path)


def compare(tmp_path: Path, child: str, *workloads: Workload, candidates: str = "*") -> list[dict[str, object]]:
    args = argparse.Namespace(
        out=tmp_path / "out.jsonl", device="cpu", python=child, seconds=60.0, pairs=3, workloads=list(workloads),
        candidates=[candidates], ways=["*"],
    )  # fmt: skip
    BatchingComparison(args, tmp_path).run()
    return [json.loads(line) for line in args.out.read_text().splitlines()]


def pick(lines: list[dict[str, object]], event: str, *names: str) -> list[tuple[object, ...]]:
    return [tuple(line.get(name) for name in names) for line in lines if line["event"] == event]


def test_the_ways_take_turns_with_the_best_configuration(tmp_path: Path, child: str) -> None:
    lines = compare(tmp_path, child, Workload("one", 1, 8, 40))
    assert pick(lines, "trial", "candidate", "output") == [("good", 10), ("slow", 10)]
    assert pick(lines, "chosen", "candidate") == [("good",)]
    assert [way for way, pair in pick(lines, "run", "way", "pair") if pair == 1] == [
        "ours",
        "ours, compiled",
        "library",
    ]
    assert [way for way, pair in pick(lines, "run", "way", "pair") if pair == 2] == [
        "library",
        "ours, compiled",
        "ours",
    ]
    assert pick(lines, "ratio", "of", "pairs", "verdict") == [
        ("library / ours", 3, "not within 15%"),
        ("library / ours, compiled", 3, "not within 15%"),
    ]
    assert float(str(pick(lines, "ratio", "estimate")[0][0])) == pytest.approx(0.505, abs=0.01)


def test_what_fails_is_reported_and_the_rest_goes_on(tmp_path: Path, child: str) -> None:
    lines = compare(tmp_path, child, Workload("one", 1, 8, 40))
    assert pick(lines, "failed", "step", "error") == [
        ("bad", "not here"),
        ("dead", "the process ended: out of memory"),
    ]


def test_without_a_configuration_the_engine_is_measured_alone(tmp_path: Path, child: str) -> None:
    lines = compare(tmp_path, child, Workload("one", 1, 8, 40), candidates="bad")
    assert {way for (way,) in pick(lines, "run", "way")} == {"ours", "ours, compiled"}
    assert not pick(lines, "ratio")


def test_long_texts_have_the_memory_of_the_compiled_way(tmp_path: Path, child: str) -> None:
    lines = compare(tmp_path, child, Workload("long", 1, 8, 40), candidates="good")
    assert {way for (way,) in pick(lines, "run", "way")} == {"ours", "library"}


def test_a_way_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nsleep 60\n")
    silent.chmod(0o755)
    way = WayProcess("ours", str(silent), tmp_path, "cpu", tmp_path / "log")
    with pytest.raises(WayFailed, match="no answer within 1 s"):
        way.receive(1.0)
    assert not way.is_alive


def test_workloads_are_written_as_rows_input_and_output() -> None:
    assert parse_workload("batch=256x128+64") == Workload("batch", 256, 128, 64)
    with pytest.raises(argparse.ArgumentTypeError, match="NAME=ROWSxINPUT"):
        parse_workload("256x128")


def test_time_is_shared_among_the_workloads_that_are_left() -> None:
    batch, one, long = (Workload(name, 1, 1, 1) for name in ("batch", "one", "long"))
    assert divide_time(70.0, [batch, one, long]) == 20.0
    assert divide_time(50.0, [long]) == 50.0


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.85, 0.95, "within 15%"),
        (0.5, 0.84, "not within 15%"),
        (0.8, 0.9, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_the_verdict_needs_the_whole_interval(low: float | None, high: float | None, verdict: str) -> None:
    assert judge_ratio(low, high) == verdict


def test_every_way_has_a_kind_the_child_knows() -> None:
    assert {kind for kind, _ in batching_study.WAYS.values()} == {"ours", "library"}

"""Memory growth, and which process holds the memory."""

from __future__ import annotations

import pytest

from bench.gpu.memory_trend import classify_processes, compute_growth, identify_own_processes

GIB = 2**30


def test_growth_is_a_share_of_the_mean_over_all_of_the_time() -> None:
    assert compute_growth([(60.0, 100.0), (160.0, 100.0), (360.0, 100.0)]) == 0.0
    assert compute_growth([(0.0, 90.0), (10.0, 100.0), (20.0, 110.0)]) == pytest.approx(0.2)
    assert compute_growth([(0.0, 110.0), (20.0, 90.0)]) == pytest.approx(-0.2)


def test_noise_is_no_growth_and_a_slow_leak_in_it_is() -> None:
    noise = [(5.0 * number, 1000.0 + (7 if number % 2 else -7)) for number in range(60)]
    assert abs(compute_growth(noise)) < 0.002
    leak = [(time, value + 0.1 * time) for time, value in noise]
    assert compute_growth(leak) == pytest.approx(0.0291, abs=0.002)


def test_a_trend_needs_two_points_in_time() -> None:
    for points in ([], [(1.0, 5.0)], [(1.0, 5.0), (1.0, 6.0)]):
        with pytest.raises(ValueError, match="two points in time"):
            compute_growth(points)


def test_processes_are_classified_by_name_and_parent() -> None:
    worker = b"python /src/enginebay/worker/bootstrap.py serve"
    parents = {10: 1, 11: 10, 20: 10, 21: 20, 22: 20, 23: 21}
    commands = {10: b"bay serve", 11: b"bay serve", 20: worker, 21: b"VLLM::EngineCor", 22: b"python tracker", 23: b"x"}
    assert classify_processes(parents, commands) == {
        10: "server", 11: "server", 20: "worker", 21: "engine", 22: "worker", 23: "engine",
    }  # fmt: skip
    assert classify_processes(parents, {**commands, 21: worker})[21] == "engine"  # forked, and not renamed
    assert classify_processes(parents, {**commands, 11: b"Engine"})[11] == "server"  # only a worker has an engine


def test_driver_processes_are_identified_by_pid_or_as_the_only_large_new_one() -> None:
    held = {5: 40 * GIB, 7: 37 * GIB, 9: GIB}
    assert identify_own_processes({5}, held, {7, 8}, 20 * GIB)[0] == {7}
    assert identify_own_processes({5}, held, {100}, 20 * GIB)[0] == {7}
    assert identify_own_processes(set(), held, {100}, 20 * GIB)[0] == set()  # two candidates
    assert identify_own_processes({5}, {}, {100}, 20 * GIB)[0] == set()

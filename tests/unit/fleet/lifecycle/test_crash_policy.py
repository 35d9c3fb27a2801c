from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebay.errors import LoadFailed, ModelInvalid, OutOfMemory
from enginebay.fleet.lifecycle.crash_policy import (
    HANG,
    CrashLoopBackoff,
    CrashRecord,
    RestartAt,
    RestartPolicy,
    compute_backoff,
    diagnose_crash,
    is_hung,
    schedule_restart,
)
from enginebay.worker.client_side.oom_kills import read_oom_kills

KILLED = -signal.SIGKILL
RULES = RestartPolicy(restarts=3, restart_window_s=600, backoff_s=1, backoff_max_s=60)


@pytest.mark.parametrize(
    ("returncode", "facts", "cause", "detail"),
    [
        (KILLED, {"killed_because": HANG}, "hang", "no progress"),
        (KILLED, {"killed_because": "the model was removed"}, "stopped", "removed"),
        (KILLED, {"killed_because": "unloaded", "oom_before": 0, "oom_after": 1}, "stopped", "unloaded"),
        (KILLED, {"oom_before": 2, "oom_after": 3}, "out_of_memory", "OOM killer"),
        (KILLED, {"oom_before": 2, "oom_after": 2}, "crash", "killed by SIGKILL"),
        (KILLED, {}, "crash", "killed by SIGKILL"),
        (KILLED, {"loading": True}, "out_of_memory", "most likely"),
        (KILLED, {"loading": True, "oom_before": 2, "oom_after": 2}, "crash", "killed by SIGKILL while loading"),
        (KILLED, {"loading": True, "oom_before": 2, "oom_after": 3}, "out_of_memory", "OOM killer"),
        (-signal.SIGSEGV, {}, "crash", "SIGSEGV"),
        (-signal.SIGSEGV, {"oom_before": 0, "oom_after": 1}, "crash", "SIGSEGV"),
        (-99, {}, "crash", "signal 99"),
        (1, {}, "crash", "code 1"),
        (0, {}, "crash", "code 0"),
        (None, {}, "crash", "connection"),
        (1, {"oom_before": 0, "oom_after": 1}, "out_of_memory", "code 1"),
        (1, {"loading": True, "error": LoadFailed("no such layer")}, "failed_load", "no such layer"),
        (None, {"loading": True, "error": OutOfMemory("CUDA out of memory")}, "out_of_memory", "CUDA"),
        (1, {"loading": True, "error": LoadFailed("core died"), "oom_before": 0, "oom_after": 1}, "out_of_memory", ""),
        (1, {"loading": True, "error": ModelInvalid("cut"), "oom_before": 0, "oom_after": 1}, "failed_load", "cut"),
    ],
)
def test_cause_of_a_crash(returncode: int | None, facts: dict[str, Any], cause: str, detail: str) -> None:
    diagnosis = diagnose_crash(returncode, **facts)
    assert diagnosis.cause == cause and detail in diagnosis.detail and diagnosis.detail


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


EVENTS = "low 0\nhigh 0\nmax 9\noom 4\noom_kill {}\noom_group_kill 0\n"


def test_the_count_of_the_own_group_is_read(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/bay\n")
    write(tmp_path, "sys/fs/cgroup/user.slice/bay/memory.events", EVENTS.format(3))
    write(tmp_path, "sys/fs/cgroup/memory.events", EVENTS.format(70))
    assert read_oom_kills(tmp_path) == 3


def test_in_a_container_the_top_is_the_own_group(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/../hidden\n")
    write(tmp_path, "sys/fs/cgroup/memory.events", EVENTS.format(5))
    assert read_oom_kills(tmp_path) == 5


def test_the_first_version_of_control_groups_is_read_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/docker/x\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/docker/x/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert read_oom_kills(tmp_path) == 2
    (tmp_path / "sys/fs/cgroup/memory/docker/x/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert read_oom_kills(tmp_path) is None, "old kernels do not count"
    write(tmp_path, "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 1\n")
    assert read_oom_kills(tmp_path) == 1


def test_no_count_is_no_number(tmp_path: Path) -> None:
    assert read_oom_kills(tmp_path) is None
    assert read_oom_kills() is None or isinstance(read_oom_kills(), int)


def short(*times: float) -> list[CrashRecord]:
    return [CrashRecord(at) for at in times]


def test_the_first_start_has_no_backoff() -> None:
    assert schedule_restart(5.0, [], RULES) == RestartAt(5.0)


def test_each_crash_in_a_row_doubles_the_backoff() -> None:
    assert schedule_restart(10.0, short(10), RULES) == RestartAt(11.0)
    assert schedule_restart(20.0, short(10, 20), RULES) == RestartAt(22.0)
    assert schedule_restart(30.0, short(10, 20, 30), RULES) == RestartAt(34.0)
    assert schedule_restart(90.0, short(10, 20, 30), RULES) == RestartAt(90.0), "never in the past"


def test_the_backoff_has_a_limit() -> None:
    patient = RestartPolicy(restarts=1000, restart_window_s=1e9)
    assert compute_backoff(short(*range(500)), patient) == 60.0


def test_a_worker_that_was_well_starts_the_row_again() -> None:
    deaths = [CrashRecord(10), CrashRecord(20), CrashRecord(100, uptime_s=61)]
    assert schedule_restart(100.0, deaths, RULES) == RestartAt(100.0)
    assert schedule_restart(101.0, [*deaths[1:], CrashRecord(101)], RULES) == RestartAt(102.0)
    assert schedule_restart(102.0, [*deaths, CrashRecord(102)], RestartPolicy()) == RestartAt(103.0)
    barely = [CrashRecord(10), CrashRecord(20), CrashRecord(100, uptime_s=60)]
    assert schedule_restart(100.0, barely, RULES) == RestartAt(104.0)


def test_deaths_long_ago_do_not_lengthen_the_wait() -> None:
    assert schedule_restart(5000.0, short(10, 20, 5000), RULES) == RestartAt(5001.0)


def test_too_many_deaths_are_a_crash_loop_until_the_window_has_passed() -> None:
    deaths = short(10, 20, 30, 40)
    assert schedule_restart(41.0, deaths, RULES) == CrashLoopBackoff(since=10, until=640)
    assert schedule_restart(639.9, deaths, RULES) == CrashLoopBackoff(since=10, until=640)
    assert schedule_restart(640.0, deaths, RULES) == RestartAt(640.0)


def test_one_try_is_allowed_and_its_death_goes_on_with_the_loop() -> None:
    deaths = short(10, 20, 30, 40, 650)
    assert schedule_restart(650.0, deaths, RULES) == CrashLoopBackoff(since=10, until=1250)
    assert schedule_restart(1250.0, deaths, RULES) == RestartAt(1250.0)


def test_a_try_that_was_well_ends_the_loop() -> None:
    deaths = [*short(10, 20, 30, 40), CrashRecord(800, uptime_s=100)]
    assert schedule_restart(800.0, deaths, RULES) == RestartAt(800.0)


def test_dying_too_often_is_a_loop_even_after_a_minute_each() -> None:
    deaths = [CrashRecord(at, uptime_s=61) for at in (100, 200, 300, 400)]
    assert schedule_restart(400.0, deaths, RULES) == CrashLoopBackoff(since=100, until=1000)


def test_no_restarts_means_none_before_the_window_has_passed() -> None:
    never = RestartPolicy(restarts=0, restart_window_s=600)
    assert schedule_restart(10.0, short(10), never) == CrashLoopBackoff(since=10, until=610)


histories = st.lists(st.tuples(st.floats(0.001, 300), st.floats(0, 300)), min_size=1, max_size=40)


@given(histories, st.floats(0, 2000), st.integers(0, 8))
def test_a_restart_is_never_early_and_a_loop_never_endless(
    steps: list[tuple[float, float]], later: float, restarts: int
) -> None:
    rules = RestartPolicy(restarts=restarts, restart_window_s=600)
    deaths, at = [], 0.0
    for gap, lived in steps:
        at += gap
        deaths.append(CrashRecord(at, min(lived, gap)))
    now = at + later
    found = schedule_restart(now, deaths, rules)
    if isinstance(found, RestartAt):
        assert found.at >= now and found.at <= max(now, at + rules.backoff_max_s)
        recent = [death for death in deaths if death.at > at - rules.restart_window_s]
        assert len(recent) <= restarts or later >= rules.restart_window_s
    else:
        assert found.since <= at < found.until == at + rules.restart_window_s and now < found.until
        assert isinstance(schedule_restart(found.until, deaths, rules), RestartAt)


@given(st.lists(st.floats(0.5, 100), min_size=1, max_size=200))
def test_whatever_happens_a_worker_is_not_started_more_often_than_the_rules_say(lives: list[float]) -> None:
    """Played forward: each start dies after a while, and the next comes when it is allowed."""
    rules = RestartPolicy(restarts=4, restart_window_s=100, backoff_s=1, backoff_max_s=10)
    now, deaths = 0.0, []
    for life in lives:
        now += life
        deaths.append(CrashRecord(now, life))
        found = schedule_restart(now, deaths, rules)
        now = found.at if isinstance(found, RestartAt) else found.until
        assert isinstance(schedule_restart(now, deaths, rules), RestartAt)
        assert len([death for death in deaths if death.at > deaths[-1].at - 100]) <= rules.restarts + 1


def test_a_worker_hangs_when_it_makes_no_step_while_requests_run() -> None:
    assert is_hung(1000.0, running=1, since_step_s=120.1, hang_s=120)
    assert not is_hung(1000.0, running=1, since_step_s=120, hang_s=120)
    assert not is_hung(1000.0, running=0, since_step_s=500, hang_s=120), "nothing to do is no hang"


def test_a_worker_that_says_nothing_at_all_hangs_too() -> None:
    assert is_hung(1000.0, running=1, since_step_s=100, hang_s=120, heard_at=970)
    assert not is_hung(1000.0, running=0, since_step_s=0, hang_s=120, heard_at=900)
    assert is_hung(1000.0, running=0, since_step_s=0, hang_s=120, heard_at=879)
    assert not is_hung(1000.0, running=1, since_step_s=0, hang_s=120, heard_at=1001), "a clock that went back"

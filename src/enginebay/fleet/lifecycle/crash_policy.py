"""Why a worker died, when it may be started again, and whether it hangs. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from enginebay.errors import EnginebayError, EngineFailed, LoadFailed, OutOfMemory, WorkerDied

CrashCause = Literal["crash", "hang", "out_of_memory", "failed_load", "stopped"]

HANG = "hang"  # as the reason for which we killed a worker
_HEALTHY_WINDOW_FRACTION = 10  # a worker that lived longer than one in so many parts of the window was well
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class CrashDiagnosis:
    cause: CrashCause
    detail: str  # for the log, after "the worker died: "


def diagnose_crash(
    returncode: int | None,
    *,
    killed_because: str | None = None,
    loading: bool = False,
    error: EnginebayError | None = None,
    oom_before: int | None = None,
    oom_after: int | None = None,
) -> CrashDiagnosis:
    """What ended a worker.

    `killed_because`: why we did it ourselves (`HANG`, or any other reason), None if we did not. `error`: what it said
    or what was made of its silence. The two counts are of `oom_kills`, at its start and now.
    """
    if killed_because == HANG:
        return CrashDiagnosis("hang", "it made no step while requests ran, and was killed")
    if killed_because is not None:
        return CrashDiagnosis("stopped", killed_because)
    if isinstance(error, OutOfMemory):
        return CrashDiagnosis("out_of_memory", error.message)
    how = describe_exit(returncode)
    if _was_oom_killed(returncode, loading, error, oom_before, oom_after):
        counted = oom_before is not None and oom_after is not None
        why = "the system killed a process for want of memory" if counted else "most likely for want of memory"
        return CrashDiagnosis("out_of_memory", f"{how}; {why}")
    if loading and error is not None:
        return CrashDiagnosis("failed_load", error.message)
    return CrashDiagnosis("crash", f"{how} while loading" if loading else how)


def _was_oom_killed(
    returncode: int | None, loading: bool, error: EnginebayError | None, before: int | None, after: int | None
) -> bool:
    killed = returncode == -signal.SIGKILL
    if before is None or after is None:
        return loading and killed
    # The one that was killed may be a child of the worker: then the worker itself ends with an error.
    vague = error is None or type(error) in (LoadFailed, EngineFailed, WorkerDied)
    failed = returncode is None or returncode > 0
    return after > before and (killed or (failed and vague))


def describe_exit(returncode: int | None) -> str:
    """An exit status in words."""
    if returncode is None:
        return "its connection broke"
    if returncode >= 0:
        return f"it ended with exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """One death in a variant's history."""

    at: float
    uptime_s: float = 0.0  # ready to answer; 0 if it never was


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The configuration's rules."""

    restarts: int = 5
    restart_window_s: float = 600.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0

    def was_healthy(self, death: CrashRecord) -> bool:
        return death.uptime_s > self.restart_window_s / _HEALTHY_WINDOW_FRACTION


@dataclass(frozen=True, slots=True)
class RestartAt:
    at: float  # never before now


@dataclass(frozen=True, slots=True)
class CrashLoopBackoff:
    since: float  # its first death
    until: float  # when one more try is allowed


def schedule_restart(now: float, crashes: Sequence[CrashRecord], policy: RestartPolicy) -> RestartAt | CrashLoopBackoff:
    """When to start a worker again after these deaths, oldest first; those that we wanted are not among them."""
    if not crashes:
        return RestartAt(now)
    last = crashes[-1].at
    since = _find_crash_loop_start(crashes, policy)
    if since is None:
        return RestartAt(max(now, last + compute_backoff(crashes, policy)))
    until = last + policy.restart_window_s
    return CrashLoopBackoff(since, until) if now < until else RestartAt(now)


def compute_backoff(crashes: Sequence[CrashRecord], policy: RestartPolicy) -> float:
    """Nothing for the first death of one that had worked; then it doubles with each death in a row.

    A worker that was well for a while begins a new row.
    """
    in_row = 0
    for death in reversed(crashes):
        if death.at <= crashes[-1].at - policy.restart_window_s:
            break
        in_row += 1
        if policy.was_healthy(death):
            break
    if in_row == 1 and crashes[-1].uptime_s > 0:
        return 0.0
    doublings = min(max(0, in_row - 1 - (crashes[-in_row].uptime_s > 0)), _MAX_DOUBLINGS)
    return min(policy.backoff_max_s, policy.backoff_s * 2.0**doublings)


def _find_crash_loop_start(crashes: Sequence[CrashRecord], policy: RestartPolicy) -> float | None:
    """The first death of the crash loop that the last death belongs to.

    Too many within the window make one. The one try after it does not end it, unless that worker was well.
    """
    since: float | None = None
    first = 0  # of those within the window before `death`
    for number, death in enumerate(crashes):
        while crashes[first].at <= death.at - policy.restart_window_s:
            first += 1
        if number - first + 1 > policy.restarts:
            since = crashes[first].at if since is None else since
        elif policy.was_healthy(death):
            since = None
    return since


def is_hung(now: float, running: int, since_step_s: float, hang_s: float, heard_at: float | None = None) -> bool:
    """Whether a worker stands still: no step for too long while requests run, or no answer at all.

    `running` and `quiet_s` are what it said last, at `heard_at`: a stopped process says nothing more.
    """
    silent_s = 0.0 if heard_at is None else max(0.0, now - heard_at)
    return silent_s > hang_s or (running > 0 and since_step_s + silent_s > hang_s)

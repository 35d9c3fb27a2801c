"""Crash policy: diagnoses crashes, schedules restarts with backoff, and detects hangs. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from enginebay.errors import EnginebayError, EngineFailed, LoadFailed, OutOfMemory, WorkerDied

CrashCause = Literal["crash", "hang", "out_of_memory", "failed_load", "stopped"]

HANG = "hang"  # value of `killed_because`
_HEALTHY_WINDOW_FRACTION = 10  # an uptime above 1/10 of the restart window counts as healthy
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
    """Return why a worker ended.

    `killed_because`: the reason the fleet killed it (`HANG` or another one), None if it did not. `error`: the error it
    reported, or the one derived from its exit. `oom_before` and `oom_after` are OOM kill counts from its start and now.
    """
    if killed_because == HANG:
        return CrashDiagnosis("hang", "it made no progress while requests were running, and was killed")
    if killed_because is not None:
        return CrashDiagnosis("stopped", killed_because)
    if isinstance(error, OutOfMemory):
        return CrashDiagnosis("out_of_memory", error.message)
    exit_text = describe_exit(returncode)
    if _was_oom_killed(returncode, loading, error, oom_before, oom_after):
        counted = oom_before is not None and oom_after is not None
        reason = "the kernel's OOM killer ended a process" if counted else "most likely out of memory"
        return CrashDiagnosis("out_of_memory", f"{exit_text}; {reason}")
    if loading and error is not None:
        return CrashDiagnosis("failed_load", error.message)
    return CrashDiagnosis("crash", f"{exit_text} while loading" if loading else exit_text)


def _was_oom_killed(
    returncode: int | None, loading: bool, error: EnginebayError | None, before: int | None, after: int | None
) -> bool:
    killed = returncode == -signal.SIGKILL
    if before is None or after is None:
        return loading and killed
    # The OOM killer may hit a child of the worker: the worker itself then exits with an error.
    vague = error is None or type(error) in (LoadFailed, EngineFailed, WorkerDied)
    failed = returncode is None or returncode > 0
    return after > before and (killed or (failed and vague))


def describe_exit(returncode: int | None) -> str:
    """Describe an exit status."""
    if returncode is None:
        return "its connection broke"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """One crash in a variant's history."""

    at: float
    uptime_s: float = 0.0  # 0: it never became ready
    address: str = ""  # the worker's


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The restart keys of the fleet section."""

    restarts: int = 5
    restart_window_s: float = 600.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0

    def was_healthy(self, crash: CrashRecord) -> bool:
        return crash.uptime_s > self.restart_window_s / _HEALTHY_WINDOW_FRACTION


@dataclass(frozen=True, slots=True)
class RestartAt:
    at: float  # never before now


@dataclass(frozen=True, slots=True)
class CrashLoopBackoff:
    since: float  # its first crash
    until: float  # the next attempt is allowed


def schedule_restart(now: float, crashes: Sequence[CrashRecord], policy: RestartPolicy) -> RestartAt | CrashLoopBackoff:
    """Return when to restart a worker after these crashes, oldest first. Intended stops are not crashes."""
    if not crashes:
        return RestartAt(now)
    last = crashes[-1].at
    since = _find_crash_loop_start(crashes, policy)
    if since is None:
        return RestartAt(max(now, last + compute_backoff(crashes, policy)))
    until = last + policy.restart_window_s
    return CrashLoopBackoff(since, until) if now < until else RestartAt(now)


def compute_backoff(crashes: Sequence[CrashRecord], policy: RestartPolicy) -> float:
    """Return the seconds to wait before a restart: 0 for the first crash of a working model, then doubling.

    A healthy run starts a new sequence.
    """
    in_row = 0
    for crash in reversed(crashes):
        if crash.at <= crashes[-1].at - policy.restart_window_s:
            break
        in_row += 1
        if policy.was_healthy(crash):
            break
    if in_row == 1 and crashes[-1].uptime_s > 0:
        return 0.0
    doublings = min(max(0, in_row - 1 - (crashes[-in_row].uptime_s > 0)), _MAX_DOUBLINGS)
    return min(policy.backoff_max_s, policy.backoff_s * 2.0**doublings)


def _find_crash_loop_start(crashes: Sequence[CrashRecord], policy: RestartPolicy) -> float | None:
    """Return the time of the first crash of the current crash loop, or None.

    Too many crashes within the window are a loop. Only a healthy run ends it.
    """
    since: float | None = None
    first = 0  # index of the first crash within the window before `crash`
    for number, crash in enumerate(crashes):
        while crashes[first].at <= crash.at - policy.restart_window_s:
            first += 1
        if number - first + 1 > policy.restarts:
            since = crashes[first].at if since is None else since
        elif policy.was_healthy(crash):
            since = None
    return since


def is_hung(now: float, running: int, since_step_s: float, hang_s: float, heard_at: float | None = None) -> bool:
    """Return whether a worker hangs: no step for `hang_s` while requests run, or no reply at all.

    `running` and `since_step_s` are from its last reply, at `heard_at`.
    """
    silent_s = 0.0 if heard_at is None else max(0.0, now - heard_at)
    return silent_s > hang_s or (running > 0 and since_step_s + silent_s > hang_s)

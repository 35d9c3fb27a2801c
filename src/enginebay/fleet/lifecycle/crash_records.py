"""Records crashes and failed loads: logs the cause and schedules the next attempt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import CrashLoop, EnginebayError
from enginebay.fleet.lifecycle import crash_policy
from enginebay.fleet.lifecycle.crash_policy import CrashDiagnosis, CrashRecord, RestartPolicy
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.worker.client_side.oom_kills import read_oom_kills

_MAX_KEPT = 50

EmitEvent = Callable[..., None]


async def record_crash(
    replica: Replica, worker: ModelWorker, killed_because: str | None, config: FleetConfig, emit_event: EmitEvent
) -> None:
    """Record the crash of a serving worker and make its replica cold. With `killed_because` kill it first."""
    uptime_s = time.monotonic() - replica.awake_since
    replica.detach_worker()
    if killed_because is not None:
        await asyncio.shield(worker.kill())
    log_tail = worker.process.read_log_tail()
    diagnosis = crash_policy.diagnose_crash(
        worker.process.returncode, killed_because=killed_because, oom_before=replica.oom_kills,
        oom_after=read_oom_kills(),
    )  # fmt: skip
    _record_and_schedule(replica, diagnosis, log_tail, uptime_s, config, emit_event)
    await asyncio.shield(worker.kill())


def record_load_failure(
    replica: Replica, error: EnginebayError, config: FleetConfig, emit_event: EmitEvent
) -> ModelWorker | None:
    """Record a failed load. Return what is left of its worker."""
    worker = replica.worker
    replica.detach_worker()
    diagnosis = crash_policy.diagnose_crash(
        worker.process.returncode if worker is not None else None, loading=True, error=error,
        oom_before=replica.oom_kills, oom_after=read_oom_kills(),
    )  # fmt: skip
    _record_and_schedule(replica, diagnosis, error.hint, 0.0, config, emit_event)
    replica.load_error = replica.load_error or error
    return worker


def _record_and_schedule(
    replica: Replica,
    diagnosis: CrashDiagnosis,
    log_tail: str,
    uptime_s: float,
    config: FleetConfig,
    emit_event: EmitEvent,
) -> None:
    now = time.monotonic()
    replica.crashes.append(CrashRecord(now, uptime_s))
    del replica.crashes[: -max(_MAX_KEPT, config.restarts + 1)]
    replica.last_failure = f"{diagnosis.cause}: {diagnosis.detail}"
    policy = RestartPolicy(config.restarts, config.restart_window_s, config.backoff_s, config.backoff_max_s)
    restart = crash_policy.schedule_restart(now, replica.crashes, policy)
    looping = isinstance(restart, crash_policy.CrashLoopBackoff)
    replica.retry_at = restart.until if isinstance(restart, crash_policy.CrashLoopBackoff) else restart.at
    if looping:
        replica.load_error = CrashLoop(
            f"{replica.name} crashed {len(replica.crashes)} times, last cause {diagnosis.cause}: {diagnosis.detail}",
            f"next attempt in {replica.retry_at - now:.0f} s; to retry now: bay load {replica.name}",
            retry_after_s=replica.retry_at - now,
        )
    emit_event(
        "worker died", level="error", model=replica.name, engine=replica.variant.kind, cause=diagnosis.cause,
        detail=diagnosis.detail, restart_in_s=round(replica.retry_at - now, 1), crash_loop=looping or None,
        last_words=log_tail,
    )  # fmt: skip

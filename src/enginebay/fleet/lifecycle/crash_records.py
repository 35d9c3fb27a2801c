"""What a worker's death, or a load that failed, leaves behind: its cause in the log, and when the next try is due."""

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
    """A worker that served has died, or is to: `killed_because` says why then. Its place is cold afterwards."""
    lived_s = time.monotonic() - replica.awake_since
    replica.detach_worker()
    if killed_because is not None:
        await asyncio.shield(worker.kill())
    words = worker.process.read_log_tail()
    death = crash_policy.diagnose_crash(
        worker.process.returncode, killed_because=killed_because, oom_before=replica.oom_kills,
        oom_after=read_oom_kills(),
    )  # fmt: skip
    _record_and_schedule(replica, death, words, lived_s, config, emit_event)
    await asyncio.shield(worker.kill())


def record_load_failure(
    replica: Replica, error: EnginebayError, config: FleetConfig, emit_event: EmitEvent
) -> ModelWorker | None:
    """A variant could not be raised. Gives back what is left of its worker."""
    worker = replica.worker
    replica.detach_worker()
    death = crash_policy.diagnose_crash(
        worker.process.returncode if worker is not None else None, loading=True, error=error,
        oom_before=replica.oom_kills, oom_after=read_oom_kills(),
    )  # fmt: skip
    _record_and_schedule(replica, death, error.hint, 0.0, config, emit_event)
    replica.load_error = replica.load_error or error
    return worker


def _record_and_schedule(
    replica: Replica,
    diagnosis: CrashDiagnosis,
    last_words: str,
    uptime_s: float,
    config: FleetConfig,
    emit_event: EmitEvent,
) -> None:
    now = time.monotonic()
    replica.crashes.append(CrashRecord(now, uptime_s))
    del replica.crashes[: -max(_MAX_KEPT, config.restarts + 1)]
    replica.last_failure = f"{diagnosis.cause}: {diagnosis.detail}"
    policy = RestartPolicy(config.restarts, config.restart_window_s, config.backoff_s, config.backoff_max_s)
    then = crash_policy.schedule_restart(now, replica.crashes, policy)
    looping = isinstance(then, crash_policy.CrashLoopBackoff)
    replica.retry_at = then.until if isinstance(then, crash_policy.CrashLoopBackoff) else then.at
    if looping:
        replica.load_error = CrashLoop(
            f"{replica.name} died {len(replica.crashes)} times, last of {diagnosis.cause}: {diagnosis.detail}",
            f"it is tried again in {replica.retry_at - now:.0f} s, or with: bay load {replica.name}",
            retry_after_s=replica.retry_at - now,
        )
    emit_event(
        "worker died", level="error", model=replica.name, engine=replica.variant.kind, cause=diagnosis.cause,
        detail=diagnosis.detail, restart_in_s=round(replica.retry_at - now, 1), crash_loop=looping or None,
        last_words=last_words,
    )  # fmt: skip

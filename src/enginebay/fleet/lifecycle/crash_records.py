"""Records crashes and failed loads: logs the cause and schedules the next attempt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.errors import CrashLoop, EnginebayError
from enginebay.fleet.lifecycle import crash_policy
from enginebay.fleet.lifecycle.background_tasks import EmitEvent
from enginebay.fleet.lifecycle.crash_policy import CrashDiagnosis, CrashRecord, RestartAt, RestartPolicy
from enginebay.fleet.lifecycle.model_worker import ModelWorker
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.worker.client_side.oom_kills import read_oom_kills

_MAX_KEPT = 50
_VERDICT_S = 0.5  # within it, a server process that knows reports which request killed the worker


async def record_crash(
    replica: Replica, worker: ModelWorker, killed_because: str | None, config: FleetConfig, emit_event: EmitEvent
) -> None:
    """Record the crash of a serving worker and make its replica cold. With `killed_because` kill it first."""
    crash = CrashRecord(time.monotonic(), time.monotonic() - replica.awake_since, worker.handle.address)
    replica.detach_worker()
    if killed_because is not None:
        await asyncio.shield(worker.kill())
    log_tail = worker.process.read_log_tail()
    diagnosis = crash_policy.diagnose_crash(
        worker.process.returncode, killed_because=killed_because, oom_before=replica.oom_kills,
        oom_after=read_oom_kills(),
    )  # fmt: skip
    if _starts_crash_loop(replica, crash, config):
        replica.retry_at = time.monotonic() + _VERDICT_S
        await asyncio.sleep(_VERDICT_S)
    _record_and_schedule(replica, diagnosis, log_tail, crash, config, emit_event)
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
    _record_and_schedule(replica, diagnosis, error.hint, CrashRecord(time.monotonic()), config, emit_event)
    replica.load_error = replica.load_error or error
    return worker


def forgive_crashes(replica: Replica, addresses: Collection[str], config: FleetConfig) -> None:
    """Do not count the crashes of these workers: a request killed them. End a crash loop that consisted of them."""
    replica.forgiven_addresses.extend(addresses)
    kept = [crash for crash in replica.crashes if crash.address not in addresses]
    if len(kept) == len(replica.crashes):
        return
    replica.crashes[:] = kept
    restart = crash_policy.schedule_restart(time.monotonic(), kept, _read_policy(config))
    if isinstance(restart, RestartAt):
        replica.retry_at = min(replica.retry_at, restart.at)
        if isinstance(replica.load_error, CrashLoop):
            replica.load_error = None


def _starts_crash_loop(replica: Replica, crash: CrashRecord, config: FleetConfig) -> bool:
    restart = crash_policy.schedule_restart(crash.at, [*replica.crashes, crash], _read_policy(config))
    return crash.address not in replica.forgiven_addresses and isinstance(restart, crash_policy.CrashLoopBackoff)


def _read_policy(config: FleetConfig) -> RestartPolicy:
    return RestartPolicy(config.restarts, config.restart_window_s, config.backoff_s, config.backoff_max_s)


def _record_and_schedule(
    replica: Replica,
    diagnosis: CrashDiagnosis,
    log_tail: str,
    crash: CrashRecord,
    config: FleetConfig,
    emit_event: EmitEvent,
) -> None:
    now = time.monotonic()
    forgiven = bool(crash.address) and crash.address in replica.forgiven_addresses
    if not forgiven:
        replica.crashes.append(crash)
    del replica.crashes[: -max(_MAX_KEPT, config.restarts + 1)]
    replica.last_failure = f"{diagnosis.cause}: {diagnosis.detail}"
    restart = crash_policy.schedule_restart(now, replica.crashes, _read_policy(config))
    if forgiven:
        restart = RestartAt(now)
    looping = isinstance(restart, crash_policy.CrashLoopBackoff)
    replica.retry_at = restart.until if isinstance(restart, crash_policy.CrashLoopBackoff) else restart.at
    if looping:
        replica.load_error = CrashLoop(
            f"{replica.name} crashed {len(replica.crashes)} times, last cause {diagnosis.cause}: {diagnosis.detail}",
            f"next attempt in {replica.retry_at - now:.0f} s; to retry now: bay load {replica.name}",
            retry_after_s=replica.retry_at - now,
        )
    emit_event(
        "worker died", level="error", **replica.log_names, engine=replica.variant.kind, cause=diagnosis.cause,
        detail=diagnosis.detail, restart_in_s=round(replica.retry_at - now, 1), crash_loop=looping or None,
        killed_by_request=forgiven or None, last_words=log_tail,
    )  # fmt: skip

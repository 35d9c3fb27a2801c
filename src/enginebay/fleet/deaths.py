"""What a worker's death, or a load that failed, leaves behind: its cause in the log, and when the next try is due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from enginebay.config.fleet import FleetConfig
from enginebay.errors import CrashLoop, EnginebayError
from enginebay.fleet import supervision
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.place import Place
from enginebay.fleet.supervision import Death, Died, RestartPolicy
from enginebay.worker.oom_kills import oom_kills

_KEPT = 50

Event = Callable[..., None]


async def record_death(
    place: Place, worker: ModelWorker, killed_because: str | None, rules: FleetConfig, event: Event
) -> None:
    """A worker that served has died, or is to: `killed_because` says why then. Its place is cold afterwards."""
    lived_s = time.monotonic() - place.awake_since
    place.vacate()
    if killed_because is not None:
        await asyncio.shield(worker.kill())
    words = worker.process.last_words()
    death = supervision.classify(
        worker.process.returncode, killed_because=killed_because, oom_before=place.oom_kills,
        oom_after=oom_kills(),
    )  # fmt: skip
    _record(place, death, words, lived_s, rules, event)
    await asyncio.shield(worker.kill())


def record_failure(place: Place, error: EnginebayError, rules: FleetConfig, event: Event) -> ModelWorker | None:
    """A variant could not be raised. Gives back what is left of its worker."""
    worker = place.worker
    place.vacate()
    death = supervision.classify(
        worker.process.returncode if worker is not None else None, loading=True, error=error,
        oom_before=place.oom_kills, oom_after=oom_kills(),
    )  # fmt: skip
    _record(place, death, error.hint, 0.0, rules, event)
    place.trouble = place.trouble or error
    return worker


def _record(place: Place, death: Death, words: str, lived_s: float, rules: FleetConfig, event: Event) -> None:
    now = time.monotonic()
    place.deaths.append(Died(now, lived_s))
    del place.deaths[: -max(_KEPT, rules.restarts + 1)]
    place.last_failure = f"{death.cause}: {death.detail}"
    policy = RestartPolicy(rules.restarts, rules.restart_window_s, rules.backoff_s, rules.backoff_max_s)
    then = supervision.next_restart(now, place.deaths, policy)
    looping = isinstance(then, supervision.CrashLoop)
    place.not_before = then.until if isinstance(then, supervision.CrashLoop) else then.at
    if looping:
        place.trouble = CrashLoop(
            f"{place.name} died {len(place.deaths)} times, last of {death.cause}: {death.detail}",
            f"it is tried again in {place.not_before - now:.0f} s, or with: bay load {place.name}",
            retry_after_s=place.not_before - now,
        )
    event(
        "worker died", level="error", model=place.name, engine=place.variant.kind, cause=death.cause,
        detail=death.detail, restart_in_s=round(place.not_before - now, 1), crash_loop=looping or None,
        last_words=words,
    )  # fmt: skip

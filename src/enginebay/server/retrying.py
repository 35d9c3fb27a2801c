"""Whether a request that failed is tried once more: on another worker, or on another engine of the model's chain."""

from __future__ import annotations

import time

from enginebay.errors import (
    ContextOverflow,
    CrashLoop,
    Draining,
    EnginebayError,
    EngineMissing,
    FetchFailed,
    LoadFailed,
    ModelInvalid,
    Offline,
    Overloaded,
    RateLimited,
    UnknownArchitecture,
    Unreachable,
    Unsupported,
    WorkerDied,
)
from enginebay.server.call import Call

_MOST_DEATHS = 3  # a request that ends each worker it meets must not end them all


def trigger(error: EnginebayError) -> str | None:
    """What of `fallback_on` an error is; None: it is the request's own fault, or nobody's. Pure."""
    if isinstance(error, UnknownArchitecture):
        return "architecture"
    if isinstance(error, (EngineMissing, Unreachable, WorkerDied)):
        return "unavailable"
    if isinstance(error, (LoadFailed, ModelInvalid, FetchFailed, Offline)):
        return "load"
    if isinstance(error, Overloaded) and not isinstance(error, RateLimited):
        return "queue"
    if isinstance(error, ContextOverflow):
        return "context"
    return "capability" if isinstance(error, Unsupported) else None


def once_more(call: Call, error: EnginebayError) -> bool:
    """Whether to try again; the call then knows where."""
    if not call.untouched or call.exchange.closed or call.offer is None:
        return False
    if isinstance(error, Draining):
        if call.served is not None:
            call.served.refused = True
        return call.give_up_at is None or time.monotonic() < call.give_up_at
    if isinstance(error, WorkerDied) and not isinstance(error, CrashLoop):
        call.deaths += 1
        if call.deaths <= _MOST_DEATHS:
            if call.served is not None:  # it was there: waiting for it once more is another wait
                call.give_up_at = None
            return True
    return _falls_back(call, error)


def _falls_back(call: Call, error: EnginebayError) -> bool:
    offer, why = call.offer, trigger(error)
    assert offer is not None
    if why is None or why not in offer.offering.triggers or call.variant + 1 >= len(offer.sessions):
        return False
    call.first_error = call.first_error or error
    call.variant += 1
    call.fallback = f"{offer.sessions[call.variant].kind} instead of {offer.first.kind}: {why}"
    call.deaths, call.give_up_at = 0, None
    return True

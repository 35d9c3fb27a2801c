"""Decides whether a failed request is retried: on another worker, or on the next engine of the model's chain."""

from __future__ import annotations

import time

from enginebay import errors
from enginebay.server.requests.request_context import RequestContext

# Bounds the damage of a request that crashes every worker. `crash_guard` refuses one that does so alone, after two.
_MAX_WORKER_DEATHS = 2


def classify_fallback_trigger(error: errors.EnginebayError) -> str | None:
    """Return the `fallback_on` trigger of an error, or None if another engine would not help. Pure."""
    if isinstance(error, errors.UnknownArchitecture):
        return "architecture"
    if isinstance(error, (errors.EngineMissing, errors.Unreachable, errors.WorkerDied)):
        return "unavailable"
    if isinstance(error, (errors.LoadFailed, errors.ModelInvalid, errors.FetchFailed, errors.Offline)):
        return "load"
    if isinstance(error, errors.Overloaded) and not isinstance(error, errors.RateLimited):
        return "queue" if error.of_model else None
    if isinstance(error, errors.ContextOverflow):
        return "context"
    return "capability" if isinstance(error, errors.Unsupported) else None


def should_retry(request_context: RequestContext, error: errors.EnginebayError) -> bool:
    """Return whether to retry, and update the context for the next attempt."""
    if not request_context.can_still_retry or request_context.exchange.closed or request_context.catalog_entry is None:
        return False
    if isinstance(error, errors.Draining):
        if request_context.session is not None:
            request_context.session.draining = True
        return request_context.wait_deadline is None or time.monotonic() < request_context.wait_deadline
    if isinstance(error, errors.WorkerDied) and not isinstance(error, errors.CrashLoop):
        request_context.worker_deaths += 1
        if request_context.worker_deaths <= _MAX_WORKER_DEATHS:
            if request_context.session is not None:  # it had loaded: the next load gets a full wait
                request_context.wait_deadline = None
            return True
    return _advance_to_fallback(request_context, error)


def _advance_to_fallback(request_context: RequestContext, error: errors.EnginebayError) -> bool:
    entry, trigger = request_context.catalog_entry, classify_fallback_trigger(error)
    assert entry is not None
    following = request_context.variant_index + 1
    if trigger is None or trigger not in entry.route.fallback_on or following >= len(entry.connectors):
        return False
    request_context.first_error = request_context.first_error or error
    request_context.variant_index = following
    request_context.fallback = f"{entry.connectors[following].kind} instead of {entry.primary.kind}: {trigger}"
    request_context.worker_deaths, request_context.wait_deadline = 0, None
    return True

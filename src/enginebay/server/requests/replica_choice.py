"""Chooses the replica of a request as it leaves the queue, where its model may have several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from enginebay.contract import GenerateRequest
from enginebay.server.encoding.response_writer import ResponseWriter
from enginebay.server.requests.crash_guard import SuspectTrial
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.sessions.model_session import ModelSession

# A session as clients name it: the first that is present. Claude Code, Codex and others send theirs unasked.
SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id", "session_id", "x-claude-code-session-id")

Leave = Callable[[], None]


def choose_replica(
    request_context: RequestContext,
    session: ModelSession,
    leave: Leave,
    requests: Sequence[GenerateRequest] = (),
    trial: SuspectTrial | None = None,
    writer: ResponseWriter | None = None,
) -> tuple[ModelSession, Leave]:
    """Return the session of the replica to use, and the function that frees its place there and in the queue.

    `session`: the one that the request was prepared with. Raises `Draining` if no replica accepts the request.
    """
    pool = session.pool
    if pool is None:
        return session, leave
    chosen = session
    if trial is None or not trial.alone:
        first = requests[0] if requests else None
        ids, adapter = (first.token_ids or (), first.lora or "") if first is not None else ((), "")
        chosen, reason = pool.choose(read_session_key(request_context), ids, adapter)
        chosen.count_route(reason)
    request_context.session = chosen
    if writer is not None:
        writer.session = chosen
    resumed = writer is not None and writer.is_paused
    if request_context.can_still_retry and not resumed:  # else the headers are sent, or name the first replica
        request_context.add_header_or_comment("x-enginebay-replica", chosen.replica)
    count = max(1, len(requests))
    pool.begin(chosen, count)

    def leave_replica() -> None:
        pool.end(chosen, count)
        leave()

    return chosen, leave_replica


def read_session_key(request_context: RequestContext) -> str:
    """Return what the requests of one session have in common, or ""."""
    return find_session_header(request_context.exchange.headers) or request_context.cache_key


def find_session_header(headers: Mapping[str, str]) -> str:
    return next((headers[name] for name in SESSION_HEADERS if headers.get(name)), "")

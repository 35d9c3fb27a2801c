"""Finds the request that kills workers, and refuses it from then on.

Every request that runs when a worker dies is a suspect. It is tried alone: the queue is held until nothing else runs,
and a small request of our own must succeed first. If the worker dies again, no other request can be the cause, nor can
the engine itself. A suspect that is answered is cleared.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from typing import Protocol

from enginebay.contract import GenerateRequest, Sampling
from enginebay.errors import Draining, EnginebayError, PoisonRequest, WorkerDied
from enginebay.server.requests.request_context import RequestContext
from enginebay.server.requests.suspect_table import SuspectEvent, SuspectTable
from enginebay.server.sessions.model_session import ModelSession
from enginebay.server.telemetry.server_log import ServerLog
from enginebay.server.telemetry.server_metrics import ServerMetrics

_CONTROL_TOKENS = 32
_POLL_S = 0.05
_trial_numbers = itertools.count(1)
# How long a suspect waits to run alone, and how long it then does, from its first token on: by its number of deaths.
# A first death is usually another request's fault, and others must not wait long for the trials.
_WAIT_S = (5.0, 60.0)
_ALONE_S = (2.0, 30.0)


class TrialGateway(Protocol):
    """Reaches all server processes."""

    async def begin_trial(self, variant: str, trial: str, urgent: bool = False, address: str = "") -> None:
        """Keep requests of all server processes from the worker, and wait until it runs nothing. May refuse to."""

    def end_trial(self, variant: str, trial: str) -> None:
        """Let others run, or stop waiting for it."""

    def share_suspect(self, event: SuspectEvent) -> None:
        """Tell the other processes. A refusal also forgives the model the deaths."""


class SuspectTrial:
    """One run of a suspect, alone if the others finish in time."""

    def __init__(self, gateway: TrialGateway, variant: str, digest: bytes, deaths: int) -> None:
        self.digest = digest
        self.alone = False
        self._gateway = gateway
        self._variant = variant
        self._id = f"{os.getpid()}:{next(_trial_numbers)}"
        self._level = min(deaths, len(_WAIT_S)) - 1
        self._watcher: asyncio.Task[None] | None = None

    async def begin(self, session: ModelSession) -> bool:
        """Wait until the suspect can run alone. Return whether it can. Raise if the engine fails without it."""
        try:
            async with asyncio.timeout(_WAIT_S[self._level]):
                urgent = self._level > 0
                await self._gateway.begin_trial(self._variant, self._id, urgent, session.client.handle.address)
        except BaseException as error:
            self._gateway.end_trial(self._variant, self._id)
            if isinstance(error, (TimeoutError, EnginebayError)):
                return False
            raise
        self.alone = True
        try:
            check_session(session)
            if not session.passed_control:
                await _run_control(session)
                session.passed_control = True
        except BaseException:
            self.end()
            raise
        return True

    def watch(self, has_output: Callable[[], object]) -> None:
        """End the trial some time after the first token, so that a long answer does not keep others waiting."""
        if self.alone:
            self._watcher = asyncio.create_task(self._end_after_output(has_output))

    async def _end_after_output(self, has_output: Callable[[], object]) -> None:
        while not has_output():
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_ALONE_S[self._level])
        self.end()

    def end(self) -> None:
        """Let others run. May be called twice."""
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        if self.alone:
            self.alone = False
            self._gateway.end_trial(self._variant, self._id)


class CrashGuard:
    """One per server process. `table` is falsy while there are no suspects: requests then need not ask."""

    def __init__(self, gateway: TrialGateway, metrics: ServerMetrics, log: ServerLog) -> None:
        self.table = SuspectTable()
        self._gateway = gateway
        self._metrics = metrics
        self._log = log

    def find_trial(self, request_context: RequestContext, digest: bytes) -> SuspectTrial | None:
        """Return the trial of a suspect, or None for any other request. Raise `PoisonRequest` for one that is refused."""
        if self.table.is_refused(digest):
            self._metrics.poison_refused.child(*request_context.labels).inc()
            raise _make_poison_error()
        deaths = len(self.table.get_deaths(digest))
        return SuspectTrial(self._gateway, request_context.variant, digest, deaths) if deaths else None

    def settle(
        self, request_context: RequestContext, session: ModelSession, trial: SuspectTrial | None,
        error: EnginebayError | None, compute_digest: Callable[[], bytes],
    ) -> EnginebayError | None:  # fmt: skip
        """Record how a request ended: a suspect is cleared by its answer. Return the error that it ends with."""
        if error is None and trial is not None:
            self._apply(SuspectEvent("cleared", trial.digest))
        if not isinstance(error, WorkerDied) or not session.client.client.broken:
            return error
        return self._record_death(request_context, session, compute_digest(), trial) or error

    def _record_death(
        self, request_context: RequestContext, session: ModelSession, digest: bytes, trial: SuspectTrial | None
    ) -> PoisonRequest | None:
        """Record that the request ran when its worker died. Return its refusal if nothing else can be the cause."""
        variant = request_context.variant
        self._apply(SuspectEvent("died", digest, variant, (session.client.handle.address,)))
        addresses = self.table.get_deaths(digest)
        if trial is None or not trial.alone or len(addresses) < 2:
            return None
        self._apply(SuspectEvent("refused", digest, variant, addresses))
        self._metrics.poison_refused.child(*request_context.labels).inc()
        self._log.log_event(
            "a request killed its worker twice and is refused from now on", level="error", request_id=request_context.id,
            model=request_context.model, engine=request_context.labels[1], deaths=len(addresses),
            key=request_context.key.name if request_context.key is not None else "", client=request_context.exchange.peer,
        )  # fmt: skip
        return _make_poison_error()

    def _apply(self, event: SuspectEvent) -> None:
        event = event._replace(sender=os.getpid())
        self.table.apply(event)
        self._gateway.share_suspect(event)


def check_session(session: ModelSession) -> None:
    """Raise `Draining`, which is retried, if the worker died before it got the request."""
    if session.client.client.broken or session.client.client.disconnected:
        raise Draining("the worker died before it got the request", "retry the request")


def _make_poison_error() -> PoisonRequest:
    return PoisonRequest(
        "this request ended two workers of the model while nothing else ran, so it is refused",
        "change the request; the server log has the details under this request id",
    )


async def _run_control(session: ModelSession) -> None:
    """Run a small request. Raise `WorkerDied` if the engine fails on it: then the suspect is not the cause."""
    client = session.client
    sampling = Sampling(max_tokens=_CONTROL_TOKENS, temperature=0.0, ignore_eos=session.supports("ignore_eos"))
    try:
        if client.handle.task == "embed":
            await client.client.embed([[1]])
            return
        async for _ in client.client.generate(GenerateRequest(token_ids=(1,), sampling=sampling)):
            pass
    except (WorkerDied, Draining):
        raise
    except EnginebayError:
        return  # a model that cannot take this prompt, but lives

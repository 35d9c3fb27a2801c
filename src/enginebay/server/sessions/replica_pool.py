"""The sessions with replicas that serve the same thing: a request prepared for one of them may go to any."""

from __future__ import annotations

from collections.abc import Sequence

from enginebay.errors import Draining
from enginebay.fleet.routing.model_client import ReplicaHandle
from enginebay.fleet.routing.replica_router import ReplicaRouter, RouteReason
from enginebay.server.sessions.model_session import ModelSession


def identify_service(handle: ReplicaHandle) -> str:
    """Return what a request is prepared for: replicas of an old and a new configuration may differ in it."""
    facts = handle.facts
    parts = (handle.model, handle.source, facts.kind, facts.version, facts.context_length, handle.task)
    formats = (handle.tool_format, handle.reasoning_format)
    return repr((*parts, *formats, handle.allow_special_tokens, sorted(handle.sampling.items())))


class ReplicaPool:
    """Counts this process's requests by replica, and chooses one for each request."""

    def __init__(self) -> None:
        self.router = ReplicaRouter()
        self.sessions: dict[str, ModelSession] = {}  # by worker address
        self._used: set[str] = set()  # replicas that ended a request of ours since the last shared count

    @property
    def load(self) -> float:
        """Requests in flight per replica."""
        return self.router.loads.total / max(1, len(self.router.loads))

    def add(self, session: ModelSession) -> None:
        session.pool = self
        self.sessions[session.address] = session
        self.refresh()

    def remove(self, address: str) -> None:
        del self.sessions[address]
        self._used.discard(address)
        self.refresh()

    def find_live(self) -> ModelSession | None:
        return next((session for session in self.sessions.values() if session.is_live), None)

    def refresh(self) -> None:
        """Route to the replicas that accept requests now."""
        routed = {address: session for address, session in self.sessions.items() if session.is_routed}
        known = set(self.router.loads.replicas)
        if routed.keys() != known:
            self.router.set_replicas(
                {address: session.replica for address, session in routed.items()},
                {address: session.client.facts.max_batch for address, session in routed.items()},
            )
            for address in routed.keys() - known:
                self.router.loads.set(address, routed[address].in_flight)

    def choose(
        self, session_key: str, token_ids: Sequence[int] = (), adapter: str = ""
    ) -> tuple[ModelSession, RouteReason]:
        """Choose the replica of a request. Raises `Draining` if none accepts it: it is then prepared anew."""
        while len(self.router.loads):
            choice = self.router.choose(session_key, token_ids, adapter)
            session = self.sessions[choice.replica]
            if session.is_routed:
                return session, choice.reason
            self.refresh()
        raise Draining("no replica of this model accepts requests now", "retry the request")

    def begin(self, session: ModelSession, requests: int) -> None:
        session.in_flight += requests
        self.router.loads.add(session.address, requests)

    def end(self, session: ModelSession, requests: int) -> None:
        session.in_flight -= requests
        if session.address in self.sessions:
            self._used.add(session.address)
        self.router.loads.add(session.address, -requests)

    def note_load(self, address: str, running: int) -> None:
        """Note how many requests a replica runs, of all server processes. A late count may be below our own."""
        if address in self.router.loads:
            self.router.loads.set(address, max(running, self.sessions[address].in_flight))

    def note_shared_load(self, address: str, running: int) -> None:
        """Note a count that came by way of the supervisor, unless we know better: a replica reports to those that use it."""
        is_used = address in self._used or self.sessions[address].in_flight > 0
        self._used.discard(address)
        if not is_used:
            self.note_load(address, running)

"""The state store for the event loop: one thread per server process does all reads and writes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from enginebay.config.sections.server_section import StateLimits
from enginebay.errors import ConfigError, EnginebayError, StateUnavailable
from enginebay.server.state.runner_locks import RunnerLock
from enginebay.server.state.state_store import StateStore
from enginebay.server.state.stored_records import NewResponse, NotStored
from enginebay.util.paths import home_dir

P = ParamSpec("P")
T = TypeVar("T")

_FILE_NAME = "responses.db"
_WAITING = 4096  # calls; beyond it the disk is too slow for the traffic
_BATCH = 64  # responses in one transaction
_EXPIRY_S = 600.0  # between looks for what has expired, on a quiet server
_TOO_SLOW = "too many calls are waiting for the state file"
_REFUSALS = (NotStored, StateUnavailable, ConfigError)


def state_dir() -> Path:
    return home_dir() / "state"


def check_state_file(limits: StateLimits) -> None:
    """Raise `ConfigError` if the file is from a newer version or another program. Creates it if it is missing."""
    if limits.enabled:
        with suppress(sqlite3.Error, OSError):  # a full disk or a damaged file does not keep the server from starting
            StateStore(state_dir() / _FILE_NAME, limits).close()


@dataclass(frozen=True, slots=True)
class _AddedResponse:
    """A response that waits to be stored. `encode` runs in the store's thread; `stored` becomes the reason why not."""

    owner: str
    encode: Callable[[], NewResponse]
    stored: asyncio.Future[str]


class StateClient:
    """Opens the file on the first call, and again after an error. Several processes may use one file."""

    def __init__(self, folder: Path, limits: StateLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._store: StateStore | None = None
        self._runner: RunnerLock | None = None
        self._waiting = 0
        self._added: deque[_AddedResponse] = deque()
        self._opening = threading.Lock()
        self._is_closed = False
        self._plan_expiry()

    def _plan_expiry(self) -> None:
        """Delete what is old although nothing new is stored."""
        with suppress(RuntimeError):  # outside of an event loop nothing is planned
            asyncio.get_running_loop().call_later(_EXPIRY_S, self._expire)

    def _expire(self) -> None:
        if not self._is_closed:
            self._plan_expiry()
            self.post(_expire_all)

    @property
    def limits(self) -> StateLimits:
        return self._limits

    async def call(self, method: Callable[Concatenate[StateStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the store in its thread. Raises `StateUnavailable` if the file cannot be used.

        A call that has begun ends, whatever happens to the caller.
        """
        if self._waiting >= _WAITING:
            raise StateUnavailable(_TOO_SLOW, "try again later")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: self._run(method, *args, **kwargs)
            )
        finally:
            self._waiting -= 1

    async def add_response(self, owner: str, encode: Callable[[], NewResponse]) -> str:
        """Store a response. Return why it was not stored: empty if it was. Those that wait share a transaction."""
        if len(self._added) >= _WAITING:
            return _TOO_SLOW
        added = _AddedResponse(owner, encode, asyncio.get_running_loop().create_future())
        self._added.append(added)
        if len(self._added) == 1:  # otherwise the thread has yet to come to those before it, and takes this one along
            try:
                self._thread.submit(self._add_waiting)
            except RuntimeError:
                self._added.clear()
                return "the server is stopping"
        return await added.stored

    def _add_waiting(self) -> None:
        """Store those that wait, but not more than one batch: other calls have their turn."""
        outcome: list[tuple[asyncio.Future[str], str | Exception]] = []
        encoded: list[tuple[asyncio.Future[str], str, NewResponse]] = []
        for added in self._take_added():
            try:
                encoded.append((added.stored, added.owner, added.encode()))
            except Exception as error:  # of this one alone
                outcome.append((added.stored, error))
        try:
            reasons = self._add_batch([(owner, new) for _, owner, new in encoded])
            outcome += [(stored, reason) for (stored, _, _), reason in zip(encoded, reasons, strict=True)]
        except Exception as error:  # a defect: it keeps nobody waiting
            outcome += [(stored, error) for stored, _, _ in encoded]
        with suppress(RuntimeError):  # the server has stopped
            if outcome:
                outcome[0][0].get_loop().call_soon_threadsafe(_settle, outcome)
            if self._added:
                self._thread.submit(self._add_waiting)

    def _take_added(self, count: int = _BATCH) -> list[_AddedResponse]:
        batch: list[_AddedResponse] = []
        with suppress(IndexError):
            while len(batch) < count:
                batch.append(self._added.popleft())
        return batch

    def _add_batch(self, responses: list[tuple[str, NewResponse]]) -> list[str]:
        """Return for each why it was not stored. If not all fit into one transaction, each has its own."""
        first = [(owner, new) for owner, new in responses if new.starts_chain]
        done, busy = False, ""
        if len(first) > 1:
            reason, is_busy = self._try(StateStore.add_first_responses, first)
            done, busy = not reason, reason if is_busy else ""
        reasons = []
        for owner, new in responses:
            reason = busy
            if done and new.starts_chain:
                reason = ""
            elif not busy:
                reason, is_busy = self._try(StateStore.add_response, owner, new)
                busy = reason if is_busy else ""  # each further one would wait as long for the file
            reasons.append(reason)
        return reasons

    def _try(
        self, method: Callable[Concatenate[StateStore, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[str, bool]:
        """In the thread: run a method that stores. Return why it did not, and whether because others use the file."""
        try:
            self._run(method, *args, **kwargs)
        except _REFUSALS as refusal:
            return _name_reason(refusal), getattr(refusal.__cause__, "sqlite_errorname", "").startswith("SQLITE_BUSY")
        return "", False

    async def write(self, method: Callable[Concatenate[StateStore, P], Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Run a method that stores. Return why it did not: empty if it did."""
        try:
            await self.call(method, *args, **kwargs)
        except _REFUSALS as refusal:
            return _name_reason(refusal)
        return ""

    def post(self, method: Callable[Concatenate[StateStore, P], Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a method in its turn, without waiting for it. Its errors are dropped."""
        with suppress(RuntimeError):  # the server has stopped
            self._thread.submit(lambda: self._run(method, *args, **kwargs))

    def _run(self, method: Callable[Concatenate[StateStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if self._store is None:
                self._store = StateStore(self._folder / _FILE_NAME, self._limits)
            return method(self._store, *args, **kwargs)
        except sqlite3.Error as error:
            if _must_reopen(error) and self._store is not None:
                with suppress(sqlite3.Error):
                    self._store.close()
                self._store = None
            raise StateUnavailable(_describe_error(error), "free disk space, or see the server log") from error
        except OSError as error:
            raise StateUnavailable(f"the state file cannot be opened: {error.strerror}") from error

    # Responses in the background

    @property
    def runner(self) -> str:
        """The name of this process, for responses that it generates in the background."""
        return self._lock_runner().runner

    def is_alive(self, runner: str) -> bool:
        return self._lock_runner().is_alive(runner)

    def _lock_runner(self) -> RunnerLock:
        with self._opening:
            if self._runner is None:
                self._runner = RunnerLock(self._folder / "runners")
            return self._runner

    def close(self) -> None:
        """Wait for the calls that have begun."""
        self._is_closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)
        for added in self._take_added(_WAITING):
            with suppress(RuntimeError):  # its event loop has ended
                added.stored.get_loop().call_soon_threadsafe(added.stored.cancel)
        if self._store is not None:
            with suppress(sqlite3.Error):
                self._store.close()
        if self._runner is not None:
            self._runner.close()


def _settle(outcome: Sequence[tuple[asyncio.Future[str], str | Exception]]) -> None:
    for stored, result in outcome:
        if stored.done():  # its caller is gone
            continue
        if isinstance(result, Exception):
            stored.set_exception(result)
        else:
            stored.set_result(result)


def _name_reason(refusal: Exception) -> str:
    return refusal.message if isinstance(refusal, EnginebayError) else str(refusal)


def _expire_all(store: StateStore) -> None:
    while store.expire():
        pass


def _must_reopen(error: sqlite3.Error) -> bool:
    """A busy or full file stays open; one that is damaged or was replaced does not."""
    return getattr(error, "sqlite_errorname", "") not in ("SQLITE_BUSY", "SQLITE_FULL")


def _describe_error(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return "the disk is full"
    if name.startswith("SQLITE_BUSY"):
        return "the state file is busy"
    if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB"):
        return "the state file is damaged"
    return f"the state file cannot be used ({name or type(error).__name__})"

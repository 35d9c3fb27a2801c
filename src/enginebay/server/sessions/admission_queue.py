"""Bounds how many requests a model runs at once and how many may queue for it, and shares both fairly between clients.

A freed slot goes to the waiting client that has used the least slot time, by its weight. A full queue drops the newest
request of the client that has the most in it, so that nobody can fill the share of another.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from enginebay.errors import Overloaded
from enginebay.util.limit_errors import format_limit_hint


class QueueClient(NamedTuple):
    """Who sends a request: an API key, or an address if there are no keys."""

    name: str
    weight: int = 1
    max_running: int | None = None  # slots it may take at once; None: all


ANYONE = QueueClient("")
_MAX_IDLE_ACCOUNTS = 64  # kept, so that a request of the same client need not open another


class _Waiter:
    __slots__ = ("granted", "number", "slots", "tokens", "turn")

    def __init__(self, number: int, slots: int, tokens: int) -> None:
        self.number = number
        self.slots = slots
        self.tokens = tokens
        self.granted = False
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _ClientAccount:
    """The slots of one client."""

    __slots__ = ("_counted_at", "_processes", "_used_s", "client", "running", "waiters")

    def __init__(self, client: QueueClient, processes: int) -> None:
        self.client = client
        self._processes = processes
        self.running = 0
        self.waiters: deque[_Waiter] = deque()
        self._used_s = self._counted_at = 0.0

    def reset(self, used_s: float, now: float) -> None:
        self._used_s, self._counted_at = used_s, now

    def measure_used_s(self, now: float) -> float:
        """Return the slot time used since the queue was last empty, divided by the weight."""
        self._used_s += self.running * (now - self._counted_at) / self.client.weight
        self._counted_at = now
        return self._used_s

    def may_run(self, slots: int) -> bool:
        limit = self.client.max_running
        return limit is None or not self.running or self.running + slots <= max(1, limit // self._processes)

    def competes(self) -> bool:
        """Return whether the client waits for others, and not only for its own requests."""
        return bool(self.waiters) and self.may_run(self.waiters[0].slots)

    def weigh(self, waiting: int) -> float:
        """Return how much of the queue this many requests are, for this client."""
        return waiting / self.client.weight


class AdmissionQueue:
    """Limits on running and waiting requests, in slots. `processes`: how many queues share a client's `max_running`."""

    def __init__(
        self,
        max_running: int,
        max_waiting: int,
        timeout_s: float,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_running = max_running
        self._max_tokens: int | None = None
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._processes = processes
        self._clock = clock
        self._accounts: dict[str, _ClientAccount] = {}
        self._waiter_count = 0  # also numbers them
        self._reserved_tokens = 0
        self._mean_duration_s = 1.0  # of recent requests, from start to end
        self._holds = 0
        self._returning: deque[tuple[QueueClient, _Waiter]] = deque()  # see `enter_again`
        self._idle: asyncio.Event | None = None  # while someone waits for it
        self.running = 0  # slots
        self.waiting = 0  # requests

    @property
    def is_full(self) -> bool:
        return self.running >= self._max_running and self.waiting >= self._max_waiting

    @property
    def reserves_tokens(self) -> bool:
        return self._max_tokens is not None

    def resize(self, max_running: int, max_tokens: int | None = None) -> None:
        """Apply what the engine runs at once: requests, and the tokens that they reserve in its KV cache."""
        self._max_running, self._max_tokens = max_running, max_tokens
        self._admit_waiters()

    def estimate_retry_after_s(self) -> float:
        """Estimate when the queue has a free slot, from recent request durations."""
        return self._mean_duration_s * (self.waiting + 1) / self._max_running

    def try_enter(self, client: QueueClient = ANYONE, slots: int = 1, tokens: int = 0) -> bool:
        """Take slots without waiting. Return False if too few are free or others come first."""
        if self._holds or not self._fits(slots, tokens):
            return False
        if self.waiting and self._find_next() is not None:
            return False
        account = self._accounts.get(client.name)
        if account is None or account.client != client:
            account = self._open_account(client)
        if client.max_running is not None and not account.may_run(slots):
            return False
        self._start(account, slots, tokens)
        return True

    async def enter(self, client: QueueClient = ANYONE, slots: int = 1, tokens: int = 0) -> None:
        """Wait for slots. Raise `Overloaded` if the queue is full or the wait times out."""
        if self.try_enter(client, slots, tokens):
            return
        account = self._open_account(client)
        waiter = self._enqueue(client, account, slots, tokens)
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter.turn
        except BaseException as error:
            if waiter.granted:  # just as the wait ended
                self._stop(client, slots, tokens)
            else:
                self._forget(client, account, waiter)
            if isinstance(error, TimeoutError):
                raise Overloaded(
                    f"the request timed out after {self._timeout_s:g} s in the queue",
                    format_limit_hint("queue_timeout_s", "try again later"),
                    retry_after_s=self.estimate_retry_after_s(),
                ) from None
            raise

    def leave(self, duration_s: float, client: QueueClient = ANYONE, slots: int = 1, tokens: int = 0) -> None:
        """Release the slots of a request that finished `duration_s` after it entered."""
        self._mean_duration_s += 0.05 * (duration_s - self._mean_duration_s)
        self._stop(client, slots, tokens)

    # A request that must run alone

    def hold(self) -> None:
        """Admit nobody until `release`."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        self._admit_returning()
        self._admit_waiters()

    async def wait_idle(self) -> None:
        """Wait until nothing runs. Call it only while the queue is held."""
        while self.running:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def enter_again(self, client: QueueClient, slots: int = 1, tokens: int = 0) -> None:
        """Take the slots that a request had on a worker that died: it had its turn, and waits only while the queue is held."""
        if not self._holds:
            self._start(self._open_account(client), slots, tokens)
            return
        waiter = _Waiter(0, slots, tokens)
        self._returning.append((client, waiter))
        try:
            await waiter.turn
        except BaseException:
            if waiter.granted:
                self._stop(client, slots, tokens)
            self._returning = deque(entry for entry in self._returning if entry[1] is not waiter)
            raise

    def enter_held(self, client: QueueClient, slots: int = 1, tokens: int = 0) -> None:
        """Take slots of a held queue."""
        self._start(self._open_account(client), slots, tokens)

    # Slots

    def _fits(self, slots: int, tokens: int) -> bool:
        """Return whether the slots are free. One that is too large for the limits fits when nothing runs."""
        if not self.running:
            return True
        if self._max_tokens is not None and self._reserved_tokens + tokens > self._max_tokens:
            return False
        return self.running + slots <= self._max_running

    def _start(self, account: _ClientAccount, slots: int, tokens: int) -> None:
        if self.waiting:
            account.measure_used_s(self._clock())
        account.running += slots
        self.running += slots
        self._reserved_tokens += tokens

    def _stop(self, client: QueueClient, slots: int, tokens: int) -> None:
        account = self._accounts[client.name]
        was_limited = bool(account.waiters) and not account.competes()
        if self.waiting:
            account.measure_used_s(self._clock())
        account.running -= slots
        if was_limited and account.competes():
            self._catch_up(account, [one for one in self._accounts.values() if one.competes()], self._clock())
        self.running -= slots
        self._reserved_tokens -= tokens
        if len(self._accounts) > _MAX_IDLE_ACCOUNTS:
            self._close_account(client, account)
        if self._idle is not None and not self.running:
            self._idle.set()
            self._idle = None
        if self.waiting:
            self._admit_waiters()

    def _admit_returning(self) -> None:
        while not self._holds and self._returning:
            client, waiter = self._returning.popleft()
            if not waiter.turn.done():
                self._start(self._open_account(client), waiter.slots, waiter.tokens)
                waiter.granted = True
                waiter.turn.set_result(None)

    def _admit_waiters(self) -> None:
        while not self._holds and (account := self._find_next()) is not None:
            waiter = account.waiters[0]
            if not self._fits(waiter.slots, waiter.tokens):
                return  # smaller ones wait too, or it would starve
            account.waiters.popleft()
            if not waiter.turn.done():  # else it was cancelled, and forgets itself
                self._start(account, waiter.slots, waiter.tokens)
                waiter.granted = True
                waiter.turn.set_result(None)
            self.waiting -= 1

    # Fairness

    def _open_account(self, client: QueueClient) -> _ClientAccount:
        account = self._accounts.get(client.name)
        if account is None:
            account = self._accounts[client.name] = _ClientAccount(client, self._processes)
        account.client = client  # its key may have another weight since a reload
        return account

    def _close_account(self, client: QueueClient, account: _ClientAccount) -> None:
        if not account.running and not account.waiters and self._accounts.get(client.name) is account:
            del self._accounts[client.name]

    def _forget(self, client: QueueClient, account: _ClientAccount, waiter: _Waiter) -> None:
        """Remove a request that does not wait any more."""
        if waiter in account.waiters:
            account.waiters.remove(waiter)
            self.waiting -= 1
        self._close_account(client, account)
        self._admit_waiters()  # it may have kept smaller ones waiting

    def _find_next(self) -> _ClientAccount | None:
        """Return the client whose turn it is: the one that used the least, then the one that waits longest."""
        if not self.waiting:
            return None
        now = self._clock()
        return min(
            (one for one in self._accounts.values() if one.competes()),
            key=lambda one: (one.measure_used_s(now), one.waiters[0].number),
            default=None,
        )

    def _enqueue(self, client: QueueClient, account: _ClientAccount, slots: int, tokens: int) -> _Waiter:
        if self.waiting >= self._max_waiting and not self._make_room(account):
            self._close_account(client, account)
            raise self._make_full_error()
        self._join_backlog(account)
        self._waiter_count += 1
        waiter = _Waiter(self._waiter_count, slots, tokens)
        account.waiters.append(waiter)
        self.waiting += 1
        return waiter

    def _join_backlog(self, account: _ClientAccount) -> None:
        """Let a client wait on equal terms: what it used while nobody waited does not count, nor what it did not use."""
        now = self._clock()
        competing = [one for one in self._accounts.values() if one.competes()]
        if not competing:
            for one in self._accounts.values():
                one.reset(0.0, now)
        elif not account.waiters:
            self._catch_up(account, competing, now)

    def _catch_up(self, account: _ClientAccount, competing: list[_ClientAccount], now: float) -> None:
        least_s = min((one.measure_used_s(now) for one in competing if one is not account), default=0.0)
        account.reset(max(account.measure_used_s(now), least_s), now)

    def _make_room(self, account: _ClientAccount) -> bool:
        """Drop a request of the client with the most waiting ones, by weight. Return False if that would be this one."""
        largest = max(self._accounts.values(), key=lambda one: one.weigh(len(one.waiters)))
        if account.weigh(len(account.waiters) + 1) >= largest.weigh(len(largest.waiters)):
            return False
        error = self._make_full_error()
        dropped = largest.waiters.pop()
        self.waiting -= 1
        if not dropped.turn.done():
            dropped.turn.set_exception(error)
        return True

    def _make_full_error(self) -> Overloaded:
        return Overloaded(
            f"{self.waiting} requests are already queued for this model",
            format_limit_hint("queue", "try again later"),
            retry_after_s=self.estimate_retry_after_s(),
        )

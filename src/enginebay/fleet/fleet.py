"""All workers of this host: who is loaded, who waits, who leaves, and what happens when one dies.

Decisions are `residency.decide` and `supervision`; this file carries them out. One event loop owns it.

    cold ──raise──▶ awake ──lower──▶ asleep ──raise──▶ awake          a worker that dies leaves its place cold,
      ▲                │                │                             and is raised again after a while
      └─────lower──────┴────lower───────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from enginebay.config.fleet import FleetConfig
from enginebay.errors import EnginebayError, LoadFailed, Overloaded, UnknownModel, WorkerDied
from enginebay.fleet import deaths
from enginebay.fleet.host import HostFacts
from enginebay.fleet.measured import Measured
from enginebay.fleet.model_client import Resident
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.moves import Mover, Phases, Raised, StillBusy
from enginebay.fleet.outlook import Outlook, told
from enginebay.fleet.place import Place
from enginebay.fleet.residency import Action, Bytes, Close, Depth, Holding, Move, Open, Refuse, Rules, decide, outlook
from enginebay.fleet.residency_state import Account, extra
from enginebay.fleet.room import Room
from enginebay.fleet.standby import Standbys
from enginebay.fleet.switches import Switch, Switches, together
from enginebay.fleet.variants import Variant
from enginebay.fleet.waiters import Waiters
from enginebay.fleet.watch import Watch
from enginebay.worker.oom_kills import oom_kills

_SEE_IN_S = 0.02
_MOVING_S = 0.05
_TICK_S = 1.0
_OUTLOOK_S = 0.5
_LONGEST_S = 3600.0  # an estimate beyond is no estimate

Event = Callable[..., None]  # (what, level=..., **fields)


class Fleet:
    """`want` a variant to have it awake. `close` ends everything."""

    def __init__(
        self, variants: Iterable[Variant], config: FleetConfig, host: HostFacts, measured: Measured, event: Event
    ) -> None:
        self.config = config
        self.event = event
        self.measured = measured
        self.switches = Switches()
        self.standbys = Standbys(config.standby, event)
        self.room = Room(config, host, measured)
        self.places = {variant.name: self.room.place(variant) for variant in variants}
        self.mover = Mover(self.standbys, config.load_timeout_s, event)
        self._watch = Watch(config.hang_s, self._fell_silent)
        self._waiters = Waiters()
        self._freed: list[tuple[float, str, Phases]] = []  # who has left lately, and when
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turn = asyncio.Event()
        self._outlooks: dict[str, tuple[float, float]] = {}  # when it was made, and its seconds
        self._closing = False
        self._governor = asyncio.create_task(self._govern())

    # What is asked of it

    async def want(
        self, name: str, patience_s: float | None = None, broken: str = "", *, queued: bool = True
    ) -> Resident:
        """The variant's worker, awake and open, after at most so long.

        `broken`: the address of a worker that whoever asks could not reach; `queued`: as one of the clients, whose
        number is bounded. Raises `Overloaded` when it takes too long or too many wait already, `CrashLoop` or what
        loading said when it cannot be had.
        """
        place = self.place(name)
        if broken and place.worker is not None and place.worker.resident.address == broken:
            await self._watch.reach(place)
        if place.ready:
            assert place.worker is not None
            place.hand(1)
            return place.worker.resident
        self.refuse_in_trouble(place)
        if queued and self._waiters.clients >= self.config.queue:
            raise Overloaded(
                f"{self._waiters.clients} requests already wait for models to be loaded",
                "try again later; the limit is set by fleet.queue",
                retry_after_s=self.outlook(name).seconds,
            )  # fmt: skip
        number, future = self._waiters.add(name, self.config.max_wait_s if patience_s is None else patience_s)
        self._turn.set()
        self._start(self.look())  # who could leave for it is decided on what is so now
        try:
            return await future
        finally:
            self._waiters.remove(number)

    def outlook(self, name: str) -> Outlook:
        """What whoever waits for it is told."""
        place = self.place(name)
        if place.ready:
            return Outlook(name, "awake", 0.0, 0)
        now = time.monotonic()
        made_at, seconds = self._outlooks.get(name, (0.0, 0.0))
        if now - made_at > _OUTLOOK_S:  # however many wait for it, it is worked out once
            waiting = self._waiters.oldest_of_each()
            seconds = outlook(now, self.room.memory, self._holdings(), waiting, self._rules, name)
            self._outlooks[name] = (now, seconds)
        return Outlook(name, told(place), min(seconds, _LONGEST_S), self._waiters.count(name))

    def place(self, name: str) -> Place:
        found = self.places.get(name)
        if found is None:
            raise UnknownModel(f"there is no model {name!r}", f"there are: {', '.join(self.places)}", param="model")
        return found

    def fits(self, name: str) -> bool:
        """Whether it could be loaded without anybody leaving."""
        return self._account().fits_now(extra(self.room.holding(self.place(name)), Depth.AWAKE))

    def has_room_for(self, needed: Bytes) -> bool:
        return self._account().fits_now(needed)

    def _account(self) -> Account:
        return Account(self.room.memory, self._holdings(), self._rules)

    def waiting(self, name: str) -> int:
        return self._waiters.count(name)

    def configure(self, config: FleetConfig) -> None:
        """Other rules from now on."""
        self.config = config
        self.room.configure(config, self.places.values())
        self.mover.load_timeout_s = config.load_timeout_s
        self.standbys.kinds = frozenset(config.standby)
        self._watch.hang_s = config.hang_s
        self._turn.set()

    def forgive(self, place: Place) -> None:
        """Somebody has seen to it: the next try is now."""
        place.deaths.clear()
        place.trouble, place.not_before = None, 0.0
        self._turn.set()

    async def lower(self, place: Place, to: Depth, patience_s: float | None = None) -> None:
        """By order rather than by plan. Raises `Overloaded` when requests run on for too long."""
        if place.moving or place.changing:
            raise Overloaded(f"{place.name} is {told(place)}", "try again in a moment")
        if place.depth is Depth.COLD or place.depth is to:
            return
        place.leave_for(to)
        if not await self._lower(place, self.config.max_wait_s if patience_s is None else patience_s):
            raise Overloaded(f"requests to {place.name} still run", "try again later")

    def replace_worker(self, place: Place, raised: Raised, variant: Variant) -> ModelWorker | None:
        """Another worker takes the place; gives back the one that had it, which may still have requests."""
        old = place.worker
        self.become(place, variant)
        self._seated(place, raised, time.monotonic())
        return old

    def become(self, place: Place, variant: Variant) -> None:
        """What is loaded here the next time."""
        fresh = self.room.place(variant)
        for name in ("variant", "key", "awake", "asleep", "need", "idle_s", "raise_s", "min_residency_s"):
            setattr(place, name, getattr(fresh, name))
        place.smaller = place.trouble = place.facts = place.switch = None  # those were of what it was before
        place.not_before, place.last_failure = 0.0, ""
        place.deaths.clear()

    def forget(self, name: str) -> ModelWorker | None:
        """The variant is no longer offered; gives back its worker, which may still have requests."""
        place = self.places.pop(name)
        worker = place.worker
        place.vacate()
        self._waiters.fail(name, UnknownModel(f"{name} is no longer served", param="model"))
        return worker

    def wish(self, name: str) -> None:
        """Have it loaded although nobody asks for it yet."""
        self._waiters.wish(name, self.config.max_wait_s)
        self._turn.set()

    async def close(self) -> None:
        self._closing = True
        self._governor.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(self._governor, *self._tasks, return_exceptions=True)
        for name in self.places:
            self._waiters.fail(name, WorkerDied("the server is stopping"))
        workers = [place.worker for place in self.places.values() if place.worker is not None]
        await asyncio.gather(self.standbys.close(), *(worker.close() for worker in workers), return_exceptions=True)
        self.measured.save()

    # Governing

    @property
    def _rules(self) -> Rules:
        return Rules(max_awake=self.config.max_awake)

    def _holdings(self) -> list[Holding]:
        return [self.room.holding(place) for place in self.places.values()]

    async def _govern(self) -> None:
        """Look at everything whenever something has happened, and once a second."""
        looked_at = 0.0
        while True:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._turn.wait()
            except TimeoutError:
                pass
            self._turn.clear()
            if time.monotonic() - looked_at >= _TICK_S:
                looked_at = time.monotonic()
                self._start(self.look())
            try:
                self._plan()
            except Exception as error:  # a plan that fails must not be the last one
                self.event("the plan failed", level="error", error=repr(error))
                await asyncio.sleep(_TICK_S)

    async def look(self) -> None:
        """Ask all workers how they are."""
        looked_at = [place for place in self.places.values() if place.worker is not None and not place.moving]
        await asyncio.gather(*(self._watch.look(place, self._first_token) for place in looked_at))
        self._turn.set()
        for place in looked_at:
            self.room.note_memory(place)
            place.oom_kills = oom_kills()
        if not any(place.moving for place in self.places.values()):
            self.room.read_memory(self.places.values())
            plans = [place.variant.plan for place in self.places.values() if place.variant.plan is not None]
            self.standbys.keep(plans, expecting=len(self._waiters) > 0)

    def _plan(self) -> None:
        now = time.monotonic()
        for action in decide(now, self.room.memory, self._holdings(), self._waiters.all(), self._rules):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Refuse):
            self._refuse(action)
            return
        place = self.places[action.name]
        if isinstance(action, Move):
            place.leave_for(action.to)
            if action.to is Depth.AWAKE:
                self._start(self._raise(place))
            else:
                self._prepare_next()
                self._start(self._lower(place, self.config.max_wait_s))
        elif isinstance(action, Close):
            place.closed, place.closed_since = True, time.monotonic()
            self._start(self._shut(place))
        elif isinstance(action, Open):
            place.closed = False
            self._start(self._unshut(place))

    def _prepare_next(self) -> None:
        """Somebody makes room: the process of whoever it is for can be started meanwhile, since that takes little."""
        for waiting in self._waiters.all():
            place = self.places.get(waiting.model)
            if place is not None and not place.ready:
                if place.depth is Depth.COLD and place.variant.plan is not None:
                    self.standbys.prepare(place.variant.plan)
                return

    def _refuse(self, refusal: Refuse) -> None:
        if refusal.reason == "memory":
            error = _without_room()
        else:
            error = Overloaded(
                "the request waited for its model as long as it may, and it is not loaded yet", "try again later",
                retry_after_s=refusal.retry_after_s,
            )  # fmt: skip
        self._waiters.refuse(refusal.id, error)

    def refuse_in_trouble(self, place: Place) -> None:
        """At once, so that whoever has another engine to ask need not wait for the next try of this one."""
        error = place.refusal()
        if error is not None:
            raise error.with_traceback(None)  # else each time would add to it
        place.trouble = None  # one more try

    def troubles(self) -> dict[str, EnginebayError]:
        """What whoever asks for a variant is refused with now, of those that are in trouble or can never be loaded."""
        account = self._account()
        found = dict[str, EnginebayError]()
        for name, place in self.places.items():
            if (error := place.refusal()) is not None:
                found[name] = error
            elif place.depth is not Depth.AWAKE and not account.can_ever_fit(account.models[name]):
                found[name] = _without_room()
        return found

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.event("the fleet failed at something", level="error", error=repr(error))

    # Carrying out

    async def _shut(self, place: Place) -> None:
        worker = place.worker
        if worker is None:
            return
        try:
            left = await worker.client.drain(self.config.max_wait_s)
        except WorkerDied:
            return  # which is seen to elsewhere
        if place.worker is worker and place.closed:
            place.running = left
            self._turn.set()

    async def _unshut(self, place: Place) -> None:
        worker = place.worker
        if worker is None:
            return
        try:
            await worker.client.open()
        except EnginebayError as error:
            self.event("a model could not be opened again", level="warning", model=place.name, error=error.message)
            if place.worker is worker and place.ready:
                place.closed = True  # as it was: whoever waits goes on waiting, and the plan tries again
            return
        self._awake(place)

    def _awake(self, place: Place) -> None:
        if place.ready and place.worker is not None:
            place.hand(self._waiters.satisfy(place.name, place.worker.resident))
            if place.arriving and len(self._waiters) > 0:
                self._start(self._see_in(place))
        self._turn.set()

    async def _see_in(self, place: Place) -> None:
        """Others wait: until those whom it was raised for are there its door stays open, and not for longer."""
        while place.arriving and place.ready:
            await asyncio.sleep(_SEE_IN_S)
            await self.look()

    async def _raise(self, place: Place) -> None:
        place.oom_kills = oom_kills()
        wanted_at = self._waiters.oldest(place.name) or time.monotonic()
        try:
            raised = await self._woken(place) or await self.mover.loaded(place)
        except EnginebayError as error:
            self._could_not(place, error)
            return
        except Exception as error:  # whatever it is, nobody may be left waiting for it
            self._could_not(place, LoadFailed(f"{place.name} could not be loaded: {type(error).__name__}: {error}"))
            raise
        self._seated(place, raised, wanted_at)

    async def _woken(self, place: Place) -> Raised | None:
        """From its sleep; None: there is none to wake, or it did not wake as it should and is gone."""
        worker = place.worker
        if worker is None:
            return None
        try:
            return await self.mover.woken(worker)
        except EnginebayError as error:
            self.event(
                "a model did not wake, and is loaded anew", level="warning", model=place.name, error=error.message
            )
            place.worker = None
            await worker.kill()
            return None

    def _seated(self, place: Place, raised: Raised, wanted_at: float) -> None:
        self._outlooks.pop(place.name, None)  # more is known now of how long it takes
        if raised.worker is not place.worker:
            self._start(self._attend(place, raised.worker))
        place.seat(raised.worker, raised.requests)
        self.room.settle(place, raised)
        freed = [one for one in self._freed if one[0] >= wanted_at and one[1] != place.name]
        self._freed = []
        phases = together([raised.phases, *(spent for _, _, spent in freed)])
        switch = Switch(
            time.time() - sum(phases.values()), place.name, place.variant.kind, raised.how,
            tuple(name for _, name, _ in freed), phases, self.config.switch_slo_s,
        )  # fmt: skip
        place.switch = switch
        self.switches.add(switch)
        self.event("model ready", **switch.fields())
        warning = switch.warning()
        if warning is not None:
            self.event(warning, level="warning", model=place.name)
        self._awake(place)

    def _first_token(self, place: Place, seconds: float) -> None:
        if place.switch is not None and "first_token" not in place.switch.phases:
            place.switch = self.switches.add_phase(place.switch, "first_token", seconds)

    async def _lower(self, place: Place, patience_s: float) -> bool:
        to, started = place.depth, time.monotonic()
        drained_s = started - place.closed_since if place.closed else 0.0  # what ran on behind its closed door
        try:
            spent = await self.mover.lowered(place, to, patience_s)
            spent["drain"] = spent.get("drain", 0.0) + drained_s
        except StillBusy:
            place.stay()
            self._awake(place)
            return False
        except Exception as error:  # it could not sleep: what is left of it is not to be trusted
            self.event("a model could not be put to sleep", level="warning", model=place.name, error=repr(error))
            spent = {}
            if place.worker is not None:
                await place.worker.kill()
            to = Depth.COLD
        if to is Depth.COLD:
            place.vacate()
        else:
            place.moving, place.closed, place.idle_since = False, False, time.monotonic()
            self.measured.note_seconds(place.key, "sleep", spent.get("free", 0.0))
        self._freed.append((started, place.name, spent))
        self.event("model lowered", model=place.name, to=to.value, seconds=round(sum(spent.values()), 3))
        self._turn.set()
        return True

    # When things go wrong

    async def _attend(self, place: Place, worker: ModelWorker) -> None:
        """Until the worker's process ends, by whatever death."""
        await worker.process.wait()
        while place.worker is worker and place.moving:  # whoever moves it may see to it
            await asyncio.sleep(_MOVING_S)
        if place.worker is worker and not self._closing:
            await self._died(place, worker, None)

    async def _fell_silent(self, place: Place, why: str) -> None:
        """The watch has found it hung or out of reach."""
        if place.worker is not None:
            await self._died(place, place.worker, why)

    async def _died(self, place: Place, worker: ModelWorker, killed_because: str | None) -> None:
        if place.worker is not worker:
            return  # somebody else has seen to it
        place.comes_back = place.depth is Depth.AWAKE
        await deaths.record_death(place, worker, killed_because, self.config, self.event)
        if place.trouble is None:
            if place.comes_back:
                self._waiters.wish(place.name, self.config.max_wait_s)
        else:
            self._waiters.fail(place.name, place.trouble)
        self._turn_later(place)

    def _could_not(self, place: Place, error: EnginebayError) -> None:
        """It was to be raised. What it was asked for cannot wait for another try: that may never succeed."""
        worker = deaths.record_failure(place, error, self.config, self.event)
        if worker is not None:
            self._start(worker.kill())
        self._waiters.fail(place.name, place.trouble or error)
        self._turn_later(place)

    def _turn_later(self, place: Place) -> None:
        """Now, and when the next try is due."""
        self._turn.set()
        delay_s = max(0.0, place.not_before - time.monotonic())
        asyncio.get_running_loop().call_later(delay_s, self._try_again, place)

    def _try_again(self, place: Place) -> None:
        """What was awake, or is to be from the start, comes back although nobody asks for it."""
        due = time.monotonic() >= place.not_before and place.worker is None and not place.moving
        if due and not self._closing and self.places.get(place.name) is place:
            place.trouble = None
            settings = place.variant.settings
            if place.comes_back or settings.pinned:
                self._waiters.wish(place.name, self.config.max_wait_s)
        self._turn.set()


def _without_room() -> Overloaded:
    return Overloaded(
        "the model does not fit beside those that are pinned: into the memory there is, or into max_awake",
        "see `bay ps`", retry_after_s=60.0,
    )  # fmt: skip

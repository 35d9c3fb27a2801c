"""Models that change while they serve: a new worker takes over when it answers, and no request is lost over it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from enginebay.config.fleet import FleetConfig
from enginebay.errors import EnginebayError
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.model_worker import ModelWorker
from enginebay.fleet.moves import Raised, StillBusy, check_answers, drain
from enginebay.fleet.place import Place
from enginebay.fleet.residency import Depth
from enginebay.fleet.variants import Variant


@dataclass(frozen=True, slots=True)
class _Successor:
    place: Place
    variant: Variant
    raised: Raised


class Changes:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._leaving: set[asyncio.Task[None]] = set()

    async def replaced(self, place: Place, variant: Variant) -> None:
        """The variant as it is to be from now on. Raises, with all as it was, when it cannot be so."""
        await self.to([variant if one is place else one.variant for one in self._fleet.places.values()])

    async def to(self, variants: Iterable[Variant], rules: FleetConfig | None = None) -> dict[str, list[str]]:
        """These variants and no others. All or nothing: what does not load or does not answer leaves all as it was.

        `rules`: those that workers made beside others are judged by; None for the present ones.
        """
        wanted = {variant.name: variant for variant in variants}
        places = self._fleet.places
        changed: list[Place] = [
            places[name] for name, one in wanted.items() if name in places and _differs(places[name].variant, one)
        ]
        for place in changed:
            place.changing = True
        try:
            successors = await self._prepared(changed, wanted, rules or self._fleet.config)
            try:
                await self._restarted([place for place in changed if _not_among(place, successors)], wanted)
            except BaseException:
                await _killed(successors)
                raise
            for successor in successors:
                await _at_rest(successor.place)
                old = self._fleet.replace_worker(successor.place, successor.raised, successor.variant)
                self._let_go(old)
        finally:
            for place in changed:
                place.changing = False
        gone = [name for name in places if name not in wanted]
        for name in gone:
            await _at_rest(places[name])
            self._let_go(self._fleet.forget(name))
        added = [name for name in wanted if name not in places]
        for name, variant in wanted.items():
            if name in added:
                places[name] = self._fleet.room.place(variant)
            elif places[name] not in changed:
                places[name].variant, places[name].idle_s = variant, variant.idle_s
        return {"added": added, "removed": gone, "changed": [place.name for place in changed]}

    async def _prepared(self, places: list[Place], wanted: dict[str, Variant], rules: FleetConfig) -> list[_Successor]:
        """Workers beside those that serve, as far as memory allows; each has answered."""
        found: list[_Successor] = []
        try:
            for place in places:
                variant = wanted[place.name]
                if not place.ready or not self._fits_beside(variant, found):
                    continue
                if variant.plan is None:
                    raise variant.error or EnginebayError(f"{place.name} cannot be planned")
                raised = await self._fleet.mover.opened(variant.plan, variant.sampling, rules.load_timeout_s)
                found.append(_Successor(place, variant, raised))
                await check_answers(raised.worker, rules.hang_s)
        except BaseException:
            await _killed(found)
            raise
        return found

    def _fits_beside(self, variant: Variant, others: list[_Successor]) -> bool:
        """Beside all that is there, and beside those that were made before it."""
        needed: dict[str, int] = {}
        for one in (variant, *(other.variant for other in others)):
            for pool, amount in self._fleet.room.place(one).awake.items():
                needed[pool] = needed.get(pool, 0) + amount
        return self._fleet.has_room_for(needed)

    async def _restarted(self, places: list[Place], wanted: dict[str, Variant]) -> None:
        """Where two do not fit: the old one leaves first. Requests wait meanwhile; if the new one fails, the old is back."""
        before: list[tuple[Place, Variant, bool]] = []
        try:
            for place in places:
                await _at_rest(place)
                was_awake = place.worker is not None and place.depth is Depth.AWAKE
                place.changing = False
                await self._fleet.lower(place, Depth.COLD)
                before.append((place, place.variant, was_awake))
                self._fleet.become(place, wanted[place.name])
                if was_awake:
                    await self._fleet.want(place.name, queued=False)
        except BaseException:
            for place, variant, was_awake in before:
                await self._back(place, variant, was_awake)
            raise

    async def _back(self, place: Place, variant: Variant, was_awake: bool) -> None:
        """As it was. What has come meanwhile finishes on the worker that is to go."""
        await _at_rest(place)
        worker = place.worker
        place.vacate()
        self._let_go(worker)
        self._fleet.become(place, variant)
        self._fleet.forgive(place)
        if was_awake:
            self._fleet.wish(place.name)

    def _let_go(self, worker: ModelWorker | None) -> None:
        """It finishes what it has; what comes to it still is sent elsewhere."""
        if worker is not None:
            task = asyncio.ensure_future(self._drained(worker))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _drained(self, worker: ModelWorker) -> None:
        patience_s = self._fleet.config.max_wait_s
        try:
            while True:
                try:
                    await drain(worker, patience_s, reopen=False)
                    return
                except StillBusy:
                    continue  # an answer may take longer than anybody waits for a model
        finally:
            await worker.close()

    async def close(self) -> None:
        for task in list(self._leaving):
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)


def _differs(one: Variant, other: Variant) -> bool:
    """Whether another worker is needed for it."""
    if one.plan is None or other.plan is None:
        return one.plan is not other.plan or str(one.error) != str(other.error)
    return (one.plan.launch, one.plan.tool_format, one.sampling) != (
        other.plan.launch,
        other.plan.tool_format,
        other.sampling,
    )


async def _killed(successors: list[_Successor]) -> None:
    await asyncio.gather(*(one.raised.worker.kill() for one in successors), return_exceptions=True)


async def _at_rest(place: Place) -> None:
    while place.moving:
        await asyncio.sleep(0.05)


def _not_among(place: Place, successors: list[_Successor]) -> bool:
    return all(one.place is not place for one in successors)

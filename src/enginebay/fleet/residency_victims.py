"""Who has to make room for a model, and how deep each of them goes: as few and as little as is enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from enginebay.fleet.residency_state import Account, Bytes, Depth, Holding, extra, need


@dataclass(frozen=True, slots=True)
class Room:
    """What makes enough room: how deep each goes, and the account when all have arrived there."""

    targets: Mapping[str, Depth]
    settled: Bytes
    ready: bool  # False: somebody in it cannot be asked yet, so nobody is


def make_room(now: float, account: Account, model: Holding, wanted: Set[str], kept: Set[str]) -> Room:
    """The cheapest room for `model` to be awake. `wanted`: others wait for these; `kept`: older requests hold these."""
    more = extra(model, Depth.AWAKE)
    tiers = _tiers(now, [other for other in account.models.values() if other.name != model.name], wanted, kept)
    later = {other.name for other in tiers[-1]}
    candidates: list[Holding] = []
    for tier in tiers:
        candidates += tier
        attempt = _Attempt(account, more)
        if attempt.lower(candidates):
            targets = {one.name: attempt.targets[one.name] for one in candidates if one.name in attempt.targets}
            return Room(targets, attempt.settled, later.isdisjoint(targets))
    return Room({}, account.settled, ready=False)


def _tiers(now: float, others: Sequence[Holding], wanted: Set[str], kept: Set[str]) -> list[list[Holding]]:
    """Candidates in the order they are drawn on, each tier only when those before are not enough.

    A closed model keeps its place whoever waits for it: else requests for two busy models would have the planner close
    one and open the other for ever, and neither would drain.
    """
    idle: list[Holding] = []
    busy: list[Holding] = []
    idle_wanted: list[Holding] = []
    busy_wanted: list[Holding] = []
    later: list[Holding] = []
    for other in others:
        if other.pinned or other.depth is Depth.COLD:
            continue
        if other.moving or other.name in kept or now < other.residency_ends:
            later.append(other)
        elif other.running == 0:
            (idle_wanted if other.name in wanted and not other.closed else idle).append(other)
        elif other.depth is Depth.AWAKE:
            (busy_wanted if other.name in wanted and not other.closed else busy).append(other)
        else:
            later.append(other)  # asleep, and something still runs: it cannot stay so
    for tier in (idle, idle_wanted):
        tier.sort(key=lambda it: (it.idle_since, it.name))
    for tier in (busy, busy_wanted):  # those who are on their way out first, then who is likely to be free soonest
        tier.sort(key=lambda it: (not it.closed, it.running, it.awake_since, it.name))
    later.sort(key=lambda it: (it.name in kept, it.moving, it.residency_ends, it.name))
    return [idle, busy, idle_wanted, busy_wanted, later]


class _Attempt:
    """One search for a sufficient set among given candidates."""

    def __init__(self, account: Account, more: Bytes) -> None:
        self._memory = account.memory
        self._before = account.settled
        self._more = more
        self.settled = dict(account.settled)
        self.targets: dict[str, Depth] = {}

    def lower(self, candidates: Sequence[Holding]) -> bool:
        """Lowers the first ones first, until there is room; False: all of them are not enough."""
        self._put_asleep(candidates)
        self._unload(candidates)
        if self._short():
            return False
        self._spare(candidates)
        return True

    def _put_asleep(self, candidates: Sequence[Holding]) -> None:
        for model in candidates:
            short = self._short()
            if not short:
                return
            if _can_sleep(model) and _frees(model, Depth.AWAKE, Depth.ASLEEP, short):
                self._aim(model, Depth.ASLEEP)

    def _unload(self, candidates: Sequence[Holding]) -> None:
        for model in candidates:
            short = self._short()
            if not short:
                return
            if _frees(model, self._target(model), Depth.COLD, short):
                self._aim(model, Depth.COLD)

    def _spare(self, candidates: Sequence[Holding]) -> None:
        """Takes back what turned out not to be needed, the last ones first."""
        for model in reversed(candidates):
            target = self._target(model)
            if target is model.depth:
                continue
            milder = [model.depth]
            if target is Depth.COLD and _can_sleep(model):
                milder.append(Depth.ASLEEP)
            for depth in milder:
                self._aim(model, depth)
                if not self._short():
                    break
                self._aim(model, target)

    def _short(self) -> set[str]:
        """Pools without enough room. What nobody here adds to is no concern, even if it is over its memory."""
        short = set()
        for pool, amount in self.settled.items():
            more = self._more.get(pool, 0)
            grows = more > 0 or amount > self._before.get(pool, 0)
            if grows and amount + more > self._memory.get(pool, 0):
                short.add(pool)
        for pool, more in self._more.items():
            if pool not in self.settled and more > self._memory.get(pool, 0):
                short.add(pool)
        return short

    def _target(self, model: Holding) -> Depth:
        return self.targets.get(model.name, model.depth)

    def _aim(self, model: Holding, depth: Depth) -> None:
        for sign, level in ((-1, self._target(model)), (1, depth)):
            for pool, amount in need(model, level).items():
                self.settled[pool] = self.settled.get(pool, 0) + sign * amount
        self.targets[model.name] = depth
        if depth is model.depth:
            del self.targets[model.name]


def _can_sleep(model: Holding) -> bool:
    return model.depth is Depth.AWAKE and model.asleep is not None


def _frees(model: Holding, here: Depth, there: Depth, pools: Set[str]) -> bool:
    has, keeps = need(model, here), need(model, there)
    return any(has.get(pool, 0) > keeps.get(pool, 0) for pool in pools)

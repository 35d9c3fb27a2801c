"""The plan of who stays loaded: a pure function of the models, the memory, the queue and the time.

    decide(now, memory, models, waiting, rules)           what to do now; asked on every event and every second
    outlook(now, memory, models, waiting, rules, model)   in how many seconds `model` would be awake

Requests wait for models, not for places in a line: the model of the oldest request is raised next, and all who wait for
it are served together. While it cannot be raised, a younger one may only take what it does not need. Room is made by who
is idle, least recently used first, then by closing the doors of busy ones; a model with a request in flight is never
moved, a pinned one never lowered. One that died comes back beside whatever is being raised, if there is room for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from enginebay.fleet.residency_state import (
    Account,
    Action,
    Bytes,
    Close,
    Depth,
    Holding,
    Move,
    Open,
    Refuse,
    Rules,
    Waiting,
    extra,
)
from enginebay.fleet.residency_victims import Room, make_room

__all__ = [
    "Action",
    "Bytes",
    "Close",
    "Depth",
    "Holding",
    "Move",
    "Open",
    "Refuse",
    "Rules",
    "Waiting",
    "decide",
    "outlook",
]

# An outlook that takes more steps than this is not worth more of them.
_FORESIGHT_STEPS = 1000


def decide(
    now: float, memory: Bytes, models: Sequence[Holding], waiting: Sequence[Waiting], rules: Rules
) -> list[Action]:
    """What to do now. The actions are in the order in which they are to be taken."""
    account = Account(memory, models, rules)
    in_line = [one for one in waiting if not _serves(account, one.model)]  # the others can be handed over this moment
    hopeless = {name for name in {one.model for one in in_line} if not _can_be_raised(account, name)}
    late = [one for one in in_line if one.deadline <= now and one.model not in hopeless]
    refused = [Refuse(one.id, "memory", 0.0) for one in in_line if one.model in hopeless]
    if late:
        seconds = {name: outlook(now, memory, models, waiting, rules, name) for name in {one.model for one in late}}
        refused += [Refuse(one.id, "deadline", _finite(seconds[one.model])) for one in late]
    gone = {refusal.id for refusal in refused}
    queue = _queue(one for one in waiting if one.id not in gone)
    plan = _Plan(now, account, rules)
    plan.unload_expired(queue)
    plan.serve(queue)
    plan.reopen()
    return [*refused, *plan.actions]


def _queue(waiting: Iterable[Waiting]) -> list[str]:
    """The models somebody waits for, in the order of the oldest request of each."""
    oldest_first = sorted(waiting, key=lambda one: (one.since, one.id))
    return list(dict.fromkeys(one.model for one in oldest_first))


def _serves(account: Account, name: str) -> bool:
    model = account.models.get(name)
    return model is not None and model.serves


def _can_be_raised(account: Account, name: str) -> bool:
    """Sooner or later. One that is not known may come back with the next config."""
    model = account.models.get(name)
    return model is None or model.depth is Depth.AWAKE or account.can_ever_fit(model)


def _finite(seconds: float) -> float:
    return seconds if math.isfinite(seconds) else 0.0


class _Plan:
    """Actions as they are found, over an account that already counts them."""

    def __init__(self, now: float, account: Account, rules: Rules) -> None:
        self._now = now
        self._account = account
        self._rules = rules
        self._leaving: set[str] = set()  # they make room for the oldest
        self.actions: list[Action] = []

    def unload_expired(self, queue: Sequence[str]) -> None:
        for model in list(self._account.models.values()):
            if model.name not in queue and _expired(model, self._now):
                self._move(model.name, Depth.COLD)

    def serve(self, queue: Sequence[str]) -> None:
        """Raises what can be raised, oldest first, and makes room for the first that cannot."""
        kept: set[str] = set()  # awake or soon so, for requests older than the one looked at
        reserved: dict[str, int] | None = None  # the account when the first who cannot be raised now will be awake
        spoken_for: set[str] = set()  # they will have made room for it then
        for name in queue:
            model = self._account.models.get(name)
            if model is None or name in spoken_for:
                continue
            if model.depth is Depth.AWAKE:
                kept.add(name)
            elif self._now < model.not_before:
                continue
            elif reserved is not None:
                self._raise_beside(model, reserved)
            else:
                room = make_room(self._now, self._account, model, set(queue), kept)
                if not room.targets and self._can_raise(model):
                    self._move(name, Depth.AWAKE)
                    kept.add(name)
                else:
                    self._free(room)
                    spoken_for.update(room.targets)
                    reserved = _plus(room.settled, extra(model, Depth.AWAKE))

    def reopen(self) -> None:
        """Opens who was closed and need not leave any more."""
        for model in self._account.models.values():
            closed = model.closed and model.depth is Depth.AWAKE and not model.moving
            if closed and model.name not in self._leaving:
                self.actions.append(Open(model.name))

    def _can_raise(self, model: Holding) -> bool:
        return (
            not model.moving
            and (model.comes_back or self._account.raising < self._rules.parallel_raises)
            and self._account.fits_now(extra(model, Depth.AWAKE))
        )

    def _raise_beside(self, model: Holding, reserved: dict[str, int]) -> None:
        """Raises a younger one if it takes nothing from anybody, now or when the oldest has what it waits for."""
        more = extra(model, Depth.AWAKE)
        after = _plus(reserved, more)
        if self._can_raise(model) and all(after[pool] <= self._account.memory.get(pool, 0) for pool in more):
            self._move(model.name, Depth.AWAKE)
            reserved.update(after)

    def _free(self, room: Room) -> None:
        """Lowers who is idle and closes who is busy, once all of them can be asked: nobody leaves to no avail."""
        if not room.ready:
            return
        self._leaving.update(room.targets)
        # Until a raise can follow, others serve on; who is closed already is of no use to anybody.
        can_follow = self._account.raising < self._rules.parallel_raises
        for name, depth in room.targets.items():
            model = self._account.models[name]
            if not (can_follow or model.closed):
                continue
            if model.running == 0:
                # Going to sleep can take RAM that another one of these has to give back first.
                if self._account.fits_now(extra(model, depth)):
                    self._move(name, depth)
            elif not (model.closed or model.arriving):
                self.actions.append(Close(name))

    def _move(self, name: str, to: Depth) -> None:
        self._account.move(name, to)
        self.actions.append(Move(name, to))


def _expired(model: Holding, now: float) -> bool:
    free = not (model.pinned or model.moving or model.running or model.depth is Depth.COLD)
    return free and model.idle_s is not None and now - model.idle_since >= model.idle_s


def _plus(held: Bytes, more: Bytes) -> dict[str, int]:
    return {**held, **{pool: held.get(pool, 0) + amount for pool, amount in more.items()}}


def outlook(
    now: float, memory: Bytes, models: Sequence[Holding], waiting: Sequence[Waiting], rules: Rules, model: str
) -> float:
    """In how many seconds `model` would be awake, if it is asked for now or is waited for already; infinite: never.

    Plays the plan forward. How long running requests and going down take is not known here and counts as nothing, so
    this is the least it takes.
    """
    line = [replace(one, deadline=math.inf) for one in waiting if now < one.deadline]
    if all(one.model != model for one in line):
        line.append(Waiting(-1, model, math.inf, math.inf))
    foresight = _Foresight(now, models, line)
    for _ in range(_FORESIGHT_STEPS):
        target = foresight.models.get(model)
        if target is None or model not in foresight.awaited():
            return foresight.now - now if target and target.serves else math.inf
        actions = decide(foresight.now, memory, list(foresight.models.values()), foresight.line, rules)
        if actions:
            foresight.take(actions)
        elif not foresight.advance():
            return math.inf
    return foresight.now - now


class _Foresight:
    """The fleet as it would go on if every raise took what it is expected to take, and everything else no time."""

    def __init__(self, now: float, models: Sequence[Holding], line: Sequence[Waiting]) -> None:
        self.now = now
        self.models: dict[str, Holding] = {}
        self.line = list(line)
        self._awake_at: dict[str, float] = {}
        for model in models:
            rising = model.moving and model.depth is Depth.AWAKE
            self.models[model.name] = model if rising else replace(model, moving=False)
            if rising:
                self._awake_at[model.name] = now + model.raise_s
        self._hand_over()

    def awaited(self) -> set[str]:
        return {one.model for one in self.line}

    def take(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Refuse):
                self.line = [one for one in self.line if one.id != action.id]
                continue
            model = self.models[action.name]
            if isinstance(action, Close):
                model = replace(model, closed=True, running=0)
            elif isinstance(action, Open):
                model = replace(model, closed=False)
            elif action.to is Depth.AWAKE:
                self._awake_at[model.name] = self.now + model.raise_s
                model = replace(model, depth=Depth.AWAKE, moving=True, came_from=model.depth)
            else:
                model = replace(model, depth=action.to, closed=False, idle_since=self.now)
            self.models[action.name] = model
        self._hand_over()

    def advance(self) -> bool:
        """Goes to the next moment at which something can change; False: there is none."""
        moments = [*self._awake_at.values()]
        for model in self.models.values():
            moments += [moment for moment in (model.residency_ends, model.not_before) if moment > self.now]
        if not moments:
            return False
        self.now = min(moments)
        for name in [name for name, moment in self._awake_at.items() if moment <= self.now]:
            del self._awake_at[name]
            model = self.models[name]
            self.models[name] = replace(
                model, moving=False, came_from=None, closed=False, awake_since=self.now, idle_since=self.now
            )
        self._hand_over()
        return True

    def _hand_over(self) -> None:
        serving = {model.name for model in self.models.values() if model.serves}
        self.line = [one for one in self.line if one.model not in serving]

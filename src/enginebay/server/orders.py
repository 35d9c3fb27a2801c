"""What an administrator may ask for: look, load, sleep, unload, switch, change adapters, reload, upgrade an engine, read meters."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import replace
from typing import Any

from enginebay.config.model import Config
from enginebay.engines.effective import effective
from enginebay.errors import ConfigError, EnginebayError, InvalidRequest, Unsupported
from enginebay.fleet import environments
from enginebay.fleet.changes import Changes
from enginebay.fleet.environments.store import Environment
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.logs import last_lines
from enginebay.fleet.outlook import told
from enginebay.fleet.place import Place
from enginebay.fleet.residency import Depth
from enginebay.fleet.variants import Variant
from enginebay.server.host_meters import HostMeters
from enginebay.server.keys import Keyring
from enginebay.server.listening import check_guarded
from enginebay.server.wanted import Wanted
from enginebay.worker.client import WorkerClient

# What only a new start can change.
_FIXED = ("host", "port", "workers", "log_format", "log_level", "log_prompts")


class Orders:
    def __init__(
        self,
        fleet: Fleet,
        wanted: Wanted,
        take_in: Callable[..., Awaitable[None]],
        read_again: Callable[[], Wanted],
        read_keys: Callable[[Config], Keyring],
    ) -> None:
        self._fleet = fleet
        self._changes = Changes(fleet)
        self._take_in = take_in
        self._read_again = read_again
        self._read_keys = read_keys
        self._one_at_a_time = asyncio.Lock()
        self._orders: set[asyncio.Future[Any]] = set()
        self._upgraded: dict[str, Environment] = {}  # by engine: it stays so over a reload
        self._wanted = wanted  # the last that was taken in
        self._meters = HostMeters()

    async def carry_out(self, command: str, arguments: dict[str, Any]) -> Any:
        known: dict[str, Callable[..., Awaitable[Any]]] = {
            "ps": self._ps, "load": self._load, "sleep": self._sleep, "unload": self._unload, "switch": self._switch,
            "switches": self._switches, "logs": self._logs, "reload": self._reload, "add_lora": self._add_lora,
            "remove_lora": self._remove_lora, "upgrade": self._upgrade, "meters": self._meters.read,
        }  # fmt: skip
        order = asyncio.ensure_future(known[command](**arguments))
        self._orders.add(order)
        order.add_done_callback(self._orders.discard)
        return await asyncio.shield(order)  # whoever gave it may go: an order is not left half done

    async def close(self) -> None:
        for order in list(self._orders):
            order.cancel()
        await asyncio.gather(*self._orders, return_exceptions=True)
        await self._changes.close()
        await self._meters.close()

    async def _ps(self) -> dict[str, Any]:
        await self._fleet.look()
        models = [self._row(place) for place in self._fleet.places.values()]
        return {
            "models": models,
            "standby": self._fleet.standbys.waiting(),
            "memory_bytes": self._fleet.room.memory,
        }

    def _row(self, place: Place) -> dict[str, Any]:
        now = time.monotonic()
        plan, worker = place.variant.plan, place.worker
        awake = place.depth is Depth.AWAKE and not place.moving
        return {
            "name": place.name,
            "model": place.variant.model,
            "engine": place.variant.kind,
            "version": place.facts.version if place.facts is not None else plan.version if plan is not None else None,
            "state": "unavailable" if plan is None else told(place),
            "pid": worker.process.pid if worker is not None else None,
            "pinned": place.variant.settings.pinned,
            "running": place.running,
            "waiting": self._fleet.waiting(place.name),
            "memory_bytes": place.memory_bytes or None,
            "needs_bytes": dict(place.awake),
            "awake_s": round(now - place.awake_since, 1) if awake else None,
            "idle_s": round(now - place.idle_since, 1) if worker is not None and not place.running else None,
            "adapters": list(plan.launch.load.loras) if plan is not None else [],
            "smaller_settings": place.smaller is not None or None,
            "last_failure": place.variant.error.message if place.variant.error else place.last_failure or None,
            "last_switch": place.switch.to_json() if place.switch is not None else None,
        }

    async def _load(self, model: str) -> dict[str, Any]:
        place = self._fleet.place(model)
        already = place.ready
        self._fleet.forgive(place)
        await self._fleet.want(model, queued=False)
        return {**self._row(place), "already": already}

    async def _sleep(self, model: str) -> dict[str, Any]:
        loaded = self._loaded(model)
        if not loaded:
            raise InvalidRequest(f"{model} is not loaded, so it cannot sleep", "load it first", param="model")
        place = next((one for one in loaded if one.asleep is not None), None)
        if place is None:
            raise InvalidRequest(f"{loaded[0].variant.kind} cannot put {model} to sleep", "unload it", param="model")
        await self._fleet.lower(place, Depth.ASLEEP)
        return self._row(place)

    async def _unload(self, model: str) -> dict[str, Any]:
        loaded = self._loaded(model) or [self._fleet.place(model)]
        for place in loaded:
            await self._fleet.lower(place, Depth.COLD)
        return self._row(loaded[-1])

    def _loaded(self, model: str) -> list[Place]:
        """What is loaded of that name: of a model's own name its fallbacks, too, since they answer to it."""
        named = self._fleet.place(model)
        chain = [one for one in self._fleet.places.values() if one.variant.model == named.variant.model]
        return [one for one in (chain if named.variant.first else [named]) if one.depth is not Depth.COLD]

    async def _switch(self, from_: str, to: str) -> dict[str, Any]:
        """The one leaves, to sleep if it can, and the other comes."""
        leaving, coming = self._fleet.place(from_), self._fleet.place(to)
        if leaving is coming:
            raise InvalidRequest("both models are the same", param="to")
        already = coming.ready
        self._fleet.forgive(coming)
        if leaving.ready:
            if not coming.ready:
                self._fleet.wish(to)  # first, so that the leaving one is written down as replaced by it
            await self._fleet.lower(leaving, Depth.ASLEEP if self._can_stay(leaving, coming) else Depth.COLD)
        await self._fleet.want(to, queued=False)
        return {**self._row(coming), "already": already, "left": told(leaving)}

    def _can_stay(self, leaving: Place, coming: Place) -> bool:
        """Whether both fit, the one asleep and the other awake."""
        if leaving.asleep is None:
            return False
        asleep = leaving.asleep
        return coming.ready or all(
            asleep.get(pool, 0) + need <= self._fleet.room.memory.get(pool, 0) for pool, need in coming.awake.items()
        )

    async def _switches(self) -> dict[str, Any]:
        return self._fleet.switches.to_json()

    async def _logs(self, model: str, lines: int = 100) -> dict[str, Any]:
        places = [self._fleet.place(model), *self._loaded(model)]
        plan = next((one.variant.plan for one in places if one.variant.plan is not None), None)
        if plan is None:
            raise InvalidRequest(f"{model} has no log: it was never started", param="model")
        return {"lines": await asyncio.to_thread(last_lines, plan.launch.log, lines)}

    # Changes

    async def _reload(self) -> dict[str, Any]:
        """All of the configuration, or nothing of it; but the keys in any case: a revoked one stops working."""
        async with self._one_at_a_time:
            try:
                wanted = await asyncio.to_thread(self._read_again)
                _check_change(self._wanted, wanted)
            except EnginebayError as error:
                raise await self._keys_alone(error) from None
            await self._check_guarded(wanted.config, wanted.keyring)
            wanted = replace(wanted, variants=tuple(map(self._as_upgraded, wanted.variants)))
            if wanted.keyring and wanted.config.server.keys_file == self._wanted.config.server.keys_file:
                await self._take_in_keys(wanted.keyring)  # models may take long
            try:
                done = await self._changes.to(wanted.variants, wanted.config.fleet)
            except EnginebayError as error:
                raise await self._keys_alone(error) from None
            self._wanted = wanted
            await self._take_in(wanted)
            for name in done["added"]:
                variant = self._fleet.place(name).variant
                if variant.first and variant.settings.load == "start" and self._fleet.fits(name):
                    self._fleet.wish(name)
            return {**done, "keys": len(wanted.keyring.keys)}

    async def _keys_alone(self, refused: EnginebayError) -> EnginebayError:
        """Takes in the keys of the present file, as far as it can be read; gives back what to say of it all."""
        before = self._wanted
        try:
            found = await asyncio.to_thread(self._read_keys, before.config)
        except ConfigError as error:
            why = "" if error.message == refused.message else f" ({error.message})"
            return _said_first(f"the configuration and the keys stay as they were{why}", refused)
        await self._check_guarded(before.config, found, refused)
        locked = before.keyring.needed and not found.keys  # by a configuration that is not the present one
        await self._take_in_keys(Keyring(found.keys, found.warnings, needed=locked))
        return _said_first("the keys were taken in, but the configuration stays as it was", refused)

    async def _take_in_keys(self, keyring: Keyring) -> None:
        self._wanted = replace(self._wanted, keyring=keyring)
        await self._take_in(self._wanted)

    async def _check_guarded(self, config: Config, keyring: Keyring, refused: EnginebayError | None = None) -> None:
        """A server that others can reach must not lose its last key and be open; nor may a revoked key go on working.

        So then nobody gets in, and nothing else is taken in.
        """
        try:
            await asyncio.to_thread(check_guarded, config.server, keyring)
        except ConfigError as error:
            await self._take_in_keys(Keyring(needed=True))
            why = f": {refused.message}" if refused is not None else ""
            raise ConfigError(
                f"{error.message}: every request is refused now, and the configuration stays as it was{why}",
                f"make a key with `bay keys create NAME`, then `kill -HUP {os.getpid()}`; "
                "or start the server again with --allow-without-key if anybody may use it",
            ) from None

    async def _add_lora(self, model: str, name: str, path: str) -> dict[str, Any]:
        async with self._one_at_a_time:
            place = self._fleet.place(model)
            taken = [other for other in self._fleet.places.values() if name in (other.name, *_loras(other))]
            if taken:
                raise InvalidRequest(f"the name {name} is taken by {taken[0].name}", param="name")
            await self._with_loras(place, {**_loras(place), name: path}, lambda client: client.add_lora(name, path))
            return self._row(place)

    async def _remove_lora(self, model: str, name: str) -> dict[str, Any]:
        async with self._one_at_a_time:
            place = self._fleet.place(model)
            if name not in _loras(place):
                raise InvalidRequest(
                    f"{model} has no adapter {name}", f"it has: {', '.join(_loras(place)) or 'none'}", param="name"
                )
            left = {known: path for known, path in _loras(place).items() if known != name}
            await self._with_loras(place, left, lambda client: client.remove_lora(name))
            return self._row(place)

    async def _with_loras(
        self, place: Place, loras: dict[str, str], at_run_time: Callable[[WorkerClient], Awaitable[None]]
    ) -> None:
        """In the running worker where its engine can; else in a new one, which takes over when it answers."""
        variant = _with_load(place.variant, loras=loras)
        variant = replace(variant, settings=replace(variant.settings, loras=loras))
        try:
            if not place.ready or place.worker is None:
                raise Unsupported("it is not loaded")
            await at_run_time(place.worker.client)
            place.variant, place.smaller = variant, None
            place.worker.resident = replace(place.worker.resident, loras=tuple(loras))  # for sessions to come
        except Unsupported:
            await self._changes.replaced(place, variant)
        await self._take_in()

    async def _upgrade(self, engine: str) -> dict[str, Any]:
        """Models of this engine go over to another version of it, each when the new worker answers."""
        kind, _, version = engine.partition("==")
        async with self._one_at_a_time:
            found = await asyncio.to_thread(environments.find, kind, version or None)
            before = dict(self._upgraded)
            self._upgraded[found.kind] = found
            try:
                done = await self._changes.to(
                    [self._as_upgraded(place.variant) for place in self._fleet.places.values()]
                )
            except BaseException:
                self._upgraded = before
                raise
            await self._take_in()
            return {"engine": found.kind, "version": found.version, "models": done["changed"]}

    def _as_upgraded(self, variant: Variant) -> Variant:
        environment = self._upgraded.get(variant.kind)
        return variant if environment is None or variant.plan is None else _on_environment(variant, environment)


def _loras(place: Place) -> dict[str, str]:
    return dict(place.variant.plan.launch.load.loras) if place.variant.plan is not None else {}


def _with_load(variant: Variant, **fields: Any) -> Variant:
    plan = variant.plan
    if plan is None:
        assert variant.error is not None
        raise variant.error
    load = replace(plan.launch.load, **fields)
    return replace(variant, plan=replace(plan, launch=replace(plan.launch, load=load)))


def _on_environment(variant: Variant, environment: Environment) -> Variant:
    plan = variant.plan
    assert plan is not None
    launch = replace(plan.launch, python=environment.python, environment=environment.variables)
    spec = effective(environment.spec, environment.probe)
    return replace(variant, plan=replace(plan, launch=launch, spec=spec, version=environment.version))


def _check_change(before: Wanted, after: Wanted) -> None:
    """Raises `ConfigError` for what cannot be taken in while the server runs."""
    if before.config.models and not after.config.models:
        raise ConfigError("the configuration names no models any more", "if that is meant, start the server again")
    ours, theirs = before.config.server, after.config.server
    fixed = [f"server.{name}" for name in _FIXED if getattr(ours, name) != getattr(theirs, name)]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)} cannot change while the server runs", "start the server again for that")


def _said_first(text: str, error: EnginebayError) -> EnginebayError:
    told = copy(error)  # somebody else may keep it
    told.message = f"{text}: {error.message}"
    return told

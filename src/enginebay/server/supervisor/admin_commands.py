"""What an administrator may ask for: look, load, sleep, unload, switch, change adapters, reload, upgrade an engine, read meters."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import replace
from typing import Any

from enginebay import environments
from enginebay.config.resolved_config import Config
from enginebay.engines.effective_spec import apply_probe
from enginebay.environments.environment_store import Environment
from enginebay.errors import ConfigError, EnginebayError, InvalidRequest, Unsupported
from enginebay.fleet.fleet import Fleet
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.rolling_update import RollingUpdate
from enginebay.fleet.lifecycle.worker_logs import read_last_lines
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaState
from enginebay.fleet.scheduling.wait_estimate import state_label
from enginebay.server.auth.api_keys import Keyring
from enginebay.server.supervisor.desired_state import DesiredState
from enginebay.server.supervisor.listen_socket import check_exposure
from enginebay.server.telemetry.host_meters import HostMeters
from enginebay.worker.client_side.worker_client import WorkerClient

# What only a new start can change.
_RESTART_ONLY = ("host", "port", "workers", "log_format", "log_level", "log_prompts")


class AdminCommands:
    def __init__(
        self,
        fleet: Fleet,
        desired: DesiredState,
        apply: Callable[..., Awaitable[None]],
        read_desired: Callable[[], DesiredState],
        read_keys: Callable[[Config], Keyring],
    ) -> None:
        self._fleet = fleet
        self._rolling_update = RollingUpdate(fleet)
        self._apply = apply
        self._read_desired = read_desired
        self._read_keys = read_keys
        self._change_lock = asyncio.Lock()
        self._running_commands: set[asyncio.Future[Any]] = set()
        self._upgraded_environments: dict[str, Environment] = {}  # by engine: it stays so over a reload
        self._applied = desired  # the last that was taken in
        self._meters = HostMeters()

    async def execute(self, command: str, arguments: dict[str, Any]) -> Any:
        known: dict[str, Callable[..., Awaitable[Any]]] = {
            "ps": self._ps, "load": self._load, "sleep": self._sleep, "unload": self._unload, "switch": self._switch,
            "switches": self._switches, "logs": self._logs, "reload": self._reload, "add_lora": self._add_lora,
            "remove_lora": self._remove_lora, "upgrade": self._upgrade, "meters": self._meters.read,
        }  # fmt: skip
        order = asyncio.ensure_future(known[command](**arguments))
        self._running_commands.add(order)
        order.add_done_callback(self._running_commands.discard)
        return await asyncio.shield(order)  # whoever gave it may go: an order is not left half done

    async def close(self) -> None:
        for order in list(self._running_commands):
            order.cancel()
        await asyncio.gather(*self._running_commands, return_exceptions=True)
        await self._rolling_update.close()
        await self._meters.close()

    async def _ps(self) -> dict[str, Any]:
        await self._fleet.poll_workers()
        models = [self._build_row(place) for place in self._fleet.replicas.values()]
        return {
            "models": models,
            "standby": self._fleet.standby_pool.list_pids(),
            "memory_bytes": self._fleet.memory_budget.pool_bytes,
        }

    def _build_row(self, place: Replica) -> dict[str, Any]:
        now = time.monotonic()
        plan, worker = place.variant.plan, place.worker
        awake = place.state is ReplicaState.AWAKE and not place.in_transition
        return {
            "name": place.name,
            "model": place.variant.model,
            "engine": place.variant.kind,
            "version": place.facts.version if place.facts is not None else plan.version if plan is not None else None,
            "state": "unavailable" if plan is None else state_label(place),
            "pid": worker.process.pid if worker is not None else None,
            "pinned": place.variant.settings.pinned,
            "running": place.running,
            "waiting": self._fleet.count_waiting(place.name),
            "memory_bytes": place.memory_bytes or None,
            "needs_bytes": dict(place.awake_bytes),
            "awake_s": round(now - place.awake_since, 1) if awake else None,
            "idle_s": round(now - place.idle_since, 1) if worker is not None and not place.running else None,
            "adapters": list(plan.launch.load.loras) if plan is not None else [],
            "smaller_settings": place.reduced_plan is not None or None,
            "last_failure": place.variant.error.message if place.variant.error else place.last_failure or None,
            "last_switch": place.last_switch.to_json() if place.last_switch is not None else None,
        }

    async def _load(self, model: str) -> dict[str, Any]:
        place = self._fleet.get_replica(model)
        already = place.ready
        self._fleet.reset_failures(place)
        await self._fleet.acquire(model, queued=False)
        return {**self._build_row(place), "already": already}

    async def _sleep(self, model: str) -> dict[str, Any]:
        loaded = self._list_loaded(model)
        if not loaded:
            raise InvalidRequest(f"{model} is not loaded, so it cannot sleep", "load it first", param="model")
        place = next((one for one in loaded if one.asleep_bytes is not None), None)
        if place is None:
            raise InvalidRequest(f"{loaded[0].variant.kind} cannot put {model} to sleep", "unload it", param="model")
        await self._fleet.sleep_or_unload(place, ReplicaState.ASLEEP)
        return self._build_row(place)

    async def _unload(self, model: str) -> dict[str, Any]:
        loaded = self._list_loaded(model) or [self._fleet.get_replica(model)]
        for place in loaded:
            await self._fleet.sleep_or_unload(place, ReplicaState.COLD)
        return self._build_row(loaded[-1])

    def _list_loaded(self, name: str) -> list[Replica]:
        """What is loaded of that name: of a model's own name its fallbacks, too, since they answer to it."""
        named = self._fleet.get_replica(name)
        chain = [one for one in self._fleet.replicas.values() if one.variant.model == named.variant.model]
        return [one for one in (chain if named.variant.primary else [named]) if one.state is not ReplicaState.COLD]

    async def _switch(self, from_: str, to: str) -> dict[str, Any]:
        """The one leaves, to sleep if it can, and the other comes."""
        leaving, coming = self._fleet.get_replica(from_), self._fleet.get_replica(to)
        if leaving is coming:
            raise InvalidRequest("both models are the same", param="to")
        already = coming.ready
        self._fleet.reset_failures(coming)
        if leaving.ready:
            if not coming.ready:
                self._fleet.preload(to)  # first, so that the leaving one is written down as replaced by it
            await self._fleet.sleep_or_unload(
                leaving, ReplicaState.ASLEEP if self._can_keep_asleep(leaving, coming) else ReplicaState.COLD
            )
        await self._fleet.acquire(to, queued=False)
        return {**self._build_row(coming), "already": already, "left": state_label(leaving)}

    def _can_keep_asleep(self, leaving: Replica, coming: Replica) -> bool:
        """Whether both fit, the one asleep and the other awake."""
        if leaving.asleep_bytes is None:
            return False
        asleep = leaving.asleep_bytes
        return coming.ready or all(
            asleep.get(pool, 0) + need <= self._fleet.memory_budget.pool_bytes.get(pool, 0)
            for pool, need in coming.awake_bytes.items()
        )

    async def _switches(self) -> dict[str, Any]:
        return self._fleet.switch_history.to_json()

    async def _logs(self, model: str, lines: int = 100) -> dict[str, Any]:
        places = [self._fleet.get_replica(model), *self._list_loaded(model)]
        plan = next((one.variant.plan for one in places if one.variant.plan is not None), None)
        if plan is None:
            raise InvalidRequest(f"{model} has no log: it was never started", param="model")
        return {"lines": await asyncio.to_thread(read_last_lines, plan.launch.log, lines)}

    # Changes

    async def _reload(self) -> dict[str, Any]:
        """All of the configuration, or nothing of it; but the keys in any case: a revoked one stops working."""
        async with self._change_lock:
            try:
                wanted = await asyncio.to_thread(self._read_desired)
                _check_change(self._applied, wanted)
            except EnginebayError as error:
                raise await self._apply_keys_only(error) from None
            await self._check_exposure(wanted.config, wanted.keyring)
            wanted = replace(wanted, variants=tuple(map(self._apply_upgrade, wanted.variants)))
            if wanted.keyring and wanted.config.server.keys_file == self._applied.config.server.keys_file:
                await self._apply_keys(wanted.keyring)  # models may take long
            try:
                done = await self._rolling_update.apply(wanted.variants, wanted.config.fleet)
            except EnginebayError as error:
                raise await self._apply_keys_only(error) from None
            self._applied = wanted
            await self._apply(wanted)
            for name in done["added"]:
                variant = self._fleet.get_replica(name).variant
                if variant.primary and variant.settings.load == "start" and self._fleet.fits_without_eviction(name):
                    self._fleet.preload(name)
            return {**done, "keys": len(wanted.keyring.keys)}

    async def _apply_keys_only(self, refused: EnginebayError) -> EnginebayError:
        """Takes in the keys of the present file, as far as it can be read; gives back what to say of it all."""
        before = self._applied
        try:
            found = await asyncio.to_thread(self._read_keys, before.config)
        except ConfigError as error:
            why = "" if error.message == refused.message else f" ({error.message})"
            return _prefix_message(f"the configuration and the keys stay as they were{why}", refused)
        await self._check_exposure(before.config, found, refused)
        locked = before.keyring.required and not found.keys  # by a configuration that is not the present one
        await self._apply_keys(Keyring(found.keys, found.warnings, required=locked))
        return _prefix_message("the keys were taken in, but the configuration stays as it was", refused)

    async def _apply_keys(self, keyring: Keyring) -> None:
        self._applied = replace(self._applied, keyring=keyring)
        await self._apply(self._applied)

    async def _check_exposure(self, config: Config, keyring: Keyring, refused: EnginebayError | None = None) -> None:
        """A server that others can reach must not lose its last key and be open; nor may a revoked key go on working.

        So then nobody gets in, and nothing else is taken in.
        """
        try:
            await asyncio.to_thread(check_exposure, config.server, keyring)
        except ConfigError as error:
            await self._apply_keys(Keyring(required=True))
            why = f": {refused.message}" if refused is not None else ""
            raise ConfigError(
                f"{error.message}: every request is refused now, and the configuration stays as it was{why}",
                f"make a key with `bay keys create NAME`, then `kill -HUP {os.getpid()}`; "
                "or start the server again with --allow-without-key if anybody may use it",
            ) from None

    async def _add_lora(self, model: str, name: str, path: str) -> dict[str, Any]:
        async with self._change_lock:
            place = self._fleet.get_replica(model)
            taken = [other for other in self._fleet.replicas.values() if name in (other.name, *_get_loras(other))]
            if taken:
                raise InvalidRequest(f"the name {name} is taken by {taken[0].name}", param="name")
            await self._change_loras(
                place, {**_get_loras(place), name: path}, lambda client: client.add_lora(name, path)
            )
            return self._build_row(place)

    async def _remove_lora(self, model: str, name: str) -> dict[str, Any]:
        async with self._change_lock:
            place = self._fleet.get_replica(model)
            if name not in _get_loras(place):
                raise InvalidRequest(
                    f"{model} has no adapter {name}", f"it has: {', '.join(_get_loras(place)) or 'none'}", param="name"
                )
            left = {known: path for known, path in _get_loras(place).items() if known != name}
            await self._change_loras(place, left, lambda client: client.remove_lora(name))
            return self._build_row(place)

    async def _change_loras(
        self, place: Replica, loras: dict[str, str], apply_live: Callable[[WorkerClient], Awaitable[None]]
    ) -> None:
        """In the running worker where its engine can; else in a new one, which takes over when it answers."""
        variant = _replace_load(place.variant, loras=loras)
        variant = replace(variant, settings=replace(variant.settings, loras=loras))
        try:
            if not place.ready or place.worker is None:
                raise Unsupported("it is not loaded")
            await apply_live(place.worker.client)
            place.variant, place.reduced_plan = variant, None
            place.worker.handle = replace(place.worker.handle, loras=tuple(loras))  # for sessions to come
        except Unsupported:
            await self._rolling_update.replace_variant(place, variant)
        await self._apply()

    async def _upgrade(self, engine: str) -> dict[str, Any]:
        """Models of this engine go over to another version of it, each when the new worker answers."""
        kind, _, version = engine.partition("==")
        async with self._change_lock:
            found = await asyncio.to_thread(environments.find_environment, kind, version or None)
            before = dict(self._upgraded_environments)
            self._upgraded_environments[found.kind] = found
            try:
                done = await self._rolling_update.apply(
                    [self._apply_upgrade(place.variant) for place in self._fleet.replicas.values()]
                )
            except BaseException:
                self._upgraded_environments = before
                raise
            await self._apply()
            return {"engine": found.kind, "version": found.version, "models": done["changed"]}

    def _apply_upgrade(self, variant: Variant) -> Variant:
        environment = self._upgraded_environments.get(variant.kind)
        return variant if environment is None or variant.plan is None else _move_to_environment(variant, environment)


def _get_loras(place: Replica) -> dict[str, str]:
    return dict(place.variant.plan.launch.load.loras) if place.variant.plan is not None else {}


def _replace_load(variant: Variant, **fields: Any) -> Variant:
    plan = variant.plan
    if plan is None:
        assert variant.error is not None
        raise variant.error
    load = replace(plan.launch.load, **fields)
    return replace(variant, plan=replace(plan, launch=replace(plan.launch, load=load)))


def _move_to_environment(variant: Variant, environment: Environment) -> Variant:
    plan = variant.plan
    assert plan is not None
    launch = replace(plan.launch, python=environment.python, environment=environment.variables)
    spec = apply_probe(environment.spec, environment.probe)
    return replace(variant, plan=replace(plan, launch=launch, spec=spec, version=environment.version))


def _check_change(before: DesiredState, after: DesiredState) -> None:
    """Raises `ConfigError` for what cannot be taken in while the server runs."""
    if before.config.models and not after.config.models:
        raise ConfigError("the configuration names no models any more", "if that is meant, start the server again")
    ours, theirs = before.config.server, after.config.server
    fixed = [f"server.{name}" for name in _RESTART_ONLY if getattr(ours, name) != getattr(theirs, name)]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)} cannot change while the server runs", "start the server again for that")


def _prefix_message(text: str, error: EnginebayError) -> EnginebayError:
    told = copy(error)  # somebody else may keep it
    told.message = f"{text}: {error.message}"
    return told

"""Admin commands: list, load, sleep, unload and switch models, change adapters, reload, upgrade an engine, read meters."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
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
from enginebay.fleet.lifecycle.replica_scaler import find_ready, group_replicas
from enginebay.fleet.lifecycle.rolling_update import RollingUpdate
from enginebay.fleet.lifecycle.worker_logs import read_last_lines
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner_state import MemoryAccount, PlannerLimits, ReplicaState
from enginebay.fleet.scheduling.wait_estimate import state_label
from enginebay.server.auth.api_keys import Keyring
from enginebay.server.supervisor.desired_state import DesiredState
from enginebay.server.supervisor.listen_socket import check_exposure
from enginebay.server.telemetry.host_meters import HostMeters, discover_server_meters
from enginebay.worker.client_side.worker_client import WorkerClient

# Server settings that a reload cannot change.
_RESTART_ONLY = ("host", "port", "workers", "log_format", "log_level", "log_prompts", "state")


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
        self._upgraded_environments: dict[str, Environment] = {}  # by engine; survives a reload
        self._applied = desired  # the last state applied
        self._meters = HostMeters(lambda: discover_server_meters(self._name_used_gpus()))

    def _name_used_gpus(self) -> str:
        return self._fleet.memory_budget.name_used_gpus(list(self._fleet.replicas.values()))

    async def execute(self, command: str, arguments: dict[str, Any]) -> Any:
        commands: dict[str, Callable[..., Awaitable[Any]]] = {
            "ps": self._ps, "load": self._load, "sleep": self._sleep, "unload": self._unload, "switch": self._switch,
            "switches": self._switches, "logs": self._logs, "reload": self._reload, "add_lora": self._add_lora,
            "remove_lora": self._remove_lora, "upgrade": self._upgrade, "meters": self._meters.read,
            "keep_alive": self._keep_alive,
        }  # fmt: skip
        task = asyncio.ensure_future(commands[command](**arguments))
        self._running_commands.add(task)
        task.add_done_callback(self._running_commands.discard)
        return await asyncio.shield(task)  # a command completes even if its client disconnects

    async def close(self) -> None:
        for task in list(self._running_commands):
            task.cancel()
        await asyncio.gather(*self._running_commands, return_exceptions=True)
        await self._rolling_update.close()
        await self._meters.close()

    async def _ps(self) -> dict[str, Any]:
        await self._fleet.poll_workers()
        groups = group_replicas(self._fleet.replicas.values()).values()
        shown = [replica for copies in groups for replica in copies if _is_shown(replica)]
        models = [self._build_row(replica) for replica in shown]
        return {
            "models": models,
            "standby": self._fleet.standby_pool.list_pids(),
            "memory_bytes": self._fleet.memory_budget.pool_bytes,
        }

    def _build_row(self, replica: Replica) -> dict[str, Any]:
        now = time.monotonic()
        plan, worker = replica.variant.plan, replica.worker
        awake = replica.state is ReplicaState.AWAKE and not replica.in_transition
        return {
            "name": replica.name,
            "model": replica.variant.model,
            "engine": replica.variant.kind,
            "version": replica.facts.version
            if replica.facts is not None
            else plan.version
            if plan is not None
            else None,
            "state": "unavailable" if plan is None else state_label(replica),
            "pid": worker.process.pid if worker is not None else None,
            "pinned": replica.variant.settings.pinned,
            "running": replica.running,
            "waiting": self._fleet.count_waiting(replica.name) if replica.number == 1 else 0,
            "memory_bytes": replica.memory_bytes or None,
            "needs_bytes": dict(replica.needed_bytes),
            "gpus": list(replica.gpus),
            "placement": replica.placement_reason or None,
            "awake_s": round(now - replica.awake_since, 1) if awake else None,
            "idle_s": round(now - replica.idle_since, 1) if worker is not None and not replica.running else None,
            "idle_limit_s": replica.idle_s,
            "adapters": list(plan.launch.load.loras) if plan is not None else [],
            "smaller_settings": replica.reduced_plan is not None or None,
            "last_failure": self._describe_failure(replica),
            "last_switch": replica.last_switch.to_json() if replica.last_switch is not None else None,
        }

    def _describe_failure(self, replica: Replica) -> str | None:
        lost = self._fleet.memory_budget.list_lost_gpus(replica.variant)
        if lost:
            return (
                f"its GPU {lost[0]} does not respond; it loads again when the GPU is back, or elsewhere if gpus changes"
            )
        return replica.variant.error.message if replica.variant.error else replica.last_failure or None

    async def _load(self, model: str) -> dict[str, Any]:
        copies = self._fleet.list_copies(self._fleet.get_replica(model))
        already = find_ready(copies) is not None
        for replica in copies:
            self._fleet.reset_failures(replica)
        await self._fleet.acquire(model, queued=False)
        return {**self._build_row(find_ready(copies) or copies[0]), "already": already}

    async def _sleep(self, model: str) -> dict[str, Any]:
        loaded = self._list_loaded(model)
        if not loaded:
            raise InvalidRequest(f"{model} is not loaded, so it cannot sleep", "load it first", param="model")
        replica = next((candidate for candidate in loaded if candidate.asleep_bytes is not None), None)
        if replica is None:
            raise InvalidRequest(f"{loaded[0].variant.kind} cannot put {model} to sleep", "unload it", param="model")
        sleepers = [
            copy for copy in self._fleet.list_copies(replica) if copy in loaded and copy.asleep_bytes is not None
        ]
        await self._fleet.sleep_or_unload(ReplicaState.ASLEEP, *sleepers)
        return {**self._build_row(replica), "frees_memory": replica.sleep_level > 0}

    async def _unload(self, model: str) -> dict[str, Any]:
        loaded = self._list_loaded(model) or [self._fleet.get_replica(model)]
        await self._fleet.sleep_or_unload(ReplicaState.COLD, *loaded)
        return self._build_row(loaded[-1])

    async def _keep_alive(self, model: str, idle_s: float | None) -> None:
        """Set the idle time after which a loaded variant is unloaded, until it is. None: never."""
        for replica in self._fleet.list_copies(self._fleet.get_replica(model)):
            if replica.worker is not None:
                replica.idle_s = idle_s
        self._fleet.request_plan()

    def _list_loaded(self, name: str) -> list[Replica]:
        """Return the loaded replicas of that name: all of a variant, of a model also its fallbacks, or a single one."""
        named = self._fleet.get_replica(name)
        candidates = [named] if named.number > 1 else self._fleet.list_copies(named)
        if named.variant.primary and named.number == 1:
            candidates = [
                other for other in self._fleet.replicas.values() if other.variant.model == named.variant.model
            ]
        return [candidate for candidate in candidates if candidate.state is not ReplicaState.COLD]

    async def _switch(self, from_: str, to: str) -> dict[str, Any]:
        """Put one model to sleep, or unload it if it cannot sleep, and load the other."""
        old, new = self._fleet.get_replica(from_), self._fleet.get_replica(to)
        if old.variant.name == new.variant.name:
            raise InvalidRequest("both models are the same", param="to")
        already = find_ready(self._fleet.list_copies(new)) is not None
        self._fleet.reset_failures(new)
        leaving = [copy for copy in self._fleet.list_copies(old) if copy.ready]
        if leaving:
            if not already:
                self._fleet.preload(to)  # first, so that the history records what replaced the old model
            keeps = self._can_keep_asleep(leaving, new, already)
            await self._fleet.sleep_or_unload(ReplicaState.ASLEEP if keeps else ReplicaState.COLD, *leaving)
        await self._fleet.acquire(to, queued=False)
        return {**self._build_row(new), "already": already, "left": state_label(old)}

    def _can_keep_asleep(self, leaving: Sequence[Replica], new: Replica, already: bool) -> bool:
        """Return whether these asleep and `new` awake fit in memory together."""
        can_sleep = all(replica.asleep_bytes is not None for replica in leaving)
        if already or not can_sleep:
            return can_sleep
        budget = self._fleet.memory_budget
        asleep = [replace(budget.snapshot_replica(replica), state=ReplicaState.ASLEEP) for replica in leaving]
        account = MemoryAccount(budget.pool_bytes, asleep, PlannerLimits())
        return account.find_room(budget.snapshot_replica(new)) is not None

    async def _switches(self) -> dict[str, Any]:
        return self._fleet.switch_history.to_json()

    async def _logs(self, model: str, lines: int = 100) -> dict[str, Any]:
        replicas = [self._fleet.get_replica(model), *self._list_loaded(model)]
        plans = (item.name_log(item.variant.plan) for item in replicas if item.variant.plan is not None)
        plan = next(plans, None)
        if plan is None:
            raise InvalidRequest(f"{model} has no log: it was never started", param="model")
        return {"lines": await asyncio.to_thread(read_last_lines, plan.launch.log, lines)}

    # Changes

    async def _reload(self) -> dict[str, Any]:
        """Apply the configuration, all or nothing. Keys apply in any case, so that a revoked key stops working."""
        async with self._change_lock:
            try:
                desired = await asyncio.to_thread(self._read_desired)
                _check_change(self._applied, desired)
            except EnginebayError as error:
                raise await self._apply_keys_only(error) from None
            await self._check_exposure(desired.config, desired.keyring)
            desired = replace(desired, variants=tuple(map(self._apply_upgrade, desired.variants)))
            if desired.keyring and desired.config.server.keys_file == self._applied.config.server.keys_file:
                await self._apply_keys(desired.keyring)  # first: models may take long
            try:
                changes = await self._rolling_update.apply(desired.variants, desired.config.fleet)
            except EnginebayError as error:
                raise await self._apply_keys_only(error) from None
            self._applied = desired
            await self._apply(desired)
            for name in changes["added"]:
                variant = self._fleet.get_replica(name).variant
                if variant.primary and variant.settings.load == "start" and self._fleet.fits_without_eviction(name):
                    self._fleet.preload(name)
            return {**changes, "keys": len(desired.keyring.keys)}

    async def _apply_keys_only(self, cause: EnginebayError) -> EnginebayError:
        """Apply the keys of the current key file after a failed reload. Return the error to report."""
        before = self._applied
        try:
            keyring = await asyncio.to_thread(self._read_keys, before.config)
        except ConfigError as error:
            reason = "" if error.message == cause.message else f" ({error.message})"
            return _prefix_message(f"neither the configuration nor the keys were reloaded{reason}", cause)
        await self._check_exposure(before.config, keyring, cause)
        locked = before.keyring.required and not keyring.keys  # stays locked by an earlier reload
        await self._apply_keys(Keyring(keyring.keys, keyring.warnings, required=locked))
        return _prefix_message("the keys were reloaded, but the configuration is unchanged", cause)

    async def _apply_keys(self, keyring: Keyring) -> None:
        self._applied = replace(self._applied, keyring=keyring)
        await self._apply(self._applied)

    async def _check_exposure(self, config: Config, keyring: Keyring, cause: EnginebayError | None = None) -> None:
        """Raise `ConfigError` if an exposed server would lose its last key, and refuse all requests from then on.

        It must not become open to anyone, and the revoked key must not stay valid.
        """
        try:
            await asyncio.to_thread(check_exposure, config.server, keyring)
        except ConfigError as error:
            await self._apply_keys(Keyring(required=True))
            reason = f": {cause.message}" if cause is not None else ""
            raise ConfigError(
                f"{error.message}: all requests are now refused, and the configuration is unchanged{reason}",
                f"create a key with `bay keys create NAME`, then `kill -HUP {os.getpid()}`; "
                "or restart the server with --allow-without-key to let anyone use it",
            ) from None

    async def _add_lora(self, model: str, name: str, path: str) -> dict[str, Any]:
        async with self._change_lock:
            replica = self._fleet.get_replica(model)
            taken = [other for other in self._fleet.replicas.values() if name in (other.name, *_get_loras(other))]
            if taken:
                raise InvalidRequest(f"the name {name} is already used by {taken[0].name}", param="name")
            await self._change_loras(
                replica, {**_get_loras(replica), name: path}, lambda client: client.add_lora(name, path)
            )
            return self._build_row(replica)

    async def _remove_lora(self, model: str, name: str) -> dict[str, Any]:
        async with self._change_lock:
            replica = self._fleet.get_replica(model)
            if name not in _get_loras(replica):
                raise InvalidRequest(
                    f"unknown LoRA adapter {name!r}",
                    f"available: {', '.join(_get_loras(replica)) or 'none'}",
                    param="name",
                )
            remaining = {other: path for other, path in _get_loras(replica).items() if other != name}
            await self._change_loras(replica, remaining, lambda client: client.remove_lora(name))
            return self._build_row(replica)

    async def _change_loras(
        self, replica: Replica, loras: dict[str, str], apply_live: Callable[[WorkerClient], Awaitable[None]]
    ) -> None:
        """Change adapters in the running worker if its engine can, else in a new worker that then takes over."""
        variant = _replace_load(replica.variant, loras=loras)
        variant = replace(variant, settings=replace(variant.settings, loras=loras))
        copies = self._fleet.list_copies(replica)
        try:
            if find_ready(copies) is None or any(copy.in_transition for copy in copies):
                raise Unsupported("it is not loaded")
            for copy in copies:
                if copy.ready and copy.worker is not None:
                    await apply_live(copy.worker.client)
                    copy.worker.handle = replace(copy.worker.handle, loras=tuple(loras))  # for future sessions
            for copy in copies:
                if copy.worker is None or copy.ready:
                    copy.variant, copy.reduced_plan = variant, None
        except Unsupported:
            await self._rolling_update.replace_variant(variant)
        await self._apply()

    async def _upgrade(self, engine: str) -> dict[str, Any]:
        """Move this engine's models to another version of it, each once its new worker responds."""
        kind, _, version = engine.partition("==")
        async with self._change_lock:
            environment = await asyncio.to_thread(environments.find_environment, kind, version or None)
            before = dict(self._upgraded_environments)
            self._upgraded_environments[environment.kind] = environment
            try:
                variants = {replica.variant.name: replica.variant for replica in self._fleet.replicas.values()}
                changes = await self._rolling_update.apply(map(self._apply_upgrade, variants.values()))
            except BaseException:
                self._upgraded_environments = before
                raise
            await self._apply()
            return {"engine": environment.kind, "version": environment.version, "models": changes["changed"]}

    def _apply_upgrade(self, variant: Variant) -> Variant:
        environment = self._upgraded_environments.get(variant.kind)
        return variant if environment is None or variant.plan is None else _move_to_environment(variant, environment)


def _is_shown(replica: Replica) -> bool:
    """Return whether `bay ps` shows it: a replica beyond the first only if it is loaded or fails."""
    return (
        replica.number == 1
        or replica.state is not ReplicaState.COLD
        or replica.in_transition
        or bool(replica.last_failure)
    )


def _get_loras(replica: Replica) -> dict[str, str]:
    return dict(replica.variant.plan.launch.load.loras) if replica.variant.plan is not None else {}


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
    """Raise `ConfigError` for changes that a reload cannot apply."""
    if before.config.models and not after.config.models:
        raise ConfigError("the new configuration has no models", "restart the server if this is intended")
    old, new = before.config.server, after.config.server
    fixed = [f"server.{name}" for name in _RESTART_ONLY if getattr(old, name) != getattr(new, name)]
    if fixed:
        raise ConfigError(f"{', '.join(fixed)} cannot change while the server runs", "restart the server to change it")


def _prefix_message(prefix: str, error: EnginebayError) -> EnginebayError:
    prefixed = copy(error)  # the original may be referenced elsewhere
    prefixed.message = f"{prefix}: {error.message}"
    return prefixed

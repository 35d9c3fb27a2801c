"""Memory budget: the capacity of each pool, and the memory each replica needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.contract.memory_facts import RAM
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.transitions import LoadedWorker
from enginebay.fleet.memory import memory_estimate
from enginebay.fleet.memory.gpu_needs import USABLE_FRACTION, cap_need, list_gpu_capacity
from enginebay.fleet.memory.memory_observed import ObservedResources, TimedOperation, compute_observation_key
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.device_placement import GpuLinks
from enginebay.fleet.scheduling.planner import ReplicaSnapshot, ReplicaState
from enginebay.util.gpus.gpu_discovery import Gpu
from enginebay.util.hardware import HostFacts, read_memory

_UNKNOWN_LOAD_S = 30.0  # until measured
_UNKNOWN_WAKE_S = 1.0


class MemoryBudget:
    def __init__(self, config: FleetConfig, host: HostFacts, observed: ObservedResources) -> None:
        self._config = config
        self._host = host
        self._gpus: Sequence[Gpu] = host.gpus  # without those that are lost
        self._observed = observed
        self.links = GpuLinks(frozenset(host.gpu_links))
        self._others: dict[str, ReplicaSnapshot] = {}  # workers that are no replica's: see `hold`
        self._others_count = 0
        self.pool_bytes: dict[str, int] = {}
        self.refresh_pools(())

    def refresh_pools(self, replicas: Iterable[Replica]) -> None:
        """Update the capacity of all pools. Call it only without transitions: a partial load would count twice."""
        total, available = read_memory()
        ours = sum(replica.memory_bytes for replica in replicas)
        ours += sum(other.awake_bytes.get(RAM, 0) for other in self._others.values())
        ram = self._config.memory_bytes or min(int(total * USABLE_FRACTION), available + ours)
        self.pool_bytes = {RAM: ram, **list_gpu_capacity(self._gpus, total, self._config.gpu_memory_bytes)}

    def set_gpus(self, present: Sequence[Gpu]) -> None:
        """Place nothing on other GPUs than these."""
        self._gpus = present
        kept = list_gpu_capacity(present, self._host.memory_bytes, self._config.gpu_memory_bytes)
        self.pool_bytes = {RAM: self.pool_bytes[RAM], **kept}

    def list_lost_gpus(self, variant: Variant) -> list[int]:
        """Return the GPUs that the variant must have and that are lost."""
        only = variant.gpu_need.only if variant.gpu_need is not None else ()
        present = {gpu.index for gpu in self._gpus}
        return [gpu for gpu in only if gpu not in present]

    def name_used_gpus(self, replicas: Iterable[Replica]) -> str:
        """Return the GPUs that these replicas compute on, as CUDA_VISIBLE_DEVICES names them."""
        used = {gpu for replica in replicas for gpu in replica.gpus}
        return ",".join(gpu.device for gpu in self._host.gpus if gpu.index in used)

    def create_replica(self, variant: Variant) -> Replica:
        """Create a cold replica with its memory and time estimates."""
        replica = Replica(variant, "", {}, None)
        settings = variant.settings
        replica.idle_s = variant.idle_s
        if variant.plan is None:
            return replica
        load = variant.plan.launch.load
        replica.observation_key = compute_observation_key(
            load.model, load.kind, variant.plan.version, load.path, load.settings, load.loras
        )
        replica.awake_bytes = memory_estimate.apply_observed_memory(
            variant.memory.pools, self._observed.get_peak_memory(replica.observation_key), settings.memory_bytes
        )
        self._update_time_estimates(replica)
        return replica

    def create_replicas(self, variant: Variant) -> list[Replica]:
        """Create all replicas that the variant may have, cold."""
        replicas = [self.create_replica(variant) for _ in range(variant.max_replicas)]
        for number, replica in enumerate(replicas, 1):
            replica.number = number
        return replicas

    def configure(self, config: FleetConfig, replicas: Iterable[Replica]) -> None:
        self._config = config
        for replica in replicas:
            self._update_time_estimates(replica)

    def snapshot_replica(self, replica: Replica) -> ReplicaSnapshot:
        """Take a snapshot with the needed memory capped at the capacity.

        Estimates may be wrong, and free memory varies: a model that seems too big may try with all memory. The cap
        does not apply if the configuration sets the capacity or the need.
        """
        snapshot = replica.take_snapshot()
        if self._config.memory_bytes is not None or replica.variant.settings.memory_bytes is not None:
            return snapshot
        capped = {pool: min(needed, self.pool_bytes.get(pool, needed)) for pool, needed in snapshot.awake_bytes.items()}
        need = snapshot.gpu_need
        return replace(snapshot, awake_bytes=capped, gpu_need=None if need is None else cap_need(need, self.pool_bytes))

    def hold(self, worker: ReplicaSnapshot) -> Callable[[], None]:
        """Count the memory of a worker that will be a replica's, or was, until the returned function is called."""
        self._others_count += 1
        name = f"{worker.name} (worker {self._others_count} of an update)"
        self._others[name] = replace(  # as if it were unloading: nothing can be done but wait
            worker, name=name, state=ReplicaState.COLD, previous_state=worker.state, in_transition=True, awake_slots=0, pinned=False
        )  # fmt: skip

        def release() -> None:
            self._others.pop(name, None)

        return release

    def list_held(self) -> list[ReplicaSnapshot]:
        return list(self._others.values())

    def record_load(self, replica: Replica, loaded: LoadedWorker) -> None:
        """Record the time and memory of a load, and update the sleep estimate."""
        operation: TimedOperation = (
            "wake" if loaded.loaded_from == "asleep" else "standby" if loaded.loaded_from == "standby" else "cold"
        )
        self._observed.record_seconds(replica.observation_key, operation, sum(loaded.phases.values()))
        facts = loaded.worker.facts
        self.record_memory(replica)
        sleep = replica.variant.sleep
        level = 1 if sleep == "auto" else sleep
        replica.sleep_level = int(level) if level in facts.sleep_levels else 0
        replica.asleep_bytes = None
        if sleep != "off":
            weights = replica.variant.memory.weights_bytes
            replica.asleep_bytes = memory_estimate.estimate_asleep_memory(
                replica.awake_bytes, facts.sleep_levels, sleep, weights
            )
        self._update_time_estimates(replica)
        self._observed.save()

    def record_memory(self, replica: Replica) -> None:
        """Record the worker's memory use. Only without GPUs: the worker's figure does not separate device memory."""
        if replica.memory_bytes and replica.state is ReplicaState.AWAKE and not self._host.gpus:
            self._observed.record_memory(replica.observation_key, {RAM: replica.memory_bytes})
            configured = replica.variant.settings.memory_bytes
            replica.awake_bytes = memory_estimate.apply_observed_memory(
                replica.awake_bytes, self._observed.get_peak_memory(replica.observation_key), configured
            )

    def _update_time_estimates(self, replica: Replica) -> None:
        cold = self._observed.get_median_seconds(replica.observation_key, "cold")
        standby = self._observed.get_median_seconds(replica.observation_key, "standby")
        known = standby if standby is not None and replica.variant.kind in self._config.standby else cold
        wake = self._observed.get_median_seconds(replica.observation_key, "wake")
        loading = known if known is not None else _UNKNOWN_LOAD_S
        replica.time_to_ready_s = {
            ReplicaState.COLD: loading,
            ReplicaState.ASLEEP: wake if wake is not None else _UNKNOWN_WAKE_S,
        }
        replica.time_to_ready_s[ReplicaState.AWAKE] = replica.time_to_ready_s[
            ReplicaState.ASLEEP if replica.asleep_bytes is not None else ReplicaState.COLD
        ]
        configured_s = self._config.min_residency_s
        replica.min_residency_s = (
            configured_s if configured_s is not None else replica.time_to_ready_s[ReplicaState.AWAKE]
        )

"""Memory: how much there is, and how much each variant takes, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from enginebay.config.sections.fleet_section import FleetConfig
from enginebay.fleet.lifecycle.replica import Replica
from enginebay.fleet.lifecycle.transitions import LoadedWorker
from enginebay.fleet.memory import memory_estimate
from enginebay.fleet.memory.memory_observed import ObservedResources, TimedOperation, compute_observation_key
from enginebay.fleet.routing.variants import Variant
from enginebay.fleet.scheduling.planner import ReplicaSnapshot, ReplicaState
from enginebay.util.hardware import HostFacts, read_memory

_USABLE_FRACTION = 0.95  # of what there is may be taken
_UNKNOWN_LOAD_S = 30.0  # until it was measured
_UNKNOWN_WAKE_S = 1.0


class MemoryBudget:
    def __init__(self, config: FleetConfig, host: HostFacts, observed: ObservedResources) -> None:
        self._config = config
        self._host = host
        self._observed = observed
        self.pool_bytes: dict[str, int] = {}
        self.refresh_pools(())

    def refresh_pools(self, replicas: Iterable[Replica]) -> None:
        """To be called while nobody moves: half of a load would be counted twice."""
        total, available = read_memory()
        ours = sum(place.memory_bytes for place in replicas)
        ram = self._config.memory_bytes or min(int(total * _USABLE_FRACTION), available + ours)
        gpus = {
            f"gpu{gpu.index}": self._config.gpu_memory_bytes or int(gpu.memory_bytes * _USABLE_FRACTION)
            for gpu in self._host.gpus
        }
        self.pool_bytes = {memory_estimate.RAM: ram, **gpus}

    def create_replica(self, variant: Variant) -> Replica:
        """A variant with what is known of it before it is loaded."""
        place = Replica(variant, "", {}, None)
        settings = variant.settings
        place.idle_s = variant.idle_s
        if variant.plan is None:
            return place
        load = variant.plan.launch.load
        place.observation_key = compute_observation_key(
            load.model, load.kind, variant.plan.version, load.path, load.settings, load.loras
        )
        place.memory_facts = memory_estimate.gather_memory_facts(load, self._host, variant.plan.devices)
        predicted = memory_estimate.estimate_memory(place.memory_facts)
        place.awake_bytes = memory_estimate.apply_observed_memory(
            predicted, self._observed.get_peak_memory(place.observation_key), settings.memory_bytes
        )
        self._update_time_estimates(place)
        return place

    def configure(self, config: FleetConfig, replicas: Iterable[Replica]) -> None:
        self._config = config
        for place in replicas:
            self._update_time_estimates(place)

    def snapshot_replica(self, replica: Replica) -> ReplicaSnapshot:
        """A prediction may be wrong, and free memory comes and goes: a model that should need more than there is may try
        with all of it, unless the configuration says what there is or what it needs."""
        holding = replica.take_snapshot()
        if self._config.memory_bytes is not None or replica.variant.settings.memory_bytes is not None:
            return holding
        possible = {
            pool: min(needed, self.pool_bytes.get(pool, needed)) for pool, needed in holding.awake_bytes.items()
        }
        return replace(holding, awake_bytes=possible)

    def record_load(self, replica: Replica, loaded: LoadedWorker) -> None:
        """It has been raised: keep what that took, and see how it can sleep."""
        what: TimedOperation = (
            "wake" if loaded.loaded_from == "asleep" else "standby" if loaded.loaded_from == "standby" else "cold"
        )
        self._observed.record_seconds(replica.observation_key, what, sum(loaded.phases.values()))
        facts = loaded.worker.facts
        self.record_memory(replica)
        sleep = replica.variant.sleep
        level = 1 if sleep == "auto" else sleep
        replica.sleep_level = int(level) if level in facts.sleep_levels else 0
        replica.asleep_bytes = None
        if sleep != "off":
            weights = replica.memory_facts.weights_bytes if replica.memory_facts is not None else 0
            replica.asleep_bytes = memory_estimate.estimate_asleep_memory(
                replica.awake_bytes, facts.sleep_levels, sleep, weights
            )
        self._update_time_estimates(replica)
        self._observed.save()

    def record_memory(self, replica: Replica) -> None:
        """What its worker takes now. Device memory cannot be told apart from main memory, so only without GPUs."""
        if replica.memory_bytes and replica.state is ReplicaState.AWAKE and not self._host.gpus:
            self._observed.record_memory(replica.observation_key, {memory_estimate.RAM: replica.memory_bytes})
            most = replica.variant.settings.memory_bytes
            replica.awake_bytes = memory_estimate.apply_observed_memory(
                replica.awake_bytes, self._observed.get_peak_memory(replica.observation_key), most
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
        asked = self._config.min_residency_s
        replica.min_residency_s = asked if asked is not None else replica.time_to_ready_s[ReplicaState.AWAKE]

"""Memory: how much there is, and how much each variant takes, as far as it is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from enginebay.config.fleet import FleetConfig
from enginebay.fleet import needs
from enginebay.fleet.host import HostFacts, memory
from enginebay.fleet.measured import Measured, What, fingerprint
from enginebay.fleet.moves import Raised
from enginebay.fleet.place import Place
from enginebay.fleet.residency import Depth, Holding
from enginebay.fleet.variants import Variant

_SHARE = 0.95  # of what there is may be taken
_UNKNOWN_LOAD_S = 30.0  # until it was measured
_WAKE_S = 1.0


class Room:
    def __init__(self, config: FleetConfig, host: HostFacts, measured: Measured) -> None:
        self._config = config
        self._host = host
        self._measured = measured
        self.memory: dict[str, int] = {}
        self.read_memory(())

    def read_memory(self, places: Iterable[Place]) -> None:
        """To be called while nobody moves: half of a load would be counted twice."""
        total, available = memory()
        ours = sum(place.memory_bytes for place in places)
        ram = self._config.memory_bytes or min(int(total * _SHARE), available + ours)
        gpus = {
            f"gpu{gpu.index}": self._config.gpu_memory_bytes or int(gpu.memory_bytes * _SHARE)
            for gpu in self._host.gpus
        }
        self.memory = {needs.RAM: ram, **gpus}

    def place(self, variant: Variant) -> Place:
        """A variant with what is known of it before it is loaded."""
        place = Place(variant, "", {}, None)
        settings = variant.settings
        place.idle_s = variant.idle_s
        if variant.plan is None:
            return place
        load = variant.plan.launch.load
        place.key = fingerprint(load.model, load.kind, variant.plan.version, load.path, load.settings, load.loras)
        place.need = needs.gather(load, self._host, variant.plan.devices)
        predicted = needs.predict(place.need)
        place.awake = needs.corrected(predicted, self._measured.memory(place.key), settings.memory_bytes)
        self._expect(place)
        return place

    def configure(self, config: FleetConfig, places: Iterable[Place]) -> None:
        self._config = config
        for place in places:
            self._expect(place)

    def holding(self, place: Place) -> Holding:
        """A prediction may be wrong, and free memory comes and goes: a model that should need more than there is may try
        with all of it, unless the configuration says what there is or what it needs."""
        holding = place.holding()
        if self._config.memory_bytes is not None or place.variant.settings.memory_bytes is not None:
            return holding
        possible = {pool: min(needed, self.memory.get(pool, needed)) for pool, needed in holding.awake.items()}
        return replace(holding, awake=possible)

    def settle(self, place: Place, raised: Raised) -> None:
        """It has been raised: keep what that took, and see how it can sleep."""
        what: What = "wake" if raised.how == "asleep" else "standby" if raised.how == "standby" else "cold"
        self._measured.note_seconds(place.key, what, sum(raised.phases.values()))
        facts = raised.worker.facts
        self.note_memory(place)
        sleep = place.variant.sleep
        level = 1 if sleep == "auto" else sleep
        place.sleep_level = int(level) if level in facts.sleep_levels else 0
        place.asleep = None
        if sleep != "off":
            weights = place.need.weights_bytes if place.need is not None else 0
            place.asleep = needs.asleep_need(place.awake, facts.sleep_levels, sleep, weights)
        self._expect(place)
        self._measured.save()

    def note_memory(self, place: Place) -> None:
        """What its worker takes now. Device memory cannot be told apart from main memory, so only without GPUs."""
        if place.memory_bytes and place.depth is Depth.AWAKE and not self._host.gpus:
            self._measured.note_memory(place.key, {needs.RAM: place.memory_bytes})
            most = place.variant.settings.memory_bytes
            place.awake = needs.corrected(place.awake, self._measured.memory(place.key), most)

    def _expect(self, place: Place) -> None:
        cold = self._measured.seconds(place.key, "cold")
        standby = self._measured.seconds(place.key, "standby")
        known = standby if standby is not None and place.variant.kind in self._config.standby else cold
        wake = self._measured.seconds(place.key, "wake")
        loading = known if known is not None else _UNKNOWN_LOAD_S
        place.raise_s = {Depth.COLD: loading, Depth.ASLEEP: wake if wake is not None else _WAKE_S}
        place.raise_s[Depth.AWAKE] = place.raise_s[Depth.ASLEEP if place.asleep is not None else Depth.COLD]
        asked = self._config.min_residency_s
        place.min_residency_s = asked if asked is not None else place.raise_s[Depth.AWAKE]

"""The `fleet:` block: which models are kept in memory, how they are switched, and what happens when one dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from enginebay.config.declared import DeclaredSection, key
from enginebay.config.values import listed

SLEEP_TYPE = "str|bool|int"
SLEEP = ("auto", "off", False, 1, 2)  # an unquoted `off` is false to YAML


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """How many models share one host."""

    memory_bytes: int | None = key(None, "RAM that the models may take together; unset: what is free", minimum=1)
    gpu_memory_bytes: int | None = key(
        None, "memory that they may take of each GPU; unset: nearly all of it", minimum=1
    )
    max_awake: int | None = key(None, "models that may be awake at once; unset: as many as memory allows", minimum=1)
    min_residency_s: float | None = key(
        None, "a loaded model stays at least so long; unset: as long as loading it took", minimum=0
    )
    max_wait_s: float = key(300.0, "longest wait of a request for a model to be loaded", minimum=0)
    queue: int = key(1024, "requests that may wait for models to be loaded; 0: none", minimum=0)
    switch_slo_s: float = key(60.0, "a switch that takes longer is warned about", minimum=0.1)
    idle_s: float | None = key(None, "a model that nobody asked for so long is unloaded; unset: never", minimum=1)
    sleep: str | int = key(
        "auto",
        "how models are put to sleep: off, level 1 or 2; auto: 1 where the engine can, else kept while memory allows",
        type=SLEEP_TYPE,
        choices=SLEEP,
    )
    standby: tuple[str, ...] = key((), "engines with a spare process that has the library imported")
    hang_s: float = key(
        120.0,
        "a worker that makes no step for so long while requests run counts as hung, as do a changed model without a first answer and a server process that says nothing",
        minimum=1,
    )
    load_timeout_s: float = key(600.0, "longest time to load a model", minimum=1)
    restarts: int = key(5, "deaths within restart_window_s after which a worker is not started again", minimum=1)
    restart_window_s: float = key(600.0, "the time in which deaths are counted", minimum=1)
    backoff_s: float = key(
        1.0,
        "wait before the second restart in a row, the first being at once; each further one waits twice as long",
        minimum=0,
    )
    backoff_max_s: float = key(60.0, "longest wait before a restart", minimum=0)


def fleet_value(name: str, value: Any) -> Any:
    """The value as `FleetConfig` holds it, engines as they were written. Raises `Misfit`."""
    if name == "sleep":
        return sleep_value(value)
    return listed(value) if name == "standby" else value


def sleep_value(value: Any) -> Any:
    return "off" if value is False else value


FLEET = DeclaredSection("fleet", FleetConfig, fleet_value)

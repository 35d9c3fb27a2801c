"""The `fleet:` block: which models are kept in memory, how they are switched, and what happens when one dies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from enginebay.config.entries.value_coercion import split_list
from enginebay.config.sections.declared_section import DeclaredSection, config_field

SLEEP_TYPE = "str|bool|int"
SLEEP_CHOICES = ("auto", "off", False, 1, 2)  # an unquoted `off` is false to YAML


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """How many models share one host."""

    memory_bytes: int | None = config_field(
        None, "RAM that the models may take together; unset: what is free", minimum=1
    )
    gpu_memory_bytes: int | None = config_field(
        None, "memory that they may take of each GPU; unset: nearly all of it", minimum=1
    )
    max_awake: int | None = config_field(
        None, "models that may be awake at once; unset: as many as memory allows", minimum=1
    )
    min_residency_s: float | None = config_field(
        None, "a loaded model stays at least so long; unset: as long as loading it took", minimum=0
    )
    max_wait_s: float = config_field(300.0, "longest wait of a request for a model to be loaded", minimum=0)
    queue: int = config_field(1024, "requests that may wait for models to be loaded; 0: none", minimum=0)
    switch_slo_s: float = config_field(60.0, "a switch that takes longer is warned about", minimum=0.1)
    idle_s: float | None = config_field(
        None, "a model that nobody asked for so long is unloaded; unset: never", minimum=1
    )
    sleep: str | int = config_field(
        "auto",
        "how models are put to sleep: off, level 1 or 2; auto: 1 where the engine can, else kept while memory allows",
        type=SLEEP_TYPE,
        choices=SLEEP_CHOICES,
    )
    standby: tuple[str, ...] = config_field((), "engines with a spare process that has the library imported")
    hang_s: float = config_field(
        120.0,
        "a worker that makes no step for so long while requests run counts as hung, as do a changed model without a first answer and a server process that says nothing",
        minimum=1,
    )
    load_timeout_s: float = config_field(600.0, "longest time to load a model", minimum=1)
    restarts: int = config_field(
        5, "deaths within restart_window_s after which a worker is not started again", minimum=1
    )
    restart_window_s: float = config_field(600.0, "the time in which deaths are counted", minimum=1)
    backoff_s: float = config_field(
        1.0,
        "wait before the second restart in a row, the first being at once; each further one waits twice as long",
        minimum=0,
    )
    backoff_max_s: float = config_field(60.0, "longest wait before a restart", minimum=0)


def convert_fleet_value(name: str, value: Any) -> Any:
    """The value as `FleetConfig` holds it, engines as they were written. Raises `Misfit`."""
    if name == "sleep":
        return convert_sleep_value(value)
    return split_list(value) if name == "standby" else value


def convert_sleep_value(value: Any) -> Any:
    return "off" if value is False else value


FLEET_SECTION = DeclaredSection("fleet", FleetConfig, convert_fleet_value)

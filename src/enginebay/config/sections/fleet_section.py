"""The `fleet:` section: memory budgets, switching, and restarts of crashed workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from enginebay.config.entries.value_coercion import split_list
from enginebay.config.sections.declared_section import DeclaredSection, config_field

SLEEP_TYPE = "str|bool|int"
SLEEP_CHOICES = ("auto", "off", False, 1, 2)  # unquoted `off` is false in YAML
IDLE_ALIASES = ("keep_alive", "ttl")  # of Ollama and llama-swap


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """How models share one host."""

    memory_bytes: int | None = config_field(None, "RAM budget of all models; unset: what is free", minimum=1)
    gpu_memory_bytes: int | None = config_field(None, "memory budget of each GPU; unset: nearly all of it", minimum=1)
    max_awake: int | None = config_field(
        None, "maximum number of awake models; unset: as many as memory allows", minimum=1
    )
    min_residency_s: float | None = config_field(
        None, "minimum time a loaded model stays; unset: the time it took to load", minimum=0
    )
    max_wait_s: float = config_field(300.0, "maximum time a request waits for a model to load", minimum=0)
    queue: int = config_field(1024, "maximum number of requests waiting for models to load; 0: none", minimum=0)
    switch_slo_s: float = config_field(60.0, "switch time above which a warning is logged", minimum=0.1)
    idle_s: float | None = config_field(
        None, "idle time after which a model is unloaded, 0: at once; unset or -1: never", aliases=IDLE_ALIASES
    )
    sleep: str | int = config_field(
        "auto",
        "sleep mode: off, level 1 or 2; auto: level 1 if the engine supports it, else stay loaded while memory allows",
        type=SLEEP_TYPE,
        choices=SLEEP_CHOICES,
    )
    standby: tuple[str, ...] = config_field((), "engines with a standby process that has the library imported")
    hang_s: float = config_field(
        120.0,
        "time without progress after which a busy worker, an updated model's first answer or a server process counts as hung",
        minimum=1,
    )
    load_timeout_s: float = config_field(600.0, "maximum time to load a model", minimum=1)
    restarts: int = config_field(5, "crashes within restart_window_s after which a worker is not restarted", minimum=1)
    restart_window_s: float = config_field(600.0, "time window for counting crashes", minimum=1)
    backoff_s: float = config_field(
        1.0,
        "delay before the second consecutive restart, doubled for each further one; the first is immediate",
        minimum=0,
    )
    backoff_max_s: float = config_field(60.0, "maximum delay before a restart", minimum=0)


def convert_fleet_value(name: str, value: Any) -> Any:
    """Convert a value to its type in `FleetConfig`; engine names stay as written."""
    if name == "sleep":
        return convert_sleep_value(value)
    if name == "idle_s":
        return convert_idle_value(value)
    return split_list(value) if name == "standby" else value


def convert_idle_value(value: Any) -> Any:
    """Return -1, never, for every negative time, as Ollama does."""
    return -1.0 if value is not None and value < 0 else value


def convert_sleep_value(value: Any) -> Any:
    return "off" if value is False else value


FLEET_SECTION = DeclaredSection("fleet", FleetConfig, convert_fleet_value)

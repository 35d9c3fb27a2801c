"""Request and response bodies of /admin/*. Their names, without `Object`, are those in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from enginebay.meters.sample import Absent
from enginebay.server.encoding.choice_state import NonNegative, about

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]


class NoBody(Struct, forbid_unknown_fields=True):
    """An empty object."""


class ModelBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/load, /admin/sleep and /admin/unload"""

    model: ModelName


class SwitchBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/switch"""

    from_: Annotated[ModelName, about("The model to put to sleep or unload.")] = field(name="from")
    to: Annotated[ModelName, about("The model to load.")]


class AdapterNameBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters/remove"""

    model: ModelName
    name: Annotated[ModelName, about("The adapter's name, which clients use as the model.")]


class AdapterBody(AdapterNameBody, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/adapters"""

    path: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, pattern=r"^/[^\x00]*$",
            description="Absolute path of the adapter on the server's host.",
        ),
    ]  # fmt: skip


class UpgradeBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /admin/engines/upgrade"""

    engine: Annotated[
        ModelName, about("KIND==VERSION, which must be installed; KIND alone selects the newest installed version.")
    ]


# Response bodies


class SlowestPhaseObject(Struct):
    phase: str
    seconds: float


class SwitchObject(Struct, kw_only=True):
    """One load or wake of a model."""

    at: Annotated[float, about("Unix time.")]
    model: str
    engine: str
    from_: Annotated[str, about("cold, standby or asleep.")] = field(name="from")
    replaced: Annotated[list[str], about("Models evicted for it.")]
    phases: Annotated[
        dict[str, float], about("Seconds per phase: drain, free, import, load, compile, capture, first_token.")
    ]
    total_s: float
    slo_s: Annotated[float, about("Its target in seconds.")]
    met: bool
    slowest: SlowestPhaseObject | None


class SwitchesObject(Struct):
    switches: Annotated[list[SwitchObject], about("Oldest first.")]
    mean_s: Annotated[dict[str, float], about("Mean seconds by `from`.")]
    missed: Annotated[NonNegative, about("Switches that missed their target.")]


class FleetModelObject(Struct, kw_only=True):
    """One variant of a model, and its state."""

    name: str
    model: Annotated[str, about("The name that clients use; `name` also has the engine if it is a fallback.")]
    engine: str
    version: str | None
    state: Literal[
        "awake", "asleep", "cold", "loading", "waking", "falling asleep", "unloading", "draining", "failing",
        "unavailable", "being replaced",
    ]  # fmt: skip
    pid: NonNegative | None
    pinned: bool
    running: Annotated[NonNegative, about("Running requests.")]
    waiting: Annotated[NonNegative, about("Requests waiting for it to load.")]
    memory_bytes: Annotated[NonNegative | None, about("Measured memory of its worker.")]
    needs_bytes: Annotated[
        dict[str, NonNegative], about("Memory reserved for it when awake, for ram and for each GPU.")
    ]
    gpus: Annotated[list[NonNegative], about("The GPUs it is placed on, by rank; empty without a worker or a GPU.")]
    placement: Annotated[str | None, about("Why it is on these GPUs.")]
    awake_s: Annotated[float | None, about("Seconds since it woke.")]
    idle_s: Annotated[float | None, about("Seconds since its last request.")]
    adapters: list[str]
    smaller_settings: Annotated[
        bool | None, about("It runs with smaller settings than configured because memory was short.")
    ]
    last_failure: str | None
    last_switch: Annotated[SwitchObject | None, about("Its last load or wake.")]
    already: Annotated[bool | UnsetType, about("For load and switch: it was already loaded.")] = UNSET
    left: Annotated[str | UnsetType, about("For switch: the new state of the other model.")] = UNSET
    frees_memory: Annotated[
        bool | UnsetType, about("For sleep: whether its engine gives memory back while it sleeps.")
    ] = UNSET


class FleetObject(Struct):
    models: list[FleetModelObject]
    standby: Annotated[dict[str, NonNegative], about("Process id of each engine's standby worker.")]
    memory_bytes: Annotated[dict[str, NonNegative], about("Memory budget of all models, for ram and for each GPU.")]


class MeterSampleObject(Struct, kw_only=True):
    """One reading of one device. Values that it does not report are null."""

    time_s: float
    device: Annotated[
        str, about("gpu:N, cpu:package-N, cpu:dram-N, host, or tree:server for the server and its workers.")
    ]
    energy_j: Annotated[float | None, about("A counter with an arbitrary zero; it may wrap.")]
    power_w: float | None
    utilisation: Annotated[float | None, about("0 to 1; for CPUs since the previous reading.")]
    memory_bytes: NonNegative | None
    sm_clock_hz: float | None
    temperature_c: float | None
    throttle: Annotated[list[str], about("Reasons for throttled clocks.")]
    cpu_s: Annotated[float | None, about("CPU time of all cores; a counter.")]
    peak_memory_bytes: NonNegative | None
    wraps_at_j: float | None
    limit_w: float | None


class MetersObject(Struct):
    monotonic_s: Annotated[float, about("The clock of the samples, at the middle of the reading.")]
    boot_id: Annotated[str | None, about("Identifies the host's boot; clocks with the same id are comparable.")]
    cores: Annotated[NonNegative | None, about("CPU cores of the host.")]
    names: Annotated[dict[str, str], about("Product and UUID of each GPU by device.")]
    samples: list[MeterSampleObject]
    absent: Annotated[list[Absent], about("Meters that cannot be read, and why.")]


class LogLinesObject(Struct):
    lines: list[str]


class ReloadedObject(Struct):
    added: list[str]
    removed: list[str]
    changed: list[str]
    keys: Annotated[NonNegative, about("API keys in effect. 0: the server accepts requests without a key.")]


class UpgradedObject(Struct):
    engine: str
    version: str
    models: Annotated[list[str], about("Models that moved to the new version.")]
